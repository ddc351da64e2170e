"""State on disk: whole or not at all, and never believed when damaged."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedprompt.errors import UserError
from fedprompt.federation import checkpoint
from fedprompt.federation.checkpoint import FederationState, load_state, save_state, write_atomically


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(0)
    return FederationState(
        round=7,
        shared={"prompt": torch.randn(2, 3, generator=generator), "half": torch.randn(4, generator=generator).half()},
        server={"momentum": torch.arange(5)},
        personal={2: {"head.weight": torch.randn(3, 4, generator=generator)}, 11: {"head.weight": torch.zeros(3, 4)}},
        participations={2: 5, 11: 1},
    )


@pytest.fixture
def saved(state, tmp_path) -> Path:
    save_state(tmp_path / "state.safetensors", state, "mark")
    return tmp_path / "state.safetensors"


def same(a, b):
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def test_state_comes_back_as_it_was(saved, state):
    loaded = load_state(saved, "mark")
    assert (loaded.round, loaded.participations) == (7, {2: 5, 11: 1})
    assert same(loaded.shared, state.shared)
    assert same(loaded.server, state.server)
    assert loaded.personal.keys() == {2, 11}
    for client, tensors in state.personal.items():
        assert same(loaded.personal[client], tensors)


def test_the_same_state_gives_the_same_bytes(saved, state, tmp_path):
    save_state(tmp_path / "again.safetensors", load_state(saved), "mark")
    assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()


def test_a_view_of_a_larger_tensor_is_saved_alone(tmp_path):
    large = torch.arange(1000.0).reshape(10, 100)
    save_state(tmp_path / "state", FederationState(0, {"part": large.T[3]}, {}), "mark")
    assert torch.equal(load_state(tmp_path / "state").shared["part"], large.T[3])
    assert (tmp_path / "state").stat().st_size < 1000


def damaged(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    if kind == "truncated":
        content = content[:-9]
    elif kind == "cut in the header":
        content = content[:40]
    elif kind == "empty":
        content = bytearray()
    elif kind == "a flipped bit in a tensor":
        content[8 + header + 5] ^= 1
    elif kind == "a changed round":
        place = content.index(b'round\\": 7')
        content[place : place + 10] = b'round\\": 8'
    elif kind == "a pickle":
        content = bytearray(b"\x80\x04K\x01.")
    path.write_bytes(content)


KINDS = ["truncated", "cut in the header", "empty", "a flipped bit in a tensor", "a changed round", "a pickle"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused_in_one_sentence(saved, kind):
    damaged(saved, kind)
    with pytest.raises(UserError, match="damaged") as caught:
        load_state(saved, "mark")
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_byte_of_the_tensors_is_guarded(saved):
    whole = saved.read_bytes()
    first = 8 + int.from_bytes(whole[:8], "little")
    for place in range(first, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 0x10
        saved.write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            load_state(saved, "mark")


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    save_file({"shared/prompt": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="damaged"):
        load_state(tmp_path / "other.safetensors", "mark")
    about = json.dumps([1, 2])
    save_file({"x": torch.ones(2)}, tmp_path / "odd.safetensors", {"fedprompt": about})
    with pytest.raises(UserError, match="damaged"):
        load_state(tmp_path / "odd.safetensors", "mark")


def test_a_checkpoint_of_other_settings_is_refused(saved):
    with pytest.raises(UserError, match="other settings"):
        load_state(saved, "another mark")
    assert load_state(saved).round == 7


def test_a_missing_checkpoint_and_a_folder_in_its_place_are_refused(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UserError, match="no checkpoint"):
            load_state(path)


def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(saved, monkeypatch):
    before = saved.read_bytes()

    def broken(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", broken)
    with pytest.raises(UserError, match="no disk space"):
        write_atomically(saved, b"new")
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


LIMITED = """
import resource, signal, sys
from pathlib import Path
import torch
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import FederationState, save_state

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_state(Path(sys.argv[1]), FederationState(8, {"prompt": torch.ones(4096)}, {}), "mark")
except UserError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no file size limits here")
def test_a_real_full_disk_leaves_the_old_checkpoint_usable(saved):
    """The operating system itself cuts the write short, in the middle of the file."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(saved)], capture_output=True, text=True, check=True)
    assert "no disk space" in done.stdout
    assert load_state(saved, "mark").round == 7
    assert os.listdir(saved.parent) == [saved.name]


WRITER = """
import itertools, sys
from pathlib import Path
import torch
from fedprompt.federation.checkpoint import FederationState, save_state
for number in itertools.count(1):
    state = FederationState(number, {"prompt": torch.full((300_000,), float(number))}, {})
    save_state(Path(sys.argv[1]), state, "mark")
    print(number, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "state.safetensors"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        last = 0
        for pause in (0.0, 0.003, 0.007):
            last = int(writer.stdout.readline())
            try:
                writer.wait(pause)
            except subprocess.TimeoutExpired:
                state = load_state(path, "mark")  # read while it is being written
                assert torch.equal(state.shared["prompt"], torch.full((300_000,), float(state.round)))
        writer.kill()
    state = load_state(path, "mark")
    assert state.round >= last
    assert torch.equal(state.shared["prompt"], torch.full((300_000,), float(state.round)))
