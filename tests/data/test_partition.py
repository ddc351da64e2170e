"""Partitions: no image twice, training and test alike, the same for the same seed, one sentence where impossible."""

import numpy as np
import pytest
import torch

from fedprompt.data.dataset import ArraySplit, Dataset
from fedprompt.data.partition import ClientIndices, PartitionSettings, partition, partition_table
from fedprompt.data.partition_figure import partition_figure
from fedprompt.errors import UserError


def fake(classes: int = 10, domains: int = 6, train: int = 40, test: int = 20) -> Dataset:
    """So many images of each class of each domain, in mixed order."""

    def split(each: int, seed: int) -> ArraySplit:
        label, domain = np.meshgrid(np.arange(classes), np.arange(domains))
        order = np.random.default_rng(seed).permutation(classes * domains * each)
        labels, domain_ids = (np.repeat(axis.ravel(), each)[order] for axis in (label, domain))
        return ArraySplit(torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8), labels, domain_ids)

    names = tuple(f"class {i}" for i in range(classes)), tuple(f"domain {i}" for i in range(domains))
    return Dataset("fake", *names, split(train, 0), split(test, 1))


KINDS = [
    PartitionSettings(kind="domains", clients=6, domains_per_client=3),
    PartitionSettings(kind="domains", clients=6, domains_per_client=2, assign="random"),
    PartitionSettings(kind="domains", clients=13, domains_per_client=4),
    PartitionSettings(kind="shards", clients=20, classes_per_client=3),
    PartitionSettings(kind="sgpt_uniform", clients=20, classes_per_client=3),
    PartitionSettings(kind="dirichlet", clients=20, alpha=0.3),
    PartitionSettings(kind="iid", clients=7),
]
kinds = pytest.mark.parametrize("settings", KINDS, ids=lambda s: f"{s.kind}-{s.clients}")


def same(first: list[ClientIndices], second: list[ClientIndices]) -> bool:
    return all(
        np.array_equal(getattr(a, part), getattr(b, part))
        for a, b in zip(first, second, strict=True)
        for part in ("train", "validation", "test")
    )


@kinds
def test_no_image_goes_to_two_places(settings):
    data = fake()
    parts = partition(data, settings, seed=0, validation=0.2)
    training = np.concatenate([np.concatenate([part.train, part.validation]) for part in parts])
    testing = np.concatenate([part.test for part in parts])
    for used, split in ((training, data.train), (testing, data.test)):
        assert used.dtype == np.int64
        assert len(np.unique(used)) == len(used)
        assert used.max() < len(split)
    if settings.kind != "sgpt_uniform":  # which leaves a few to nobody, as the official code does
        assert (len(training), len(testing)) == (len(data.train), len(data.test))


@kinds
def test_the_seed_and_nothing_else_decides(settings):
    data = fake()
    assert same(partition(data, settings, 3), partition(data, settings, 3))
    assert not same(partition(data, settings, 3), partition(data, settings, 4))


@kinds
def test_training_and_test_of_a_client_have_the_same_mixture(settings):
    data = fake(train=200, test=100)
    for part in partition(data, settings, seed=0):
        for names, attribute in ((data.classes, "labels"), (data.domains, "domains")):
            train = np.bincount(getattr(data.train, attribute)[part.train], minlength=len(names)) / len(part.train)
            test = np.bincount(getattr(data.test, attribute)[part.test], minlength=len(names)) / len(part.test)
            assert np.abs(train - test).sum() < 0.35  # chance in the cuts; another client would be at 1 to 2


@kinds
def test_validation_takes_its_fraction_of_every_class_and_leaves_the_test_alone(settings):
    data = fake()
    plain, cut = partition(data, settings, 0), partition(data, settings, 0, validation=0.25)
    for before, after in zip(plain, cut, strict=True):
        assert len(before.validation) == 0
        assert np.array_equal(before.test, after.test)
        assert np.array_equal(before.train, np.sort(np.concatenate([after.train, after.validation])))
        assert len(after.validation) == round(0.25 * len(before.train))
        groups = data.train.labels * 6 + data.train.domains
        whole = np.bincount(groups[before.train], minlength=60)
        assert np.abs(np.bincount(groups[after.validation], minlength=60) - whole / 4).max() <= 1


@pytest.mark.parametrize("m", range(1, 7))
def test_each_of_six_clients_has_m_domains_and_as_many_images_whatever_m(m):
    data = fake()
    parts = partition(data, PartitionSettings(clients=6, domains_per_client=m), seed=0)
    for client, part in enumerate(parts):
        assert set(data.train.domains[part.train]) == {(client + step) % 6 for step in range(m)}
        assert set(data.test.domains[part.test]) == set(data.train.domains[part.train])
        assert abs(len(part.train) - 400) <= m
    owners = np.bincount([d for part in parts for d in np.unique(data.train.domains[part.train])])
    assert owners.tolist() == [m] * 6


def test_random_assignment_is_still_m_owners_a_domain():
    data = fake()
    settings = PartitionSettings(clients=6, domains_per_client=2, assign="random")
    tables = [[tuple(np.unique(data.train.domains[p.train])) for p in partition(data, settings, s)] for s in range(3)]
    assert len({str(table) for table in tables}) > 1
    for table in tables:
        assert np.bincount([domain for own in table for domain in own]).tolist() == [2] * 6


def test_fewer_clients_than_domains_leave_a_domain_unused():
    data = fake()
    parts = partition(data, PartitionSettings(clients=2, domains_per_client=1), seed=0)
    assert [set(data.train.domains[part.train]) for part in parts] == [{0}, {1}]
    assert [len(part.train) for part in parts] == [400, 400]


