"""Who gets which images: every client's share of a data set, alike in training and test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedprompt.data import schemes
from fedprompt.data.dataset import Dataset, Indices, Split
from fedprompt.data.schemes import Members
from fedprompt.data.stratify import stratified_choice
from fedprompt.errors import UserError
from fedprompt.randomness import numpy_generator

# What a kind deals out by: its letter in the papers, and the setting.
LEVELS = {
    "domains": ("m", "domains_per_client"),
    "shards": ("s", "classes_per_client"),
    "sgpt_uniform": ("s", "classes_per_client"),
    "dirichlet": ("alpha", "alpha"),
}


class PartitionSettings(BaseModel):
    """How the images are dealt out to the clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["domains", "shards", "sgpt_uniform", "dirichlet", "iid"] = Field(
        "domains", description="what the clients differ in: domains, classes (three ways), or nothing"
    )
    clients: int = Field(6, ge=1, description="number of clients")
    domains_per_client: int = Field(2, ge=1, description="m: the domains of each client (kind = domains)")
    assign: Literal["cyclic", "random"] = Field(
        "cyclic", description="client k takes domains k..k+m-1, or the same after a random reordering of the domains"
    )
    classes_per_client: int = Field(5, ge=1, description="s: the most classes of each client (shards, sgpt_uniform)")
    alpha: float = Field(0.5, gt=0, description="concentration: small means few classes a client (dirichlet)")
    min_images: int = Field(10, ge=1, description="the fewest training images of a client (dirichlet)")

    @property
    def level(self) -> str:
        """How the images are dealt out, in short.

        >>> PartitionSettings(kind="shards", classes_per_client=10).level
        's=10'
        """
        if self.kind not in LEVELS:
            return self.kind
        letter, key = LEVELS[self.kind]
        return f"{letter}={getattr(self, key):g}"


@dataclass(frozen=True, eq=False)
class ClientIndices:
    """One client's images: sorted positions in the training split (two disjoint parts) and in the test split."""

    train: Indices
    validation: Indices
    test: Indices


def partition(dataset: Dataset, settings: PartitionSettings, seed: int, validation: float = 0.0) -> list[ClientIndices]:
    """Deal the images out to the clients; no image goes to two of them.

    >>> from fedprompt.data.registry import open_dataset
    >>> from fedprompt.data.settings import DataSettings
    >>> digits = open_dataset(DataSettings(name="digits6", train_per_domain=60, test_per_domain=20))
    >>> parts = partition(digits, PartitionSettings(clients=6, domains_per_client=3), seed=0)
    >>> [len(part.train) for part in parts], np.unique(digits.train.domains[parts[4].train]).tolist()
    ([60, 60, 60, 60, 60, 60], [0, 4, 5])
    """
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        if settings.clients > len(split):
            raise UserError(
                f"{settings.clients} clients cannot share the {len(split)} {name} images of {dataset.name}; "
                "use fewer clients or more images."
            )
    train, test = _deal(dataset, settings, seed)
    for client in range(settings.clients):
        if len(train[client]) == 0 or len(test[client]) == 0:
            raise UserError(
                f"The partition {settings.kind!r} leaves client {client} without training or test images of "
                f"{dataset.name}; use fewer clients or more images."
            )
    return [
        ClientIndices(*_set_aside(dataset.train, own, validation, seed, client), np.sort(test[client]))
        for client, own in enumerate(train)
    ]


def partition_table(dataset: Dataset, parts: list[ClientIndices]) -> list[dict[str, Any]]:
    """One row a client: how many images of each part, which domains, how many classes."""
    by_class, by_domain = tallies(dataset, parts)
    return [
        {
            "client": client,
            "train": len(part.train),
            "validation": len(part.validation),
            "test": len(part.test),
            "domains": ", ".join(dataset.domains[i] for i in np.flatnonzero(by_domain[client])),
            "classes": int(np.count_nonzero(by_class[client])),
        }
        for client, part in enumerate(parts)
    ]


def tallies(dataset: Dataset, parts: list[ClientIndices]) -> tuple[Indices, Indices]:
    """How many training images (validation counted in) each client has of each class, and of each domain."""
    held = [np.concatenate([part.train, part.validation]) for part in parts]
    by_class = [np.bincount(dataset.train.labels[own], minlength=len(dataset.classes)) for own in held]
    by_domain = [np.bincount(dataset.train.domains[own], minlength=len(dataset.domains)) for own in held]
    return np.stack(by_class), np.stack(by_domain)


