"""Frozen features on disk are those in memory, are found again, and are never used when damaged."""

import json
import os
import time

import numpy as np
import pytest
import torch

from fedprompt.backbone import cache
from fedprompt.backbone.cache import ClientData, Needs
from fedprompt.backbone.feature_store import FeatureStore, default_folder

NEEDS = Needs(cls=True, layers=2)
IMAGES = 9


@pytest.fixture
def pixels():
    return torch.randint(0, 256, (IMAGES, 3, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "features", 10e6)


@pytest.fixture
def computed(monkeypatch):
    """How many images went through the frozen backbone."""
    counts, compute = [], cache.frozen_features

    def counting(backbone, pixels, needs):
        counts.append(len(pixels))
        return compute(backbone, pixels, needs)

    monkeypatch.setattr(cache, "frozen_features", counting)
    return counts


def data_on(store, backbone, pixels):
    return ClientData(backbone, lambda: pixels, torch.zeros(len(pixels), dtype=torch.long), keep=False, store=store)


def read(data, index=(3, 0, 8)):
    batch = data.batch(torch.tensor(index), NEEDS)
    return batch.cls, batch.features


def entries(store):
    return sorted(entry for entry in store.folder.iterdir() if entry.is_dir())


def test_features_on_disk_are_exactly_those_in_memory(store, tiny_backbone, pixels):
    memory = ClientData(tiny_backbone, lambda: pixels, torch.zeros(IMAGES, dtype=torch.long))
    for kept, stored in zip(read(memory), read(data_on(store, tiny_backbone, pixels)), strict=True):
        assert torch.equal(kept, stored)


def test_later_runs_find_them_again_and_other_images_or_needs_do_not(store, tiny_backbone, pixels, computed):
    read(data_on(store, tiny_backbone, pixels))
    assert computed == [IMAGES]
    read(data_on(store, tiny_backbone, pixels.clone()))
    assert computed == [IMAGES]
    changed = pixels.clone()
    changed[0, 0, 0, 0] ^= 1
    read(data_on(store, tiny_backbone, changed))
    data_on(store, tiny_backbone, pixels).batch(torch.tensor([0]), Needs(layers=1))
    assert computed == [IMAGES] * 3
    assert len(entries(store)) == 3


def spoil_row(entry):
    array = np.load(entry / "features.npy", mmap_mode="r+")
    array[3, 0, 0, 0] += 1
    array.flush()


def cut_short(entry):
    path = entry / "features.npy"
    os.truncate(path, path.stat().st_size - 64)


def claim_other_images(entry):
    about = json.loads((entry / "about.json").read_text())
    (entry / "about.json").write_text(json.dumps(about | {"images": "0" * 64}))


def other_shape(entry):
    np.save(entry / "cls.npy", np.zeros((IMAGES, 5), dtype=np.float32))


def pickled(entry):
    np.save(entry / "cls.npy", np.array([{}] * IMAGES), allow_pickle=True)


def lose_a_file(entry):
    (entry / "check.npy").unlink()


@pytest.mark.parametrize("harm", [spoil_row, cut_short, claim_other_images, other_shape, pickled, lose_a_file])
def test_a_damaged_or_foreign_entry_is_made_anew_and_never_used(store, tiny_backbone, pixels, computed, harm):
    right = read(data_on(store, tiny_backbone, pixels))
    harm(entries(store)[0])
    again = data_on(store, tiny_backbone, pixels)
    for value, expected in zip(read(again), right, strict=True):
        assert torch.equal(value, expected)
    assert computed == [IMAGES, IMAGES]
    assert len(entries(store)) == 1
    read(data_on(store, tiny_backbone, pixels))
    assert computed == [IMAGES, IMAGES]


def test_without_room_they_are_computed_anew_for_each_batch(tmp_path, tiny_backbone, pixels, computed):
    store = FeatureStore(tmp_path / "features", 100)
    data = data_on(store, tiny_backbone, pixels)
    memory = ClientData(tiny_backbone, lambda: pixels, torch.zeros(IMAGES, dtype=torch.long))
    for kept, anew in zip(read(memory), read(data), strict=True):
        assert torch.allclose(kept, anew, atol=1e-5)
    read(data)
    assert computed == [IMAGES, 3, 3]
    assert not entries(store)


def test_the_entry_that_was_not_used_for_longest_goes_first(tmp_path, tiny_backbone, pixels):
    one = NEEDS.bytes_per_image(tiny_backbone) * IMAGES
    store = FeatureStore(tmp_path / "features", 2.5 * one)
    read(data_on(store, tiny_backbone, pixels))
    first = entries(store)[0]
    read(data_on(store, tiny_backbone, 255 - pixels))
    second = next(entry for entry in entries(store) if entry != first)
    for entry, age in ((first, 100), (second, 50)):
        os.utime(entry, (time.time() - age,) * 2)
    read(data_on(store, tiny_backbone, pixels))  # uses the first again
    read(data_on(store, tiny_backbone, pixels // 2))
    assert first in entries(store)
    assert second not in entries(store)


def test_what_a_killed_process_began_is_not_used_and_goes_after_a_day(store, tiny_backbone, pixels):
    begun = store.folder / ".begun-x"
    begun.mkdir(parents=True)
    (begun / "about.json").write_text("{}")
    read(data_on(store, tiny_backbone, pixels))
    assert begun in entries(store)
    os.utime(begun, (time.time() - 100_000,) * 2)
    read(data_on(store, tiny_backbone, 255 - pixels))
    assert begun not in entries(store)
    assert len(entries(store)) == 2


def test_bfloat16_survives_the_disk(store):
    row = {"x": ((4,), torch.bfloat16)}
    values = torch.randn(5, 4).bfloat16()
    store.build({"a": 1}, row, 5, iter([{"x": values[:3]}, {"x": values[3:]}]))
    assert torch.equal(store.get({"a": 1}, row, 5).rows(torch.tensor([4, 0]))["x"], values[[4, 0]])


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPROMPT_CACHE", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.delenv("FEDPROMPT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "fedprompt" / "features"
