"""A run killed at any moment and resumed is, bit for bit, a run that never was."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedprompt
from fedprompt.federation.checkpoint import load_state

ROUNDS = 14
CHANGES = {
    "training.rounds": ROUNDS,
    "training.epochs": 3,
    "training.participation": 0.5,
    "training.checkpoint_every": 2,
    "evaluation.every": 3,
    "partition.clients": 6,
    "new_clients.hold_out": [5],
}
DEADLINE = 120  # seconds; only a hanging process takes so long


@pytest.fixture(scope="module")
def undisturbed(tiny_toml, tmp_path_factory):
    return fedprompt.run(tiny_toml, changes=CHANGES, out=tmp_path_factory.mktemp("undisturbed"))


def lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def changed(path):
    """When a file was last written; 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def kill_when(arguments, ready, pause=0.0):
    """Start a real process, kill it once ``ready``; whether it was still alive then."""
    command = [sys.executable, "-m", "fedprompt", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        began = time.monotonic()
        while process.poll() is None and not ready():
            assert time.monotonic() - began < DEADLINE
            time.sleep(0.001)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        _, complaint = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), complaint.decode()
        return process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def survivor(tiny_toml, tmp_path_factory):
    """A run killed again and again: before its first round, in a round, at a checkpoint, and in its last moments."""
    out = tmp_path_factory.mktemp("killed")
    folder = out / "tiny-pfedbayespt-seed0"
    settings = [part for key, value in CHANGES.items() for part in ("--set", f"{key}={value}")]
    start = ["run", str(tiny_toml), *settings, "--out", str(out)]
    go_on = ["run", "--resume", str(folder)]
    kills = []

    def wrote(name):
        before = changed(folder / name)
        return lambda: changed(folder / name) != before

    def reached(count):
        return lambda: lines(folder) >= count

    # Its first words are on the disk, and nothing else.
    kills.append(kill_when(start, wrote("config.toml")))
    # After the first round, which no checkpoint holds yet.
    kills.append(kill_when(go_on, reached(1)))
    # Right after a checkpoint.
    kills.append(kill_when(go_on, wrote("checkpoint.safetensors")))
    # Some way into the rounds after another one.
    kills.append(kill_when(go_on, wrote("checkpoint.safetensors"), pause=0.03))
    # A record is written, its checkpoint perhaps not, and the line cut short as a full disk would.
    kills.append(kill_when(go_on, reached(7)))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 9, "partic')
    # While the last pictures are drawn.
    kills.append(kill_when(go_on, wrote("metrics.csv")))
    assert not (folder / "summary.json").exists(), "a run is finished only when all of it is there"
    return fedprompt.resume(folder), kills


def test_the_process_was_killed_while_it_was_at_work(survivor):
    _, kills = survivor
    assert sum(kills) >= 5, kills


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "metrics.csv", "config.toml"])
def test_every_figure_is_that_of_an_undisturbed_run(survivor, undisturbed, name):
    killed, _ = survivor
    assert (killed.folder / name).read_bytes() == (undisturbed.folder / name).read_bytes()


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "new_clients.safetensors"])
def test_every_tensor_is_that_of_an_undisturbed_run(survivor, undisturbed, name):
    killed, _ = survivor
    a, b = (load_state(run.folder / name) for run in (killed, undisturbed))
    assert (a.round, a.participations) == (b.round, b.participations)
    groups = [(a.shared, b.shared), (a.server, b.server)]
    groups += [(a.personal[client], b.personal[client]) for client in a.personal.keys() | b.personal.keys()]
    for mine, theirs in groups:
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert torch.equal(value, theirs[key]), key


def test_the_killed_left_no_half_written_file(survivor, undisturbed):
    def names(run):
        return sorted(path.name for path in run.folder.iterdir() if "tfevents" not in path.name)

    assert names(survivor[0]) == names(undisturbed)


def test_every_round_took_its_time_once(survivor):
    assert [timing["round"] for timing in survivor[0].timings] == list(range(1, ROUNDS + 1))


