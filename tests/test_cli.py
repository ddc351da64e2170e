"""The command line: what it prints, and one sentence with exit code 2 for every mistake."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedprompt
from fedprompt.cli import main


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Run a command in this process, in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPROMPT_DATA", raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedprompt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return call


def process(*arguments, cwd, limit=None):
    """The same as a process of its own; ``limit`` is the largest file it may write, in bytes."""

    def full_disk():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "fedprompt", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, preexec_fn=full_disk
    )


def tree(folder: Path):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def is_one_sentence(text):
    assert text.startswith("Error: "), text
    assert text.endswith((".\n", "?\n")), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return True


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return path


# What it prints


def test_run_prints_a_table_and_the_folder(cli, tiny_toml, tmp_path):
    code, out, err = cli("run", tiny_toml, "--method", "head-tune", "--seed", 3, "--out", "here")
    assert code == 0
    for word in ("Head-Tune", "Average", "Worst Local", "bytes", "seconds", "here/tiny-head-tune-seed3"):
        assert word in out
    assert "round 3/3" in err, "progress goes to standard error"
    assert fedprompt.load_run(tmp_path / "here" / "tiny-head-tune-seed3").summary["seed"] == 3


def test_run_as_json_prints_one_document_and_nothing_else(cli, tiny_toml):
    code, out, err = cli("run", tiny_toml, "--method", "head-tune", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["method"] == "head-tune"
    assert 0 <= found["final"]["worst_local"] <= found["final"]["average"] <= 1
    assert Path(found["folder"]).is_dir()


def test_a_run_folder_is_never_written_over(cli, tiny_toml):
    folders = [json.loads(cli("run", tiny_toml, "--method", "head-tune", "--json")[1])["folder"] for _ in range(3)]
    assert len(set(folders)) == 3


def test_set_changes_a_setting(cli, tiny_toml):
    _, out, _ = cli("run", tiny_toml, "--json", "--set", "training.rounds=1", "--set", 'method = "fedvpt"')
    assert (json.loads(out)["rounds"], json.loads(out)["method"]) == (1, "fedvpt")


def test_clients_never_sampled_and_new_clients_are_reported(cli, tiny_toml):
    code, out, _ = cli(
        *("run", tiny_toml, "--method", "head-tune", "--set", "training.rounds=1"),
        *("--set", "training.participation=0.4", "--set", "new_clients.hold_out=[0]"),
    )
    assert code == 0
    assert "never sampled" in out
    assert "new clients' Average" in out


def test_resume_goes_on(cli, tiny_run, tmp_path):
    shutil.copytree(tiny_run.folder, tmp_path / "stopped")
    (tmp_path / "stopped" / "summary.json").unlink()
    code, out, _ = cli("run", "--resume", "stopped", "--json")
    assert code == 0
    assert json.loads(out) == {"folder": "stopped", **tiny_run.summary}


def test_compare_prints_a_row_for_each_method_with_the_spread_over_seeds(cli, tiny_toml):
    code, out, _ = cli("compare", tiny_toml, "--methods", "head-tune,pfedbayespt", "--seeds", "0,1", "--out", "r")
    assert code == 0
    for word in ("Head-Tune", "pFedBayesPT", "Average", "Worst Local", "bytes sent / client / round", "seconds", "±"):
        assert word in out
    for method in ("head-tune", "pfedbayespt"):
        for seed in (0, 1):
            assert f"r/tiny-{method}-seed{seed}" in out
            assert Path("r", f"tiny-{method}-seed{seed}", "curves.png").is_file()
    with Image.open("r/tiny-comparison.png") as picture:
        assert picture.format == "PNG"


def test_compare_as_json_is_a_list_of_runs(cli, tiny_toml):
    code, out, err = cli("compare", tiny_toml, "--methods", "head-tune, fedvpt", "--json")
    assert (code, err) == (0, "")
    assert [(one["method"], one["seed"]) for one in json.loads(out)] == [("head-tune", 0), ("fedvpt", 0)]


def test_methods_are_listed_with_what_they_share(cli, tiny_toml):
    code, out, _ = cli("methods", tiny_toml)
    assert code == 0
    rows = json.loads(cli("methods", tiny_toml, "--json")[1])
    assert rows[0]["method"] == "head-tune"
    assert {"head-tune", "fedvpt", "fedvpt-d", "pfedbayespt", "pfedbayespt-g", "pfedbayespt-d"} <= {
        row["method"] for row in rows
    }
    for row in rows:
        assert row["method"] in out, "even in a narrow terminal"
        assert row["bytes_per_client_and_round"] > 0
        assert not set(row["shared"]) & set(row["personal"])


def test_data_shows_who_gets_what(cli, tiny_toml, tmp_path):
    code, out, _ = cli("data", tiny_toml)
    assert code == 0
    assert "72 training and 48 test images" in out
    with Image.open(tmp_path / "partition.png") as picture:
        assert picture.format == "PNG"
    first = (tmp_path / "partition.png").read_bytes()
    assert "partition-2.png" in cli("data", tiny_toml, "--set", "seed=1")[1], "a picture is never written over"
    assert (tmp_path / "partition.png").read_bytes() == first
    _, out, _ = cli("data", tiny_toml, "--picture", "who/gets.png", "--json")
    found = json.loads(out)
    assert Path(found["picture"]).is_file()
    assert [row["train"] for row in found["clients"]] == [18] * 4


def test_predict_gives_probabilities_and_their_spread(cli, tiny_run, photo):
    code, out, _ = cli("predict", tiny_run.folder, photo, photo, "--client", 2, "--top", 10, "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["image"] for row in rows] == [str(photo)] * 2
    for row in rows:
        assert sum(found["probability"] for found in row["classes"]) == pytest.approx(1, abs=1e-5)
        assert {found["class"] for found in row["classes"]} == {"dark", "grey", "light"}
        assert row["draws"] == 3
        assert any(found["spread"] > 0 for found in row["classes"])
        order = [found["probability"] for found in row["classes"]]
        assert order == sorted(order, reverse=True)
    code, out, _ = cli("predict", tiny_run.folder, photo, "--top", 1)
    assert code == 0
    assert "spread over 3 draws" in out
    assert out.count("%") == 2


def test_presets_are_listed(cli):
    code, out, _ = cli("presets")
    assert code == 0
    assert "digits6" in out.split()


def test_the_module_runs_as_a_process(tmp_path):
    done = process("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("run", "compare", "methods", "data", "predict", "presets"):
        assert command in done.stdout


# Mistakes

MISTAKES = {
    "unknown preset": (["run", "digit6"], "did you mean 'digits6'"),
    "unknown preset far from any": (["run", "zebra"], "presets are"),
    "no such file": (["run", "absent.toml"], "no settings file 'absent.toml'"),
    "unknown key": (["run", "TINY", "--set", "training.round=3"], "did you mean 'training.rounds'"),
    "unknown key without its table": (["run", "TINY", "--set", "participation=0.5"], "'training.participation'"),
    "unknown table": (["run", "TINY", "--set", "trainig.rounds=3"], "did you mean 'training'"),
    "unknown key of a method": (
        ["run", "TINY", "--set", "methods.pfedbayespt.sample=3"],
        "did you mean 'methods.pfedbayespt.samples'",
    ),
    "wrong type": (["run", "TINY", "--set", "training.rounds=many"], "'many', but it must be a whole number"),
    "a fraction for a count": (["run", "TINY", "--set", "training.rounds=2.5"], "must be a whole number"),
    "out of range": (["run", "TINY", "--set", "training.participation=1.5"], "must be at most 1"),
    "zero rounds": (["run", "TINY", "--set", "training.rounds=0"], "must be greater than 0"),
    "not one of the words": (["run", "TINY", "--set", "device=gpu"], "must be 'auto', 'cpu', 'cuda' or 'mps'"),
    "a word or a list": (
        ["run", "TINY", "--set", "new_clients.hold_out=most"],
        "must be 'none', 'half' or 'random_half', or a list",
    ),
    "a list of other things": (["run", "TINY", "--set", 'new_clients.hold_out=[1, "x"]'], "each a whole number"),
    "a value for a table": (["run", "TINY", "--set", "training=3"], "must be a table of settings"),
    "a table in a value": (["run", "TINY", "--set", "training.rounds.x=3"], "holds a single value"),
    "out of range in a method": (["run", "TINY", "--set", "methods.pfedbayespt.keep=2"], "'methods.pfedbayespt.keep'"),
    "a name that is a path": (["run", "TINY", "--set", "name=../elsewhere"], "a plain name"),
    "negative seed": (["run", "TINY", "--seed", "-1"], "'seed' is -1, but it must be at least 0"),
    "no equals sign": (["run", "TINY", "--set", "training.rounds"], "not of the form key=value"),
    "no key": (["run", "TINY", "--set", "=3"], "not of the form key=value"),
    "unknown method": (["run", "TINY", "--method", "pfedbayes"], "did you mean 'pfedbayespt'"),
    "unknown method in a list": (["compare", "TINY", "--methods", "head-tune,sgtp"], "no method 'sgtp'"),
    "m impossible": (["run", "TINY", "--set", "partition.domains_per_client=3"], "from 1 to 2"),
    "s impossible": (
        ["run", "TINY", "--set", "partition.kind=shards", "--set", "partition.classes_per_client=2"],
        "multiple of the 3 classes",
    ),
    "more clients than images": (["run", "TINY", "--set", "partition.clients=1000"], "fewer clients"),
    "unknown data set": (["run", "TINY", "--set", "data.name=cifar10"], "did you mean 'cifar100'"),
    "missing data set": (["run", "digits6", "--set", "data.name=cifar100"], "fedprompt data get cifar100"),
    "missing image folder": (["run", "TINY", "--set", "data.root=nowhere"], "does not exist"),
    "weights that are not there": (["run", "TINY", "--set", "backbone.weights=absent.safetensors"], "absent"),
    "weights of no kind": (["run", "TINY", "--set", "backbone.weights=huge"], "neither"),
    "an image size that patches do not fill": (["run", "TINY", "--set", "backbone.image=18"], "no multiple"),
    "validation without a split": (["run", "TINY", "--set", "evaluation.split=validation"], "data.validation"),
    "a new client that is none": (["run", "TINY", "--set", "new_clients.hold_out=[9]"], "clients are 0 to 3"),
    "seeds that are no numbers": (["compare", "TINY", "--seeds", "a,b"], "numbers with commas"),
    "one bad seed among good ones": (["compare", "TINY", "--methods", "head-tune", "--seeds", "0,-1"], "at least 0"),
    "resume of nothing": (["run", "--resume", "nowhere"], "no run"),
    "resume with other settings": (["run", "TINY", "--resume", "RUN"], "leave the others away"),
    "predict without a run": (["predict", "nowhere", "PHOTO"], "no run"),
    "a client that is none": (["predict", "RUN", "PHOTO", "--client", "4"], "clients are 0 to 3"),
    "a negative client": (["predict", "RUN", "PHOTO", "--client", "-1"], "clients are 0 to 3"),
    "no such image": (["predict", "RUN", "absent.png"], "no image file 'absent.png'"),
    "an image that is none": (["predict", "RUN", "TINY"], "not an image"),
    "data to get of no name": (["data", "get"], "Say which"),
    "unknown data to get": (["data", "get", "cifar10"], "cifar100"),
    "a word too many": (["data", "TINY", "cifar100"], "one word too many"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(cli, mistake, tiny_toml, tiny_run, photo, tmp_path):
    arguments, sentence = MISTAKES[mistake]
    places = {"TINY": tiny_toml, "RUN": tiny_run.folder, "PHOTO": photo}
    before = tree(tiny_run.folder)
    code, out, err = cli(*(places.get(argument, argument) for argument in arguments))
    assert code == 2
    assert out == ""
    assert is_one_sentence(err)
    assert sentence in err
    assert tree(tmp_path) == []
    assert tree(tiny_run.folder) == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"rounds = = 3", "not valid TOML"), (b"\xff\xfe\x00", "UTF-8"), (b"[a", "not valid TOML")],
)
def test_a_settings_file_that_is_no_toml(cli, content, sentence, tmp_path):
    (tmp_path / "bad.toml").write_bytes(content)
    code, _, err = cli("run", "bad.toml")
    assert code == 2
    assert is_one_sentence(err)
    assert sentence in err
    assert tree(tmp_path) == ["bad.toml"]


def test_brackets_in_a_message_are_kept(cli, tmp_path):
    """They are no markup: a folder may be called [red]."""
    code, _, err = cli("run", "[red].toml")
    assert code == 2
    assert "[red].toml" in err
    assert is_one_sentence(cli("run", "[/].toml")[2])


def test_corrupt_weights_are_refused(cli, tiny_toml, tiny_weights, tmp_path):
    content = tiny_weights.read_bytes()
    weights = tmp_path / "weights.safetensors"
    shutil.copy(tiny_weights.with_suffix(".json"), weights.with_suffix(".json"))
    for bad in (content[: len(content) // 2], b"", b"not tensors at all"):
        weights.write_bytes(bad)
        code, _, err = cli("run", tiny_toml, "--set", f"backbone.weights={weights}")
        assert code == 2
        assert is_one_sentence(err)
        assert str(weights) in err
    assert tree(tmp_path) == ["weights.json", "weights.safetensors"]


@pytest.fixture
def copied(tiny_run, tmp_path):
    return Path(shutil.copytree(tiny_run.folder, tmp_path / "copied"))


def test_a_corrupt_checkpoint_is_refused_by_predict_and_resume(cli, copied, photo):
    path = copied / "checkpoint.safetensors"
    whole = path.read_bytes()
    (copied / "summary.json").unlink()
    for bad in (whole[:-10], whole[:-10] + bytes(10), b"", b"text"):
        path.write_bytes(bad)
        for command in (["predict", copied, photo], ["run", "--resume", copied]):
            code, out, err = cli(*command)
            assert (code, out) == (2, "")
            assert is_one_sentence(err)
            assert "damaged" in err


@pytest.mark.parametrize("name", ["about.json", "config.toml"])
@pytest.mark.parametrize("content", [b"", b"[3", b"\xff"])
def test_a_run_folder_with_a_damaged_file_is_refused(cli, copied, photo, name, content):
    (copied / name).write_bytes(content)
    code, _, err = cli("predict", copied, photo)
    assert code == 2
    assert is_one_sentence(err)


def test_a_file_where_the_runs_should_go(cli, tiny_toml, tmp_path):
    (tmp_path / "taken").write_text("mine")
    code, _, err = cli("run", tiny_toml, "--out", "taken")
    assert code == 2
    assert is_one_sentence(err)
    assert "taken" in err
    assert (tmp_path / "taken").read_text() == "mine"
    code, _, err = cli("data", tiny_toml, "--picture", "taken/partition.png")
    assert code == 2
    assert is_one_sentence(err)


def test_training_that_runs_away_is_one_sentence(cli, tiny_toml):
    for head in ("local", "global"):
        rate = ["--set", "methods.head-tune.learning_rate=1e38", "--set", f"methods.head-tune.head={head}"]
        code, _, err = cli("run", tiny_toml, "--method", "head-tune", *rate)
        assert code == 2
        assert is_one_sentence(err.splitlines(keepends=True)[-1])
        assert "not finite" in err


def test_a_device_that_is_not_there(cli, tiny_toml, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = cli("run", tiny_toml, "--set", "device=cuda")
    assert code == 2
    assert is_one_sentence(err)
    assert "not available" in err


@pytest.mark.parametrize("arguments", [["run", "--seed", "abc"], ["nonsense"], ["run", "--sed", "3"], ["predict"]])
def test_a_command_that_cannot_be_parsed_has_code_two(cli, arguments, tmp_path):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert tree(tmp_path) == []


# Real processes


def test_a_process_fails_with_one_sentence(tmp_path):
    done = process("run", "digit6", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert is_one_sentence(done.stderr)
    assert tree(tmp_path) == []


needs_limits = pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no file size limits here")


@needs_limits
def test_a_disk_full_from_the_start_leaves_no_run(tiny_toml, tmp_path):
    done = process("run", tiny_toml, "--out", "runs", cwd=tmp_path, limit=100)
    assert done.returncode == 2
    assert is_one_sentence(done.stderr)
    assert "no disk space" in done.stderr
    assert tree(tmp_path) in ([], ["runs"])


@needs_limits
@pytest.mark.parametrize("limit", [2048, 5900], ids=["early", "late"])
def test_a_disk_that_fills_up_loses_no_work(tiny_toml, limit, tmp_path, tmp_path_factory):
    rounds = ("--set", "training.rounds=12")
    done = process("run", tiny_toml, *rounds, cwd=tmp_path, limit=limit)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert is_one_sentence(done.stderr.splitlines(keepends=True)[-1])
    assert "no disk space" in done.stderr
    folder = tmp_path / "runs" / "tiny-pfedbayespt-seed0"
    assert not [name for name in tree(folder) if name.endswith(".tmp")]
    resumed = fedprompt.resume(folder)
    whole = fedprompt.run(tiny_toml, changes={"training.rounds": 12}, out=tmp_path_factory.mktemp("whole"))
    for name in ("metrics.jsonl", "summary.json", "checkpoint.safetensors"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_an_interrupted_run_says_how_to_go_on(tiny_toml, tmp_path):
    command = [sys.executable, "-m", "fedprompt", "run", str(tiny_toml), "--set", "training.rounds=100000"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        began = time.monotonic()
        while not list(tmp_path.glob("runs/*/checkpoint.safetensors")) and time.monotonic() - began < 120:
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
