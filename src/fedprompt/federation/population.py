"""The clients of an experiment: whose images are whose, who trains, and who joins only afterwards."""

from __future__ import annotations

from functools import cached_property, partial

import torch

from fedprompt.backbone.cache import ClientData, within_budget
from fedprompt.backbone.feature_store import FeatureStore, default_folder
from fedprompt.backbone.weights import Backbone
from fedprompt.config import Config
from fedprompt.data.dataset import Dataset, Indices, Split
from fedprompt.data.partition import ClientIndices, partition
from fedprompt.data.registry import open_dataset
from fedprompt.device import free_memory
from fedprompt.errors import UserError
from fedprompt.methods.base import Method
from fedprompt.randomness import numpy_generator

GIB = 2**30


class Population:
    """A data set dealt out to clients."""

    def __init__(self, config: Config) -> None:
        self.config = config
        check_split(config)
        self.dataset: Dataset = open_dataset(config.data)
        self.parts = partition(self.dataset, config.partition, config.seed, config.data.validation)

    @cached_property
    def newcomers(self) -> list[int]:
        """Numbers of the clients that join only after training."""
        return _held_out(self.config, len(self.parts))

    @cached_property
    def members(self) -> list[int]:
        """Numbers of the clients that train."""
        return [client for client in range(len(self.parts)) if client not in self.newcomers]


def check_split(config: Config) -> None:
    """To evaluate on validation images, some must be set aside."""
    if config.evaluation.split == "validation" and not config.data.validation:
        raise UserError("To evaluate on the validation split, set data.validation to its share, such as 0.2.")


def client_data(
    config: Config, backbone: Backbone, method: Method, dataset: Dataset, parts: list[ClientIndices]
) -> tuple[list[ClientData], list[ClientData]]:
    """Training and evaluation images of each of these clients, read when first used."""
    held = config.evaluation.split
    source = dataset.test if held == "test" else dataset.train
    splits: list[tuple[Split, Indices]] = [(dataset.train, part.train) for part in parts]
    splits += [(source, getattr(part, held)) for part in parts]
    settings = config.backbone
    budget = free_memory() / 4 if settings.feature_memory is None else settings.feature_memory * GIB
    fits = within_budget([len(index) for _, index in splits], method.needs.bytes_per_image(backbone), budget)
    store = FeatureStore(default_folder(), settings.feature_disk * GIB) if settings.feature_disk else None
    side = backbone.vit.shape.image
    data = [
        ClientData(
            backbone,
            partial(split.images, index, side),
            torch.from_numpy(split.labels[index]),
            keep=keep,
            store=store,
        )
        for (split, index), keep in zip(splits, fits, strict=True)
    ]
    return data[: len(parts)], data[len(parts) :]


def _held_out(config: Config, clients: int) -> list[int]:
    """Numbers of the clients that join only after training."""
    wanted = config.new_clients.hold_out
    if wanted == "none":
        return []
    if clients == 1 and wanted:
        raise UserError("With one client nobody can be held out; set new_clients.hold_out to none.")
    if wanted == "half":
        return list(range(clients - clients // 2, clients))
    if wanted == "random_half":
        order = numpy_generator(config.seed, "newcomers").permutation(clients)
        return sorted(int(client) for client in order[: clients // 2])
    assert not isinstance(wanted, str)
    odd = [client for client in wanted if not 0 <= client < clients]
    if odd:
        raise UserError(f"new_clients.hold_out names client {odd[0]}, but clients are 0 to {clients - 1}.")
    if len(set(wanted)) == clients:
        raise UserError("new_clients.hold_out names every client, so nobody is left to train.")
    return sorted(set(wanted))
