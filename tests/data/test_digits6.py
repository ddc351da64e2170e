"""digits6: disjoint digits, six styles that differ, the same pictures every time."""

import numpy as np
import pytest
import torch

from fedprompt.data import digits6
from fedprompt.data.dataset import Dataset
from fedprompt.data.digits6 import open_digits6
from fedprompt.data.digits6_styles import STYLES
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return open_digits6(DataSettings())


def everything(dataset: Dataset) -> torch.Tensor:
    return dataset.train.images(np.arange(len(dataset.train)), 32)


def test_every_digit_is_drawn_in_every_style(digits):
    assert (len(digits.train), len(digits.test)) == (7182, 3600)
    assert digits.domains == ("ink", "chalk", "blueprint", "outline", "photo", "noise")
    assert np.bincount(digits.train.domains).tolist() == [1197] * 6
    for domain in range(1, 6):
        assert np.array_equal(digits.train.labels[digits.train.domains == domain], digits.train.labels[:1197])


def test_no_digit_is_in_both_training_and_test(monkeypatch):
    def numbered(pixels: torch.Tensor, style: str) -> torch.Tensor:
        """Pictures whose two first pixels spell the digit's number."""
        number = torch.arange(len(pixels))
        images = torch.zeros(len(pixels), 3, 32, 32, dtype=torch.uint8)
        images[:, 0, 0, 0], images[:, 0, 0, 1] = number // 256, number % 256
        return images

    monkeypatch.setattr(digits6, "_render", numbered)
    monkeypatch.setattr(digits6, "_drawn", digits6._drawn.__wrapped__)
    dataset = digits6.open_digits6(DataSettings())
    train, test = (
        {int(image[0, 0, 0]) * 256 + int(image[0, 0, 1]) for image in split.images(np.arange(len(split)), 32)}
        for split in (dataset.train, dataset.test)
    )
    assert (len(train), len(test)) == (1197, 600)
    assert not train & test


def test_classes_have_their_share_in_both_splits(digits):
    train, test = np.bincount(digits.train.labels), np.bincount(digits.test.labels)
    assert np.allclose(train / train.sum(), test / test.sum(), atol=0.002)


def test_two_openings_give_the_same_pixels_whatever_the_data_seed(digits):
    digits6._drawn.cache_clear()
    assert torch.equal(everything(digits), everything(open_digits6(DataSettings(seed=99))))


def test_every_picture_has_its_own_chance_whatever_is_drawn_beside_it():
    few, many = digits6._draws("ink", 3), digits6._draws("ink", 9)
    assert torch.equal(few.normal, many.normal[:3])
    assert len(np.unique(many.uniform.numpy(), axis=0)) == 9
    assert not torch.equal(few.normal, digits6._draws("chalk", 3).normal)


def test_no_two_pictures_are_the_same(digits):
    flat = everything(digits).flatten(1).numpy()
    assert len(np.unique(flat, axis=0)) == len(flat)


def test_styles_differ_more_than_pictures_of_one_style(digits):
    images = everything(digits).float().mean((2, 3))  # the mean colour of each picture
    means = torch.stack([images[torch.from_numpy(digits.train.domains == d)].mean(0) for d in range(len(STYLES))])
    apart = torch.cdist(means, means) + 1e3 * torch.eye(len(STYLES))
    assert apart.min() > 10  # grey levels; photo and noise are both of middling brightness


def test_digits_stand_out_from_their_ground_in_every_style(digits):
    for domain, name in enumerate(digits.domains):
        chosen = torch.from_numpy(digits.train.domains == domain)
        images = everything(digits)[chosen].float()
        spread = images.mean(1).flatten(1).std(1)  # of brightness within a picture
        assert spread.median() > 15, name


def test_subsampling_is_per_domain_and_follows_the_data_seed():
    first = open_dataset(DataSettings(train_per_domain=50, test_per_domain=20))
    again = open_dataset(DataSettings(train_per_domain=50, test_per_domain=20))
    other = open_dataset(DataSettings(train_per_domain=50, test_per_domain=20, seed=1))
    assert np.bincount(first.train.domains).tolist() == [50] * 6
    assert np.bincount(first.test.domains).tolist() == [20] * 6
    assert torch.equal(everything(first), everything(again))
    assert not torch.equal(everything(first), everything(other))
    by_domain = first.train.labels.reshape(6, 50)
    assert not np.array_equal(by_domain[0], by_domain[1])  # drawn independently in each domain


def test_stratified_subsampling_gives_every_class_its_share():
    dataset = open_dataset(DataSettings(train_per_domain=50, subsample="stratified"))
    for domain in range(6):
        counts = np.bincount(dataset.train.labels[dataset.train.domains == domain], minlength=10)
        assert counts.min() >= 4
        assert counts.max() <= 6


def test_asking_for_more_than_there_is_gives_all_there_is():
    assert len(open_dataset(DataSettings(train_per_domain=10**6)).train) == 7182
