"""CIFAR-100: the official pickles are read, and nothing else is."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedprompt.data.cifar100 import read_split
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two small files as the official ones are: rows of R, G and B planes, fine labels, names in meta."""
    place = tmp_path / "cifar-100-python"
    place.mkdir()
    for split, count in (("train", 6), ("test", 4)):
        data = np.random.default_rng(count).integers(0, 256, (count, 3072), dtype=np.uint8)
        content = {b"data": data, b"fine_labels": [i % 3 for i in range(count)], b"coarse_labels": [0] * count}
        (place / split).write_bytes(pickle.dumps(content, protocol=2))
    (place / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", b"bear", b"can"]}, protocol=2))
    return place


def test_images_labels_and_names_are_those_of_the_files(folder):
    images, labels, names = read_split(folder, "train")
    raw = pickle.loads((folder / "train").read_bytes(), encoding="bytes")[b"data"]
    assert torch.equal(images.flatten(1), torch.from_numpy(raw))
    assert images.shape == (6, 3, 32, 32)
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert names == ["apple", "bear", "can"]


@pytest.mark.parametrize("above", [False, True])
def test_the_folder_or_the_one_above_it_can_be_named(folder, above):
    dataset = open_dataset(DataSettings(name="cifar100", root=folder.parent if above else folder))
    assert (len(dataset.train), len(dataset.test), dataset.domains) == (6, 4, ("all",))


def test_the_usual_place_is_searched(folder, monkeypatch):
    monkeypatch.setenv("FEDPROMPT_DATA", str(folder.parent))
    assert len(open_dataset(DataSettings(name="cifar100")).train) == 6


def test_a_missing_data_set_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROMPT_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="fedprompt data get cifar100"):
        open_dataset(DataSettings(name="cifar100"))


def test_a_missing_file_is_named(folder):
    (folder / "meta").unlink()
    with pytest.raises(UserError, match=r"'meta' is missing"):
        read_split(folder, "train")


class Trap:
    def __reduce__(self):
        return os.system, ("touch sprung",)


def test_a_pickle_that_wants_to_run_code_is_refused_and_runs_none(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "train").write_bytes(pickle.dumps({b"data": Trap()}))
    with pytest.raises(UserError, match="system, which no CIFAR-100 file needs"):
        read_split(folder, "train")
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps([1, 2])[:-3]])
def test_a_damaged_file_is_one_sentence(folder, content):
    (folder / "train").write_bytes(content)
    with pytest.raises(UserError, match="is not a CIFAR-100 pickle"):
        read_split(folder, "train")


def test_cifar10_is_recognised_as_something_else(folder):
    (folder / "train").write_bytes(pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [0]}, protocol=2))
    with pytest.raises(UserError, match="CIFAR-10"):
        read_split(folder, "train")


@pytest.mark.parametrize(("shape", "labels"), [((2, 3072), [0]), ((2, 100), [0, 1]), ((2, 3072), [0, 9])])
def test_rows_and_labels_that_do_not_fit_are_refused(folder, shape, labels):
    content = {b"data": np.zeros(shape, np.uint8), b"fine_labels": labels}
    (folder / "train").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UserError, match="train"):
        read_split(folder, "train")
