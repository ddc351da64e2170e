"""DomainNet-10: ten classes in FedBN's order, split by the official lists."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.data.domainnet10 import CLASSES, DOMAINS
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError


@pytest.fixture
def root(tmp_path) -> Path:
    """Three images of each class and of an eleventh one in every domain; two are listed for training, one for test."""
    for domain in DOMAINS:
        lists: dict[str, list[str]] = {"train": [], "test": []}
        for number, label in enumerate([*CLASSES, "aardvark"]):
            (tmp_path / domain / label).mkdir(parents=True)
            for i, split in enumerate(("train", "train", "test")):
                name = f"{domain}/{label}/{domain}_{number:03}_{i:06}.jpg"
                Image.new("RGB", (8, 8), (number, i, 0)).save(tmp_path / name)
                lists[split].append(f"{name} {number * 30}")
        for split, lines in lists.items():
            (tmp_path / f"{domain}_{split}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def opened(root: Path, **settings):
    return open_dataset(DataSettings(name="domainnet10", root=root, **settings))


def test_the_classes_are_fedbns_in_its_order():
    assert " ".join(CLASSES) == "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"


def test_lists_decide_the_split_and_other_classes_are_left_out(root):
    dataset = opened(root)
    assert dataset.classes == CLASSES
    assert dataset.domains == DOMAINS
    assert (len(dataset.train), len(dataset.test)) == (120, 60)
    assert {path.stem[-1] for path in dataset.train.paths} == {"0", "1"}
    assert {path.stem[-1] for path in dataset.test.paths} == {"2"}


def test_the_class_name_and_not_the_lists_number_is_the_label(root):
    test = opened(root).test
    for path, label, domain in zip(test.paths, test.labels, test.domains, strict=True):
        assert (path.parent.parent.name, path.parent.name) == (DOMAINS[domain], CLASSES[label])


def test_each_domain_can_be_cut_to_the_same_size(root):
    assert np.bincount(opened(root, train_per_domain=15).train.domains).tolist() == [15] * 6


def test_a_missing_list_is_named(root):
    (root / "real_test.txt").unlink()
    with pytest.raises(UserError, match=r"real_test\.txt is missing"):
        opened(root)


def test_missing_images_are_counted_when_opened(root):
    for path in (root / "quickdraw" / "zebra").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="3 of 180 listed images are not in"):
        opened(root)


def test_missing_images_are_reported_when_skipping(root):
    (root / "quickdraw" / "zebra" / "quickdraw_009_000000.jpg").unlink()
    with pytest.warns(UserWarning, match="1 image file cannot be read"):
        dataset = opened(root, unreadable="skip")
    assert len(dataset.train) == 119
    assert len(dataset.unreadable) == 1


@pytest.mark.parametrize("line", ["zebra.jpg 3", "real/zebra/a.jpg", "../zebra/a.jpg 3"])
def test_a_line_that_is_not_understood_is_shown(root, line):
    with (root / "real_train.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"Line 23 of .*real_train\.txt"):
        opened(root)
