"""The real CIFAR-100 and PACS, where they are at hand."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedprompt.data.partition import PartitionSettings, partition, partition_table
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack.py"


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    if place := os.environ.get("FEDPROMPT_DATA"):
        return Path(place)
    if not UNPACK.exists():
        pytest.skip("real data not found: set FEDPROMPT_DATA to a folder with cifar-100-python and PACS")
    place = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, UNPACK, place], check=True)
    return place


def need(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip(f"real data not found: there is no {folder.name} in FEDPROMPT_DATA")
    return folder


def test_cifar100_has_its_well_known_shape(real):
    dataset = open_dataset(DataSettings(name="cifar100", root=need(real / "cifar-100-python")))
    assert np.bincount(dataset.train.labels).tolist() == [500] * 100
    assert np.bincount(dataset.test.labels).tolist() == [100] * 100
    assert (dataset.classes[0], dataset.classes[99]) == ("apple", "worm")
    parts = partition(dataset, PartitionSettings(kind="shards", clients=100, classes_per_client=5), seed=0)
    assert max(row["classes"] for row in partition_table(dataset, parts)) == 5


def test_pacs_has_its_four_domains_and_seven_classes(real):
    dataset = open_dataset(DataSettings(name="pacs", root=need(real / "PACS")))
    assert dataset.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert len(dataset.classes) == 7
    assert len(dataset.train) + len(dataset.test) == 9991
    assert dataset.test.images(np.arange(0, len(dataset.test), 100), 64).float().std() > 30