def _deal(dataset: Dataset, settings: PartitionSettings, seed: int) -> tuple[Members, Members]:
    """The training and the test positions of each client."""
    match settings.kind:
        case "iid":
            everything = [list(range(settings.clients))]
            return (
                schemes.even(np.zeros(len(dataset.train)), everything, settings.clients, seed, "train"),
                schemes.even(np.zeros(len(dataset.test)), everything, settings.clients, seed, "test"),
            )
        case "domains":
            owners = _domain_owners(dataset, settings, seed)
            return (
                schemes.even(dataset.train.domains, owners, settings.clients, seed, "train"),
                schemes.even(dataset.test.domains, owners, settings.clients, seed, "test"),
            )
        case "shards":
            _check_classes(dataset, settings, "shards")
            owners = schemes.shard_owners(len(dataset.classes), settings.clients, settings.classes_per_client, seed)
            return (
                schemes.even(dataset.train.labels, owners, settings.clients, seed, "train"),
                schemes.even(dataset.test.labels, owners, settings.clients, seed, "test"),
            )
        case "sgpt_uniform":
            _check_classes(dataset, settings, "sgpt_uniform")
            return schemes.sgpt_uniform(dataset, settings.clients, settings.classes_per_client, seed)
        case "dirichlet":
            return schemes.dirichlet(dataset, settings.clients, settings.alpha, settings.min_images, seed)


def _domain_owners(dataset: Dataset, settings: PartitionSettings, seed: int) -> list[list[int]]:
    """The clients that own each domain: client k takes m domains in a row, beginning with the k-th, in a circle."""
    count, each = len(dataset.domains), settings.domains_per_client
    if each > count:
        raise UserError(
            f"partition.domains_per_client is {each}, but {dataset.name} has {count} domain{'s' * (count != 1)}; "
            f"use a number from 1 to {count}."
        )
    order = np.arange(count)
    if settings.assign == "random":
        order = numpy_generator(seed, "partition", "domain order").permutation(count)
    owners: list[list[int]] = [[] for _ in range(count)]
    for client in range(settings.clients):
        for step in range(each):
            owners[order[(client + step) % count]].append(client)
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        for domain, own in enumerate(owners):
            images = int((split.domains == domain).sum())
            if len(own) > images:
                raise UserError(
                    f"Domain {dataset.domains[domain]!r} of {dataset.name} has {images} {name} images for "
                    f"{len(own)} clients; use fewer clients or more images."
                )
    return owners


def _check_classes(dataset: Dataset, settings: PartitionSettings, kind: str) -> None:
    """Can every class be cut into the same whole number of pieces, none of them empty?"""
    classes, clients, each = len(dataset.classes), settings.clients, settings.classes_per_client
    if clients * each % classes:
        raise UserError(
            f"The partition {kind!r} needs clients x classes_per_client to be a multiple of the {classes} classes of "
            f"{dataset.name}, but {clients} x {each} = {clients * each} is not."
        )
    pieces = clients * each // classes
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        images = np.bincount(split.labels, minlength=classes)
        if images.min() < pieces:
            raise UserError(
                f"The partition {kind!r} cuts every class into {pieces} pieces, but class "
                f"{dataset.classes[images.argmin()]!r} of {dataset.name} has {images.min()} {name} images; "
                "use fewer clients, fewer classes_per_client or more images."
            )


def _set_aside(split: Split, own: Indices, fraction: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """Cut a client's training images in (training, validation), each class of each domain giving its share."""
    own = np.sort(own)
    if fraction == 0:
        return own, own[:0]
    if len(own) < 2:
        raise UserError(f"Client {client} has one training image and none to set aside for validation; set it to 0.")
    count = min(max(round(fraction * len(own)), 1), len(own) - 1)
    groups = split.domains[own] * (split.labels.max() + 1) + split.labels[own]
    chosen = stratified_choice(groups, count, numpy_generator(seed, "partition", "validation", client))
    return np.delete(own, chosen), own[chosen]
