"""The deployment guide, done: a server, two organisations with their own images, and a third that joins later."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from flower.conftest import flower_processes

from fedprompt.federation.checkpoint import load_state
from fedprompt.federation.flower.processes import free_ports
from fedprompt.run_folder import read_json, read_records

pytestmark = pytest.mark.federation

PATIENCE = 900


def fedprompt(*arguments, code=0):
    """Run a command to its end and return what it printed."""
    command = [sys.executable, "-m", "fedprompt", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def begin(log, *arguments):
    command = [sys.executable, "-m", "fedprompt", *map(str, arguments)]
    with log.open("w") as file:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)


@pytest.fixture(scope="module")
def story(tiny_toml, tiny_weights, tmp_path_factory):
    """Everything that the guide tells, in its order."""
    home = tmp_path_factory.mktemp("story")
    images = tiny_toml.parent / "images"
    shutil.copytree(images / "night", home / "images-b")
    (home / "images-b" / "dark").rename(home / "images-b" / "black")  # another word for the same class
    shutil.copytree(images / "day", home / "images-c")
    server, found = home / "server", {"home": home}
    address = f"127.0.0.1:{free_ports(1)[0]}"
    changes = ("training.rounds=3", "evaluation.last=1", "evaluation.every=9", "federation.deadline=240")
    rounds = [part for change in changes for part in ("--set", change)]
    fedprompt("federation", "init", server, tiny_toml, "--classes", "dark,grey,light", "--address", address, *rounds)
    paper, own = ("--invitation", server / "invitation.toml"), ("--weights", tiny_weights)
    a = ("client", "init", home / "a", "--images", images / "day", "--name", "hospital-a", *paper, *own)
    found["a"] = json.loads(fedprompt(*a, "--json"))
    b = ("client", "init", home / "b", "--images", home / "images-b", "--name", "hospital-b", *paper, *own)
    found["unmapped"] = fedprompt(*b, code=2)
    found["b"] = json.loads(fedprompt(*b, "--map", "black=dark", "--json"))
    fedprompt("federation", "admit", server, home / "a" / "card.toml", home / "b" / "card.toml")
    serve, log = ("federation", "serve", server, "--host", "127.0.0.1"), home / "serve.log"
    processes = [begin(home / f"{name}.log", "client", "start", home / name) for name in ("a", "b")]
    first = begin(log, *serve)
    try:
        _wait([*processes, first], lambda: (server / "run" / "checkpoint.safetensors").is_file())
        first.send_signal(signal.SIGKILL)  # the nodes stay, and find the next one
        first.communicate(timeout=60)
        found["begun"] = fedprompt(*serve, code=2)
        processes.append(begin(log, *serve, "--resume", "--stay"))
        _wait(processes, lambda: (server / "run" / "summary.json").is_file())
        c = ("client", "init", home / "c", "--images", home / "images-c", "--name", "hospital-c", *paper, *own)
        fedprompt(*c)
        found["members"] = json.loads(
            fedprompt("federation", "admit", server, home / "c" / "card.toml", "--new-client", "--json")
        )
        adapting = begin(home / "adapt.log", "client", "adapt", home / "c", "--json")
        processes.append(adapting)
        found["welcome"] = json.loads(fedprompt("federation", "welcome", server, "hospital-c", "--json"))
        found["adapted"] = adapting.communicate(timeout=PATIENCE)[0]
    finally:
        for process in reversed([first, *processes]):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    found["left"] = flower_processes()
    return found


def _wait(processes, condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.2)


def test_the_federation_of_two_folders_trains_and_evaluates(story):
    records = read_records(story["home"] / "server" / "run" / "metrics.jsonl")
    assert [record["round"] for record in records] == [1, 2, 3]
    assert set(records[-1]["accuracy"]) == {"0", "1"}
    assert not any("missing" in record or "refused" in record for record in records)


def test_a_server_that_was_killed_goes_on_with_resume_and_not_without(story):
    assert "go on with --resume" in story["begun"]


def test_a_class_of_another_name_is_mapped_by_name_and_refused_otherwise(story):
    assert "'black' is no class of the federation" in story["unmapped"]
    assert "--map black=" in story["unmapped"]
    assert set(story["b"]["classes"]) == {"dark", "grey", "light"}


def test_the_server_knows_names_and_numbers_of_images_and_no_personal_tensor(story):
    run = story["home"] / "server" / "run"
    about = read_json(run / "about.json")
    assert about["names"] == ["hospital-a", "hospital-b"]
    assert about["images"] == [{"train": story["a"]["train"]}, {"train": story["b"]["train"]}]
    assert load_state(run / "checkpoint.safetensors").personal == {}


def test_a_third_organisation_gets_a_model_and_the_federation_stays_as_it_was(story):
    assert [member["trains"] for member in story["members"]] == [True, True, False]
    assert 0 <= story["welcome"]["accuracy"] <= 1
    assert json.loads(story["adapted"])["model"].endswith("model.safetensors")
    model = load_state(story["home"] / "c" / "model.safetensors").personal[0]
    shared = load_state(story["home"] / "server" / "run" / "checkpoint.safetensors").shared
    assert all(bool((model[name] == value).all()) for name, value in shared.items() if name in model)
    assert bool((model["head.weight"] != 0).any()), "its head was trained"


def test_every_member_predicts_with_its_own_model_and_needs_no_network(story):
    picture = next((story["home"] / "images-c" / "light").glob("*.png"))
    for name in ("a", "b", "c"):
        (row,) = json.loads(fedprompt("client", "predict", story["home"] / name, picture, "--json"))
        assert {found["class"] for found in row["classes"]} == {"dark", "grey", "light"}


@pytest.mark.parametrize("path", ["server/tls/server.key", "a/node.key", "b/node.key", "c/node.key"])
def test_private_keys_are_for_their_owner_alone_and_in_no_other_file(story, path):
    key = story["home"] / path
    assert os.stat(key).st_mode & 0o777 == 0o600
    secret = key.read_bytes().splitlines()[-3]  # the first lines of such files are alike
    others = (file for file in story["home"].rglob("*") if file.is_file() and file != key)
    assert not any(secret in file.read_bytes() for file in others)


def test_nothing_is_left_running(story):
    assert story["left"] == []
