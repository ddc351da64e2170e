"""The in-process engine: one resident backbone, explicit state, no copy of a model for anybody."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from fedprompt.backbone.cache import ClientData, within_budget
from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config
from fedprompt.data.partition import partition
from fedprompt.data.registry import open_dataset
from fedprompt.device import pick_device
from fedprompt.errors import UserError
from fedprompt.evaluation.evaluate import evaluate_client
from fedprompt.evaluation.metrics import calibration_error, negative_log_likelihood, summary
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.participation import participants
from fedprompt.federation.round import adapt_client, finish_round, train_client
from fedprompt.methods import method_class
from fedprompt.methods.base import State, Task, Tensors
from fedprompt.methods.training import Schedule
from fedprompt.randomness import numpy_generator, torch_generator

GIB = 2**30


class Simulation:
    """A federation of clients in one process: data, backbone and method, and the rounds over an explicit state."""

    def __init__(self, config: Config) -> None:
        self.config = config
        torch.set_num_threads(config.threads or os.cpu_count() or 1)
        self.dataset = open_dataset(config.data)
        validation = config.data.validation
        if config.evaluation.split == "validation" and not validation:
            raise UserError("To evaluate on the validation split, set data.validation to its share, such as 0.2.")
        self.parts = partition(self.dataset, config.partition, config.seed, validation)
        self.newcomers = _held_out(config, len(self.parts))
        self.members = [client for client in range(len(self.parts)) if client not in self.newcomers]
        # After the data: weights may want the network, and what is wrong with the data shows without it.
        self.backbone = load_backbone(config.backbone.weights, config.backbone.image, pick_device(config.device))
        task = Task(self.backbone, len(self.dataset.classes), len(self.parts))
        self.method = method_class(config.method)(config.method_settings(), task)
        self.fresh = self.method.initial(config.seed)
        self.train_data, self.held_data = self._client_data()
        self.schedule = Schedule(config.training.epochs, config.training.batch)

    def _client_data(self) -> tuple[list[ClientData], list[ClientData]]:
        """Training and evaluation images of each client, read when first used."""
        held = self.config.evaluation.split
        source = self.dataset.test if held == "test" else self.dataset.train
        splits = [(self.dataset.train, part.train) for part in self.parts]
        splits += [(source, getattr(part, held)) for part in self.parts]
        per_image = self.method.needs.bytes_per_image(self.backbone)
        budget = self.config.backbone.feature_memory * GIB
        fits = within_budget([len(index) for _, index in splits], per_image, budget)
        side = self.backbone.vit.shape.image
        data = [
            ClientData(
                self.backbone, partial(split.images, index, side), torch.from_numpy(split.labels[index]), keep=keep
            )
            for (split, index), keep in zip(splits, fits, strict=True)
        ]
        return data[: len(self.parts)], data[len(self.parts) :]

    def start(self) -> FederationState:
        """The state before the first round."""
        return FederationState(0, self.fresh.shared, self.fresh.server)

    def personal(self, state: FederationState, client: int) -> Tensors:
        """A client's personal tensors; fresh ones if it has never trained."""
        return state.personal.get(client, self.fresh.personal)

    def groups(self, state: FederationState) -> State:
        """The server's view of a state."""
        return State(state.shared, self.fresh.personal, state.server)

    def cohort(self, round_number: int) -> list[int]:
        """Who trains in a round, counted from 1."""
        return participants(self.config.seed, round_number, self.members, self.config.training.participation)

    def steps(self, round_number: int) -> int:
        """Local steps that a round takes, for progress bars."""
        per_stage = sum(-(-len(self.train_data[client]) // self.schedule.batch) for client in self.cohort(round_number))
        stages = self.method.stages({**self.fresh.shared, **self.fresh.personal})
        return per_stage * self.schedule.epochs * sum(stage.epochs for stage in stages)

    def round(
        self, state: FederationState, on_step: Callable[[], None] = lambda: None
    ) -> tuple[FederationState, dict[str, Any]]:
        """The next state and a record of the round: who took part, the mean of their training figures, refusals."""
        number = state.round + 1
        groups = self.groups(state)
        updates, kept = [], {}
        for client in self.cohort(number):
            kept[client], update = train_client(
                self.method,
                self.method.payload(groups, client),
                self.personal(state, client),
                self.train_data[client],
                self.schedule,
                seed=self.config.seed,
                round_number=number,
                client=client,
                on_step=on_step,
            )
            updates.append(update)
        registered = {client: len(self.train_data[client]) for client in kept}
        after, refused = finish_round(self.method, state, self.fresh.personal, updates, kept, registered)
        names = sorted({name for update in updates for name in update.metrics})
        figures = {
            name: float(np.mean([update.metrics[name] for update in updates if name in update.metrics]))
            for name in names
        }
        record: dict[str, Any] = {"round": number, "participants": list(kept), "training": figures}
        return after, record | ({"refused": refused} if refused else {})

    def evaluate(self, state: FederationState) -> dict[str, Any]:
        """Accuracy of every member with the aggregated shared tensors and its own latest personal ones."""
        groups = self.groups(state)
        params = {
            client: {**self.method.payload(groups, client), **self.personal(state, client)} for client in self.members
        }
        return self._figures(params, "evaluate", state.round)

    def adapt_newcomers(self, state: FederationState) -> tuple[dict[str, Any], dict[int, Tensors]]:
        """Figures over the held-out clients alone after each fine-tuned its head, and their tensors."""
        schedule = Schedule(self.config.new_clients.epochs, self.config.training.batch)
        params = {
            client: adapt_client(
                self.method,
                self.groups(state),
                self.train_data[client],
                schedule,
                seed=self.config.seed,
                round_number=state.round + 1,
                client=client,
            )
            for client in self.newcomers
        }
        return self._figures(params, "evaluate", state.round), params

    def _figures(self, params: dict[int, Tensors], *address: str | int) -> dict[str, Any]:
        accuracies, probabilities, labels = {}, [], []
        for client, tensors in params.items():
            generator = torch_generator(self.config.seed, *address, client)
            data = self.held_data[client]
            if not len(data):
                continue
            predicted = evaluate_client(self.method, tensors, data, generator, self.config.evaluation.batch)
            accuracies[client] = predicted.accuracy
            probabilities.append(predicted.probabilities)
            labels.append(data.labels)
        if not accuracies:
            raise UserError("No client has an image to evaluate on; give the evaluation split more images.")
        pooled, truth = torch.cat(probabilities), torch.cat(labels)
        figures: dict[str, Any] = summary(list(accuracies.values()))
        figures["nll"] = negative_log_likelihood(pooled, truth)
        figures["calibration_error"] = calibration_error(pooled, truth)
        figures["accuracy"] = {str(client): value for client, value in accuracies.items()}
        return figures


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
