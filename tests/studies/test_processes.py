"""Real processes over one store: killed, stopped, side by side, and with a failing cell among the others."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedprompt.config import load_config

DEADLINE = 240  # seconds; only a hanging process takes so long
LONG = ("--set", "training.rounds=6", "--set", "training.epochs=2")


def start(*arguments, **pipes):
    """A command of the real program in a process of its own."""
    command = [sys.executable, "-m", "fedprompt", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def finish(process):
    told, complaint = process.communicate(timeout=DEADLINE)
    return process.returncode, told, complaint


def result(*arguments):
    code, told, complaint = finish(start(*arguments, "--json"))
    assert code == 0, complaint
    return json.loads(told)


def wait_for(ready, process=None):
    began = time.monotonic()
    while not ready():
        assert time.monotonic() - began < DEADLINE
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.005)


def cells(store):
    return sorted(path for path in (store / "cells").glob("*") if path.is_dir())


def finished(store):
    return {path: path.stat().st_mtime_ns for path in (store / "cells").glob("*/cell.json")}


def lines(path):
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def half_way(store):
    """One cell is done, and another is in the middle of its rounds."""
    begun = [lines(folder / "metrics.jsonl") for folder in cells(store) if not (folder / "cell.json").exists()]
    return bool(finished(store)) and any(count >= 2 for count in begun)


def workers(store):
    """The worker processes of a store."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if "fedprompt.studies.worker" in words and str(store) in words:
            found.append(int(place.name))
    return found


@pytest.fixture(scope="module")
def undisturbed(little_toml, tmp_path_factory):
    store = tmp_path_factory.mktemp("undisturbed")
    return store, result("study", "run", little_toml, *LONG, "--out", store)


def test_a_study_that_is_killed_redoes_no_finished_cell_and_ends_in_the_same_table(little_toml, tmp_path, undisturbed):
    process = start("study", "run", little_toml, *LONG, "--out", tmp_path)
    wait_for(lambda: half_way(tmp_path), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = finished(tmp_path)
    assert 0 < len(before) < 4
    stopped = [folder for folder in cells(tmp_path) if not (folder / "cell.json").exists()]
    kept = max(lines(folder / "timing.jsonl") for folder in stopped)

    content = result("study", "run", little_toml, *LONG, "--out", tmp_path)

    assert content["done"] == content["cells"] == 4
    assert content["tables"] == undisturbed[1]["tables"]
    after = finished(tmp_path)
    assert {path: after[path] for path in before} == before
    assert kept >= 2  # rounds that were not done again: their times are those of the killed process
    for folder in cells(tmp_path):
        twin = undisturbed[0] / "cells" / folder.name
        assert (folder / "metrics.jsonl").read_bytes() == (twin / "metrics.jsonl").read_bytes()
    assert not workers(tmp_path)


def test_two_processes_share_the_grid_and_do_no_cell_twice(little_toml, tmp_path, undisturbed):
    pair = [start("study", "run", little_toml, *LONG, "--out", tmp_path) for _ in range(2)]
    reports = [finish(process) for process in pair]
    done = []
    for code, _, complaint in reports:
        assert code == 0, complaint
        done.append(set(re.findall(r"^\[\d+/4\] (.*): Average .* \(\d+ s\)", complaint, re.MULTILINE)))
    assert not done[0] & done[1]
    assert len(done[0] | done[1]) == 4
    assert all(lines(folder / "timing.jsonl") == 6 for folder in cells(tmp_path))
    assert result("study", "show", little_toml, "--out", tmp_path)["tables"] == undisturbed[1]["tables"]


def test_two_jobs_give_the_bytes_of_one(little_toml, tmp_path, undisturbed):
    content = result("study", "run", little_toml, *LONG, "--jobs", "2", "--out", tmp_path)
    assert content["done"] == 4
    for folder in cells(undisturbed[0]):
        twin = tmp_path / "cells" / folder.name
        assert (folder / "metrics.jsonl").read_bytes() == (twin / "metrics.jsonl").read_bytes()


def test_a_failing_cell_is_reported_at_the_end_and_the_others_are_done(little_toml, tmp_path):
    study = tmp_path / "little.toml"
    study.write_text(little_toml.read_text().replace("pfedbayespt", "sgpt"))
    arguments = ("study", "run", study, "--only", "m=1", "--set", "methods.sgpt.groups=100", "--out", tmp_path)
    code, told, _ = finish(start(*arguments, "--json"))
    content = json.loads(told)
    assert code == 1
    assert (content["cells"], content["done"]) == (2, 1)
    ((name, complaint),) = content["failed"].items()
    assert "sgpt" in name
    assert "groups is 100" in complaint
    assert "groups is 100" in (tmp_path / "cells" / name / "failure.txt").read_text()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to see processes")
def test_ctrl_c_leaves_no_process_behind(little_toml, tmp_path):
    process = start("study", "run", little_toml, *LONG, "--jobs", "2", "--out", tmp_path)
    wait_for(lambda: any(lines(folder / "metrics.jsonl") for folder in cells(tmp_path)), process)
    assert workers(tmp_path)
    process.send_signal(signal.SIGINT)
    code, _, complaint = finish(process)
    assert code == 130
    assert "same command again" in complaint
    assert "Traceback" not in complaint
    assert not workers(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to see processes")
def test_a_worker_that_dies_costs_its_cell_alone(little_toml, tmp_path):
    process = start("study", "run", little_toml, *LONG, "--only", "m=1", "--out", tmp_path)
    wait_for(lambda: any(lines(folder / "metrics.jsonl") for folder in cells(tmp_path)), process)
    (victim,) = workers(tmp_path)
    os.kill(victim, signal.SIGKILL)
    code, told, _ = finish(process)
    assert code == 1
    assert "killed by signal 9" in told
    assert len(finished(tmp_path)) == 1


def test_with_tune_the_table_is_run_with_the_settings_that_won_on_validation(little_toml, tmp_path):
    arguments = (little_toml, "--tune", "--only", "head-tune", "--jobs", "2", "--set", "training.rounds=2")
    content = result("study", "run", *arguments, "--out", tmp_path)
    (trials,) = content["trials"]
    assert trials["trials"] == len(trials["ranking"]) == 6
    best = trials["ranking"][0]["settings"]
    assert trials["winner"] == best
    assert content["cells"] == content["done"] == 2
    for folder in content["folders"]:
        config = load_config(Path(folder) / "config.toml")
        assert config.method_settings().learning_rate == best["learning_rate"]
        assert config.evaluation.split == "test"
        assert config.data.validation == 0
    judged = [load_config(folder / "config.toml") for folder in cells(tmp_path) if "-trial-" in folder.name]
    assert [config.evaluation.split for config in judged] == ["validation"] * 6
    assert {config.partition.domains_per_client for config in judged} == {2}  # the column to tune at
    shown = result("study", "show", little_toml, "--out", tmp_path)
    assert shown["tables"] == content["tables"]