@pytest.mark.parametrize("s", [5, 10, 20, 50])
def test_shards_give_the_papers_cifar_numbers(s):
    data = fake(classes=100, domains=1, train=500, test=100)
    parts = partition(data, PartitionSettings(kind="shards", clients=100, classes_per_client=s), seed=0)
    assert {len(part.train) for part in parts} == {500}
    assert {len(part.test) for part in parts} == {100}
    for part in parts:
        assert len(np.unique(data.train.labels[part.train])) <= s
        train = np.bincount(data.train.labels[part.train], minlength=100)
        assert np.array_equal(train, 5 * np.bincount(data.test.labels[part.test], minlength=100))


def test_shards_that_do_not_divide_differ_by_one_image_a_shard():
    data = fake(classes=100, domains=1, train=500, test=100)
    parts = partition(data, PartitionSettings(kind="shards", clients=100, classes_per_client=15), seed=0)
    assert sum(len(part.train) for part in parts) == 50_000
    assert all(abs(len(part.train) - 500) <= 15 for part in parts)
    assert min(len(np.unique(data.train.labels[part.train])) for part in parts) >= 10


def test_sgpt_uniform_gives_about_the_official_sizes():
    data = fake(classes=100, domains=1, train=500, test=100)
    parts = partition(data, PartitionSettings(kind="sgpt_uniform", clients=100, classes_per_client=10), seed=0)
    assert np.mean([len(part.train) for part in parts]) == pytest.approx(495, abs=2)
    assert np.mean([len(part.test) for part in parts]) == pytest.approx(95, abs=2)
    assert max(len(np.unique(data.train.labels[part.train])) for part in parts) == 10


@pytest.mark.parametrize("alpha", [1e-8, 1e-3, 0.05, 1.0, 1e6])
@pytest.mark.parametrize("clients", [2, 30, 100])
def test_dirichlet_ends_and_keeps_the_minimum_for_every_alpha(alpha, clients):
    data = fake()
    settings = PartitionSettings(kind="dirichlet", clients=clients, alpha=alpha, min_images=12)
    parts = partition(data, settings, seed=0)
    assert min(len(part.train) for part in parts) >= 12
    assert min(len(part.test) for part in parts) >= 1
    for part in parts:
        assert set(data.test.labels[part.test]) <= set(data.train.labels[part.train])


def test_dirichlet_with_exactly_enough_images_gives_everyone_the_minimum():
    data = fake()
    parts = partition(data, PartitionSettings(kind="dirichlet", clients=24, alpha=0.1, min_images=100), seed=0)
    assert {len(part.train) for part in parts} == {100}


def test_small_alpha_means_fewer_classes_than_large():
    data = fake()

    def classes(alpha: float) -> float:
        settings = PartitionSettings(kind="dirichlet", clients=10, alpha=alpha, min_images=1)
        return np.mean([row["classes"] for row in partition_table(data, partition(data, settings, 0))])

    assert classes(0.05) < 5 < 9.5 < classes(100.0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (PartitionSettings(domains_per_client=7), "domains_per_client is 7, but fake has 6 domains"),
        (PartitionSettings(kind="shards", clients=7, classes_per_client=3), "7 x 3 = 21 is not"),
        (PartitionSettings(kind="sgpt_uniform", clients=7, classes_per_client=3), "7 x 3 = 21 is not"),
        (PartitionSettings(kind="shards", clients=100, classes_per_client=50), "into 500 pieces"),
        (PartitionSettings(kind="iid", clients=5000), "5000 clients cannot share the 2400 training images"),
        (PartitionSettings(kind="iid", clients=1300), "1300 clients cannot share the 1200 test images"),
        (PartitionSettings(kind="domains", clients=1200, domains_per_client=6), "for 1200 clients"),
        (PartitionSettings(kind="dirichlet", clients=100, min_images=25), "need 2500 training images"),
    ],
)
def test_the_impossible_is_one_sentence(settings, says):
    with pytest.raises(UserError, match=says) as caught:
        partition(fake(), settings, seed=0)
    assert "\n" not in str(caught.value)


def test_dirichlet_without_enough_test_images_of_a_clients_classes_says_so():
    # Nine clients would live on class 0, which has four test images.
    labels, tests = np.repeat([0, 1], [90, 10]), np.repeat([0, 1], [4, 60])
    train, test = (
        ArraySplit(torch.zeros(len(own), 3, 1, 1, dtype=torch.uint8), own, np.zeros(len(own)))
        for own in (labels, tests)
    )
    data = Dataset("lopsided", ("a", "b"), ("all",), train, test)
    with pytest.raises(UserError, match="too few test images for client"):
        partition(data, PartitionSettings(kind="dirichlet", clients=10, alpha=1e-8, min_images=10), seed=0)


def test_a_client_with_one_image_cannot_have_validation():
    data = fake(classes=2, domains=1, train=3, test=3)
    with pytest.raises(UserError, match="validation"):
        partition(data, PartitionSettings(kind="iid", clients=6), seed=0, validation=0.5)


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="extra"):
        PartitionSettings(klients=3)


def test_the_table_counts_what_the_clients_hold():
    data = fake()
    parts = partition(data, PartitionSettings(domains_per_client=2), seed=0, validation=0.1)
    row = partition_table(data, parts)[5]
    assert row == {
        "client": 5,
        "train": 360,
        "validation": 40,
        "test": 200,
        "domains": "domain 0, domain 5",
        "classes": 10,
    }


@pytest.mark.parametrize("clients", [1, 6, 100])
def test_the_picture_can_be_drawn_for_few_and_many_clients(tmp_path, clients):
    data = fake()
    parts = partition(data, PartitionSettings(kind="iid", clients=clients), seed=0)
    partition_figure(data, parts).savefig(tmp_path / "a.png", dpi=30)
    assert (tmp_path / "a.png").stat().st_size > 1000
