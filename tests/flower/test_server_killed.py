"""The command stops all it started, and after any kind of end --resume leads to the result of an undisturbed run."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from flower.conftest import flower_processes

import fedprompt

pytestmark = pytest.mark.federation

CHANGES = {"partition.clients": 3, "training.rounds": 4, "evaluation.every": 2, "evaluation.last": 1}
PATIENCE = 900


def start(arguments):
    command = [sys.executable, "-m", "fedprompt", "federation", "up", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(process, condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def all_gone(seconds):
    until = time.monotonic() + seconds
    while flower_processes() and time.monotonic() < until:
        time.sleep(0.2)
    return flower_processes() == []


def lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


@pytest.fixture(scope="module")
def killed(tiny_toml, tmp_path_factory):
    """A federation ended politely in its second round, killed outright in its third, and then let be."""
    out = tmp_path_factory.mktemp("killed")
    folder = out / "tiny-pfedbayespt-seed0-flower"
    settings = [part for key, value in CHANGES.items() for part in ("--set", f"{key}={value}")]
    facts = {}
    process = start([str(tiny_toml), *settings, "--out", str(out)])
    wait_for(process, lambda: lines(folder) >= 1)
    process.send_signal(signal.SIGTERM)
    facts["polite"] = (process.communicate(timeout=60), process.returncode, flower_processes())
    process = start(["--resume", str(folder)])
    wait_for(process, lambda: lines(folder) >= 2)
    time.sleep(2)  # into the next round
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    facts["killed"] = all_gone(30)
    process = start(["--resume", str(folder)])
    facts["end"] = (process.communicate(timeout=PATIENCE), process.returncode, flower_processes())
    return fedprompt.load_run(folder), facts


def test_a_polite_kill_stops_everything_and_says_how_to_go_on(killed):
    (_, complaint), code, left = killed[1]["polite"]
    assert left == []
    assert code == 130
    assert "--resume" in complaint


def test_nothing_outlives_a_killed_command(killed):
    assert killed[1]["killed"]


def test_the_end_leaves_nothing_running_and_prints_the_bytes(killed):
    run, facts = killed
    (out, complaint), code, left = facts["end"]
    assert code == 0, complaint
    assert left == []
    assert f"{run.summary['bytes_per_client_and_round']:,} bytes" in out


def test_the_result_is_that_of_an_undisturbed_run(killed, tiny_toml, tmp_path):
    run, _ = killed
    undisturbed = fedprompt.run(tiny_toml, changes=CHANGES, out=tmp_path)
    assert run.records == undisturbed.records
    assert run.summary == undisturbed.summary
    mine, theirs = run.state(), undisturbed.state()
    assert mine.shared.keys() == theirs.shared.keys()
    for name, value in theirs.shared.items():
        torch.testing.assert_close(mine.shared[name], value, rtol=0, atol=1e-6, msg=name)
