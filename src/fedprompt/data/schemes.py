"""The rules by which images are dealt out: even cuts among owners, shards of classes, SGPT's and Dirichlet's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprompt.data.dataset import Dataset, Indices
from fedprompt.data.stratify import whole_shares
from fedprompt.errors import UserError
from fedprompt.randomness import numpy_generator

Members = list[Indices]  # for each client the positions of its images


def even(groups: NDArray[Any], owners: Sequence[Sequence[int]], clients: int, seed: int, split: str) -> Members:
    """Cut every group evenly among its owners; a client that owns a group twice gets two pieces.

    >>> [len(own) for own in even(np.array([0, 0, 0, 0, 1, 1]), [[0, 1], [1]], 2, seed=0, split="train")]
    [2, 4]
    """
    pieces: list[tuple[int, Indices]] = []
    for group, own in enumerate(owners):
        if own:  # a domain that no client took stays unused
            cuts = np.array_split(_shuffled(groups, group, seed, split), len(own))
            pieces += zip(own, cuts, strict=True)
    return _gather(pieces, clients)


def shard_owners(classes: int, clients: int, each: int, seed: int) -> list[list[int]]:
    """For each class the clients that get a shard of it: ``each`` shards a client, as in FedBABU and FedRep.

    The list of classes, repeated so often that every client gets ``each``, is shuffled and dealt out in rows. A class
    may come twice in a row, hence *at most* ``each`` classes a client. One table serves training and test.
    """
    table = np.tile(np.arange(classes), clients * each // classes)
    table = numpy_generator(seed, "partition", "shards").permutation(table).reshape(clients, each)
    return [np.nonzero(table == label)[0].tolist() for label in range(classes)]


def sgpt_uniform(dataset: Dataset, clients: int, each: int, seed: int) -> tuple[Members, Members]:
    """SGPT's ``noniid-labeluni``: clients pick classes in turn, and get between 0.4 and 0.6 parts of each.

    Weights U(0.4, 0.6) are normalised over the owners of a class; a client gets ``int(images * weight)`` of them, so a
    few images go to nobody, in training and test alike, as in the official code.
    """
    generator = numpy_generator(seed, "partition", "sgpt_uniform")
    classes = len(dataset.classes)
    owners: list[list[int]] = [[] for _ in range(classes)]
    left = np.full(classes, clients * each // classes)
    for client in range(clients):
        for _ in range(each):
            label = int(generator.choice(np.flatnonzero(left == left.max())))
            owners[label].append(client)
            left[label] -= 1
    weights = [generator.uniform(0.4, 0.6, len(own)) for own in owners]

    def cut(labels: Indices, split: str) -> Members:
        pieces: list[tuple[int, Indices]] = []
        for label, (own, weight) in enumerate(zip(owners, weights, strict=True)):
            images = _shuffled(labels, label, seed, split)
            sizes = (len(images) * weight / weight.sum()).astype(np.int64)
            pieces += zip(own, np.split(images, np.cumsum(sizes))[:-1], strict=True)
        return _gather(pieces, clients)

    return cut(dataset.train.labels, "train"), cut(dataset.test.labels, "test")


def dirichlet(dataset: Dataset, clients: int, alpha: float, minimum: int, seed: int) -> tuple[Members, Members]:
    """Every class is shared out in proportions drawn from Dirichlet(alpha), the same in training and test.

    No draw is thrown away: a client below ``minimum`` training images takes some, of the classes it was to have most
    of, from clients that have more than enough. So this ends for every alpha.
    """
    if clients * minimum > len(dataset.train):
        raise UserError(
            f"{clients} clients with at least {minimum} images each need {clients * minimum} training images, but "
            f"{dataset.name} has {len(dataset.train)}; lower partition.min_images or partition.clients."
        )
    labels, tests = dataset.train.labels, dataset.test.labels
    classes = len(dataset.classes)
    generator = numpy_generator(seed, "partition", "dirichlet")
    wish = _dirichlet_rows(alpha, classes, clients, generator)  # (classes, clients), rows sum to 1
    counts = _counts(wish, np.bincount(labels, minlength=classes))
    counts = _lift(counts, wish, minimum)
    # The test images follow what the clients got, not what they were to get: the mixtures stay alike.
    got = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    test_counts = _counts(np.where(got.sum(1, keepdims=True) > 0, got, wish), np.bincount(tests, minlength=classes))
    test_counts = _lift(test_counts, got, 1)
    strangers = ((test_counts > 0) & (counts == 0) & (counts.sum(1, keepdims=True) > 0)).any(0)
    if strangers.any():
        raise UserError(
            f"{dataset.name} has too few test images for client {int(strangers.argmax())} to be tested on the classes "
            "it trains on; use fewer clients, a larger partition.alpha or more test images."
        )
    return _cut(labels, counts, seed, "train"), _cut(tests, test_counts, seed, "test")


def _dirichlet_rows(alpha: float, classes: int, clients: int, generator: np.random.Generator) -> NDArray[np.float64]:
    rows = generator.dirichlet(np.full(clients, alpha), size=classes)
    # For tiny alpha all the gammas underflow; the limit of the distribution is one client taking everything.
    lost = ~np.isfinite(rows).all(1) | (rows.sum(1) < 0.5)
    rows[lost] = np.eye(clients)[generator.integers(clients, size=int(lost.sum()))]
    return rows


def _counts(shares: NDArray[np.float64], images: Indices) -> Indices:
    """How many images of each class (rows) go to each client (columns)."""
    return np.stack([whole_shares(share, int(total)) for share, total in zip(shares, images, strict=True)])


def _lift(counts: Indices, wish: NDArray[np.float64], minimum: int) -> Indices:
    """Move images, one at a time and with no chance in it, until every client has at least ``minimum``.

    Ends: while one client has too few and the sum suffices, some other has more than ``minimum``, and each move brings
    the total of missing images down by one.
    """
    counts = counts.copy()
    for client in range(counts.shape[1]):
        while counts[:, client].sum() < minimum:
            totals = counts.sum(0)
            spare = np.where(totals > minimum, counts, 0)  # (classes, clients)
            label = int(np.where(spare.any(1), wish[:, client], -1.0).argmax())
            giver = int(np.where(spare[label] > 0, totals, -1).argmax())
            counts[label, giver] -= 1
            counts[label, client] += 1
    return counts


def _cut(labels: Indices, counts: Indices, seed: int, split: str) -> Members:
    pieces: list[tuple[int, Indices]] = []
    for label, row in enumerate(counts):
        images = _shuffled(labels, label, seed, split)
        pieces += enumerate(np.split(images, np.cumsum(row)[:-1]))
    return _gather(pieces, counts.shape[1])


def _shuffled(groups: NDArray[Any], group: int, seed: int, split: str) -> Indices:
    """The positions of one group in random order."""
    return numpy_generator(seed, "partition", split, group).permutation(np.flatnonzero(groups == group))


def _gather(pieces: Sequence[tuple[int, Indices]], clients: int) -> Members:
    held: list[Members] = [[np.zeros(0, dtype=np.int64)] for _ in range(clients)]
    for client, piece in pieces:
        held[client].append(piece)
    return [np.concatenate(own) for own in held]
