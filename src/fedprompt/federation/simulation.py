"""The in-process engine: one resident backbone, explicit state, no copy of a model for anybody."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config
from fedprompt.data.partition_figure import partition_figure
from fedprompt.device import pick_device
from fedprompt.errors import UserError
from fedprompt.evaluation.evaluate import evaluate_client
from fedprompt.evaluation.tally import figures
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.participation import participants
from fedprompt.federation.population import Population, client_data
from fedprompt.federation.round import adapt_client, finish_round, round_record, train_client
from fedprompt.methods import method_class
from fedprompt.methods.base import State, Task, Tensors
from fedprompt.methods.training import Schedule
from fedprompt.randomness import torch_generator

if TYPE_CHECKING:  # a third of a second to import
    from matplotlib.figure import Figure


class Simulation:
    """A federation of clients in one process: data, backbone and method, and the rounds over an explicit state."""

    def __init__(self, config: Config) -> None:
        self.config = config
        torch.set_num_threads(config.threads or os.cpu_count() or 1)
        population = Population(config)
        self.dataset, self.parts = population.dataset, population.parts
        self.newcomers, self.members = population.newcomers, population.members
        # After the data: weights may want the network, and what is wrong with the data shows without it.
        settings, device = config.backbone, pick_device(config.device)
        self.backbone = load_backbone(settings.weights, settings.image, device, settings.precision)
        task = Task(self.backbone, len(self.dataset.classes), len(self.parts))
        self.method = method_class(config.method)(config.method_settings(), task)
        self.fresh = self.method.initial(config.seed)
        self.train_data, self.held_data = client_data(config, self.backbone, self.method, self.dataset, self.parts)
        self.schedule = Schedule.of(config.training)

    def about(self) -> dict[str, Any]:
        """The classes, the domains, and the images of each client."""
        return {
            "classes": self.dataset.classes,
            "domains": self.dataset.domains,
            "clients": len(self.parts),
            "images": [{"train": len(part.train), "test": len(part.test)} for part in self.parts],
            "unreadable": self.dataset.unreadable,
        }

    def picture(self) -> Figure | None:
        """Who has what."""
        return partition_figure(self.dataset, self.parts)

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
        rules = self.config.federation
        after, refused = finish_round(self.method, state, self.fresh.personal, updates, kept, registered, rules)
        return after, round_record(state, after, list(kept), updates, refused)

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
        tallies = {}
        for client, tensors in params.items():
            generator = torch_generator(self.config.seed, *address, client)
            data = self.held_data[client]
            if not len(data):
                continue
            batch = self.config.evaluation.batch
            tallies[client] = evaluate_client(self.method, tensors, data, generator, batch)
        if not tallies:
            raise UserError("No client has an image to evaluate on; give the evaluation split more images.")
        return figures(tallies)
