"""A user's own image folders: what is found, how it is split, and what is said when something is wrong."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.data.dataset import Dataset, FileSplit
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError


def fill(folder: Path, count: int, suffix: str = ".png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (6, 5), (i, 0, 0)).save(folder / f"{i:03}{suffix}")


def names(split: FileSplit, root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in split.paths]


def opened(name: str, root: Path, **settings) -> Dataset:
    return open_dataset(DataSettings(name=name, root=root, **settings))


@pytest.fixture
def domains(tmp_path) -> Path:
    for domain in ("sketch", "photo"):
        fill(tmp_path / domain / "dog", 10)
        fill(tmp_path / domain / "cat", 20)
    fill(tmp_path / "photo" / "owl", 2)
    return tmp_path


def test_folders_name_classes_and_domains_in_order(domains):
    dataset = opened("domains", domains)
    assert dataset.classes == ("cat", "dog", "owl")
    assert dataset.domains == ("photo", "sketch")
    for split in (dataset.train, dataset.test):
        for path, label, domain in zip(split.paths, split.labels, split.domains, strict=True):
            assert path.parent.name == dataset.classes[label]
            assert path.parent.parent.name == dataset.domains[domain]


def test_the_cut_takes_the_fraction_of_every_class_of_every_domain(domains):
    dataset = opened("domains", domains, test_fraction=0.3)
    assert not set(dataset.train.paths) & set(dataset.test.paths)
    assert len(dataset.train) + len(dataset.test) == 62
    groups = dataset.test.domains * 3 + dataset.test.labels
    assert np.bincount(groups).tolist() == [6, 3, 1, 6, 3]


def test_the_cut_follows_the_data_seed(domains):
    first, again, other = (names(opened("domains", domains, seed=seed).test, domains) for seed in (0, 0, 1))
    assert first == again != other


def test_a_new_class_leaves_the_cut_of_the_others_alone(domains):
    before = names(opened("domains", domains).test, domains)
    fill(domains / "photo" / "ant", 5)
    after = names(opened("domains", domains).test, domains)
    assert [name for name in after if "ant" not in name] == before


@pytest.mark.parametrize("test", ["test", "val"])
def test_own_train_and_test_folders_are_respected(tmp_path, test):
    fill(tmp_path / "train" / "cat", 4)
    fill(tmp_path / "train" / "dog", 3)
    fill(tmp_path / test / "cat", 2)
    dataset = opened("folder", tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.domains) == (7, 2, ("all",))
    assert {path.parts[-3] for path in dataset.test.paths} == {test}


def test_a_class_may_be_called_train(tmp_path):
    fill(tmp_path / "train", 4)
    fill(tmp_path / "bus", 4)
    assert opened("folder", tmp_path).classes == ("bus", "train")


def test_hidden_files_and_folders_are_no_data(tmp_path):
    fill(tmp_path / "cat", 4)
    fill(tmp_path / ".cache", 4)
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"")
    assert opened("folder", tmp_path).classes == ("cat",)


def test_suffixes_in_capitals_count(tmp_path):
    fill(tmp_path / "cat", 3, ".PNG")
    assert len(opened("folder", tmp_path).train) == 2


def test_files_that_are_no_images_are_reported(tmp_path):
    fill(tmp_path / "cat", 4)
    (tmp_path / "cat" / "notes.txt").write_text("hello")
    with pytest.warns(UserWarning, match=r"1 files are not images and are not used: 1 x \.txt"):
        opened("folder", tmp_path)


def test_an_empty_class_is_named(domains):
    (domains / "photo" / "yak").mkdir()
    with pytest.raises(UserError, match=r"yak has no images"):
        opened("domains", domains)


def test_an_empty_domain_is_named(domains):
    (domains / "oil").mkdir()
    with pytest.raises(UserError, match=r"oil has no class folders"):
        opened("domains", domains)


def test_the_right_name_is_said_for_the_wrong_depth(tmp_path):
    domains = tmp_path / "mine"
    fill(domains / "photo" / "cat", 2)
    with pytest.raises(UserError, match="use the data set 'domains'"):
        opened("folder", domains)
    with pytest.raises(UserError, match="use the data set 'folder'"):
        opened("domains", domains / "photo")
    with pytest.raises(UserError, match=r"set data\.root further down"):
        opened("folder", tmp_path)
    with pytest.raises(UserError, match=r"lie in .* itself"):
        opened("folder", domains / "photo" / "cat")


def test_no_images_and_no_folder_are_one_sentence_each(tmp_path):
    with pytest.raises(UserError, match="no images under"):
        opened("folder", tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        opened("folder", tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a folder"):
        opened("folder", tmp_path / "file")
    with pytest.raises(UserError, match=r"needs data\.root"):
        open_dataset(DataSettings(name="folder"))


def test_single_images_leave_nothing_to_test_on(tmp_path):
    fill(tmp_path / "cat", 1)
    with pytest.raises(UserError, match="single image"):
        opened("folder", tmp_path)


def test_broken_images_stop_the_reading_unless_skipping_is_asked_for(domains):
    broken = [domains / "photo" / "cat" / "003.png", domains / "sketch" / "dog" / "001.png"]
    for path in broken:
        path.write_bytes(path.read_bytes()[:40])
    dataset = opened("domains", domains)
    assert dataset.unreadable == ()
    everything = FileSplit([*dataset.train.paths, *dataset.test.paths], np.zeros(62), np.zeros(62))
    with pytest.raises(UserError, match=r'2 image files cannot be read.*"skip"'):
        everything.images(np.arange(62), 8)

    with pytest.warns(UserWarning, match="2 image files cannot be read.*left out"):
        dataset = opened("domains", domains, unreadable="skip")
    assert dataset.unreadable == tuple(map(str, broken))
    assert len(dataset.train) + len(dataset.test) == 60
    assert dataset.train.images(np.arange(len(dataset.train)), 8).shape[0] == len(dataset.train)


def test_a_class_with_only_broken_images_is_an_error_even_when_skipping(domains):
    for path in (domains / "photo" / "owl").iterdir():
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="2 image files"), pytest.raises(UserError, match="'owl'"):
        opened("domains", domains, unreadable="skip")


def test_pacs_is_a_tree_of_domains_in_its_usual_place(domains, monkeypatch):
    monkeypatch.setenv("FEDPROMPT_DATA", str(domains.parent))
    domains.rename(domains.parent / "PACS")
    try:
        dataset = open_dataset(DataSettings(name="pacs"))
        assert (dataset.name, dataset.domains) == ("pacs", ("photo", "sketch"))
    finally:
        (domains.parent / "PACS").rename(domains)