def test_tensorboard_has_every_round_once(survivor, undisturbed):
    def scalars(run):
        events = EventAccumulator(str(run.folder)).Reload()
        return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    found = scalars(survivor[0])
    assert [step for step, _ in found["training/cross_entropy"]] == list(range(1, ROUNDS + 1))
    assert found == scalars(undisturbed)


def test_the_same_settings_and_seed_give_the_same_bytes(tiny_toml, tiny_run, tmp_path):
    again = fedprompt.run(tiny_toml, out=tmp_path)
    for name in ("metrics.jsonl", "summary.json", "checkpoint.safetensors", "metrics.csv", "config.toml"):
        assert (again.folder / name).read_bytes() == (tiny_run.folder / name).read_bytes(), name


def test_the_embedded_preset_gives_the_same_bytes_twice(small, tmp_path):
    changes = small | {"training.rounds": 2, "methods.pfedbayespt.samples": 2, "threads": 1}
    first, second = (fedprompt.run("digits6", changes=changes, out=tmp_path / name) for name in ("a", "b"))
    assert (first.folder / "metrics.jsonl").read_bytes() == (second.folder / "metrics.jsonl").read_bytes()


def test_another_seed_gives_another_run(tiny_toml, tiny_run, tmp_path):
    other = fedprompt.run(tiny_toml, seed=1, out=tmp_path)
    assert other.records != tiny_run.records


def test_more_rounds_begin_with_the_same_rounds(tiny_toml, tiny_run, tmp_path):
    longer = fedprompt.run(tiny_toml, changes={"training.rounds": 4}, out=tmp_path)
    assert [record["training"] for record in longer.records[:3]] == [record["training"] for record in tiny_run.records]


def contents(folder):
    return {path.name: (path.read_bytes(), changed(path)) for path in folder.iterdir()}


def test_to_resume_a_finished_run_changes_nothing(tiny_run):
    before = contents(tiny_run.folder)
    assert fedprompt.resume(tiny_run.folder).summary == tiny_run.summary
    assert contents(tiny_run.folder) == before


@pytest.fixture
def stopped(tiny_run, tmp_path):
    """A run that lacks nothing but its end."""
    folder = tmp_path / "stopped"
    shutil.copytree(tiny_run.folder, folder)
    (folder / "summary.json").unlink()
    return folder


def test_a_run_stopped_at_its_very_end_is_finished(stopped, tiny_run):
    assert fedprompt.resume(stopped).summary == tiny_run.summary


def test_an_unfinished_run_says_so(stopped):
    with pytest.raises(fedprompt.UserError, match="not finished"):
        _ = fedprompt.load_run(stopped).summary


def refused(folder, sentence):
    before = contents(folder)
    with pytest.raises(fedprompt.UserError, match=sentence):
        fedprompt.resume(folder)
    assert contents(folder) == before, "a run that cannot go on is left as it is"


def test_a_folder_without_a_run_cannot_go_on(tmp_path):
    refused(tmp_path, "no run")
    with pytest.raises(fedprompt.UserError, match="no run"):
        fedprompt.resume(tmp_path / "absent")


def test_a_damaged_checkpoint_cannot_go_on(stopped):
    path = stopped / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    refused(stopped, "damaged")


def test_changed_settings_cannot_go_on(stopped):
    path = stopped / "config.toml"
    path.write_text(path.read_text().replace("samples = 3", "samples = 4"))
    refused(stopped, "other settings")


def test_other_weights_or_images_cannot_go_on(stopped):
    path = stopped / "about.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"backbone": "f" * 64}))
    refused(stopped, "weights")
    path.write_text(json.dumps(about | {"images": about["images"][1:]}))
    refused(stopped, "images")


def test_lost_records_cannot_go_on(stopped):
    path = stopped / "metrics.jsonl"
    first, _, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + third)
    refused(stopped, "lacks rounds")
