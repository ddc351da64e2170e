"""The network engine: the rounds of a run as Flower messages, with a deadline, for whoever is there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config
from fedprompt.device import pick_device
from fedprompt.errors import UserError
from fedprompt.evaluation.tally import Tally, figures
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.flower import wire
from fedprompt.federation.flower.charter import Charter
from fedprompt.federation.flower.post import Answers, Post, Reasons
from fedprompt.federation.flower.wire import Order, WireError
from fedprompt.federation.guard import refuse
from fedprompt.federation.participation import participants
from fedprompt.federation.round import TooFewUpdatesError, finish_round, round_record
from fedprompt.methods import method_class
from fedprompt.methods.base import NEWCOMER, State, Task, Tensors, Update

if TYPE_CHECKING:  # a third of a second to import
    from matplotlib.figure import Figure


class FlowerEngine:
    """A federation of nodes behind a SuperLink. It sees shared tensors, counts and figures, never an image."""

    def __init__(self, config: Config, grid: Grid, charter: Charter) -> None:
        self.config, self.charter = config, charter
        self.say: Callable[[str], None] = lambda sentence: None  # to a log
        self.note: Callable[[dict[str, Any]], None] = lambda record: None  # of each update that came in
        torch.set_num_threads(config.threads or os.cpu_count() or 1)
        self.members = sorted(member.client for member in charter.members.values() if member.trains)
        # Those of the beginning; who was admitted later is welcomed one by one.
        self.newcomers = [client for client in range(charter.clients) if client not in self.members]
        if not self.members:
            raise UserError("Nobody was admitted to this federation yet; use fedprompt federation admit.")
        self.registered = {member.client: member.images for member in charter.members.values()}
        settings, device = config.backbone, pick_device(config.device)
        self.backbone = load_backbone(settings.weights, settings.image, device, settings.precision)
        task = Task(self.backbone, len(charter.classes), charter.clients)
        self.method = method_class(config.method)(config.method_settings(), task)
        self.fresh = self.method.initial(config.seed)
        self.settings = json.dumps(config.resolved())
        clients = {name: member.client for name, member in charter.members.items()}
        self.post = Post(grid, clients, config.federation.deadline)
        self._durable: FederationState | None = None
        self._everybody_expected = True  # at the start of a server, nodes are still connecting

    def about(self) -> dict[str, Any]:
        # Those of the beginning: a new client may be admitted between two starts of a run.
        images = [{"train": self.registered[client]} for client in range(self.charter.clients)]
        names = self.charter.names()
        return {
            "engine": "flower",
            "classes": self.charter.classes,
            "domains": (),
            "clients": self.charter.clients,
            "names": [names[client] for client in range(self.charter.clients)],
            "images": images,
            "unreadable": (),
        }

    def picture(self) -> Figure | None:
        return None

    def start(self) -> FederationState:
        return FederationState(0, self.fresh.shared, self.fresh.server)

    def cohort(self, round_number: int) -> list[int]:
        """Who is asked to train in a round, counted from 1; the same as in the simulation."""
        return participants(self.config.seed, round_number, self.members, self.config.training.participation)

    def steps(self, round_number: int) -> int:
        return len(self.cohort(round_number))  # over a network an answer is a step

    # A round

    def round(
        self, state: FederationState, on_step: Callable[[], None] = lambda: None
    ) -> tuple[FederationState, dict[str, Any]]:
        self._remember(state)
        attempts = self.config.federation.attempts
        for attempt in range(1, attempts + 1):
            try:
                return self._round(state, on_step)
            except TooFewUpdatesError as error:
                if attempt == attempts:
                    raise UserError(f"{error} Tried {attempts} times; start again with --resume.") from None
                self.say(f"{error} Trying again.")
        raise AssertionError

    def _round(self, state: FederationState, on_step: Callable[[], None]) -> tuple[FederationState, dict[str, Any]]:
        number = state.round + 1
        asked = self.cohort(number)
        self._gather(asked)
        answers, missing = self.post.exchange(wire.TRAIN, self._contents(state, asked, number), number, on_step)
        updates, refused = _updates(answers)
        for update in updates:
            self.note({"round": number, "client": update.client, "bytes": _size(update)})
        rules = self.config.federation
        try:
            after, more = finish_round(self.method, state, self.fresh.personal, updates, {}, self.registered, rules)
        except TooFewUpdatesError as error:
            reasons = "; ".join([*refused, *_sentences(missing)][:3])
            raise TooFewUpdatesError(f"{str(error)[:-1]}; {reasons}." if reasons else str(error)) from None
        record = round_record(state, after, asked, updates, refused + more)
        return after, record | ({"missing": _sentences(missing)} if missing else {})

    def evaluate(self, state: FederationState) -> dict[str, Any]:
        contents = self._contents(state, self.members, state.round)
        for _ in range(self.config.federation.attempts):
            answers, missing = self.post.exchange(wire.EVALUATE, contents, state.round)
            if tallies := _tallies(answers, missing):
                return figures(tallies) | ({"not_evaluated": _sentences(missing)} if missing else {})
            self.say(f"Nobody could be evaluated after round {state.round}. Trying again.")
            self._gather(self.members)
        raise UserError(f"Nobody could be evaluated after round {state.round}; start again with --resume.")

    # Clients that join afterwards

    def adapt_newcomers(self, state: FederationState) -> tuple[dict[str, Any], dict[int, Tensors]]:
        self._gather(self.newcomers)
        tallies, missing = self.welcome(state, self.newcomers)
        if not tallies:
            raise UserError(f"No new client could be reached: {'; '.join(_sentences(missing))}.")
        return figures(tallies) | ({"not_evaluated": _sentences(missing)} if missing else {}), {}

    def welcome(self, state: FederationState, clients: Iterable[int]) -> tuple[dict[int, Tally], Reasons]:
        """Give each of these clients a model: first the rounds in which the server learns about it, if the method has
        such, then the tensors that it fine-tunes at home. The federation's own tensors stay as they are."""
        tallies: dict[int, Tally] = {}
        missing: Reasons = {}
        for client in clients:
            groups: State | None = self._groups(state)
            for extra in range(self.method.joining_rounds):
                assert groups is not None
                groups = self._join(state, groups, client, extra, missing)
                if groups is None:
                    break
            if groups is None:
                continue
            content = {client: self._content(state, client, state.round, self.method.newcomer(groups))}
            answers, gone = self.post.exchange(wire.ADAPT, content, state.round)
            missing |= gone
            tallies |= _tallies(answers, missing)
        return tallies, missing

    def _join(self, state: FederationState, groups: State, client: int, extra: int, missing: Reasons) -> State | None:
        """One exchange with a joining client; None if it failed."""
        payload = self.method.payload(groups, NEWCOMER)
        content = {client: self._content(state, client, state.round + 1 + extra, payload, accepted=extra)}
        answers, gone = self.post.exchange(wire.JOIN, content, state.round + 1 + extra)
        missing |= gone
        updates, refused = _updates(answers)
        if updates and (reason := refuse(updates[0], self.method.expected(groups), self.registered[client])):
            refused.append(reason)
        if refused:
            missing[client] = refused[0].removeprefix(f"client {client} ")
        return self.method.meet(groups, updates[0]) if updates and not refused else None

    # Messages

    def _contents(self, state: FederationState, clients: list[int], number: int) -> Answers:
        """For each client its order, with what the method sends to it."""
        groups = self._groups(state)
        return {client: self._content(state, client, number, self.method.payload(groups, client)) for client in clients}

    def _content(
        self, state: FederationState, client: int, number: int, payload: Tensors, accepted: int | None = None
    ) -> RecordDict:
        durable = self._durable.participations if self._durable is not None else {}
        order = Order(
            run=self.charter.run,
            settings=self.settings,
            classes=self.charter.classes,
            clients=self.charter.clients,
            client=client,
            round=number,
            accepted=state.participations.get(client, 0) if accepted is None else accepted,
            durable=durable.get(client, 0) if accepted is None else 0,
            backbone=self.backbone.checksum,
        )
        return RecordDict({"order": order.to_record(), "payload": wire.pack(payload)})

    def _gather(self, wanted: list[int]) -> None:
        """Wait until enough of these are connected: all of them when the server has just started, else k of n."""
        few = min(self.config.federation.min_clients, len(wanted))
        self.post.wait_for(wanted, len(wanted) if self._everybody_expected else few)
        self._everybody_expected = False

    def _groups(self, state: FederationState) -> State:
        return State(state.shared, self.fresh.personal, state.server)

    def _remember(self, state: FederationState) -> None:
        """The last state that is surely on the server's disk: the one it started from, or that of a checkpoint."""
        if self._durable is None or state.round % self.config.training.checkpoint_every == 0:
            self._durable = state


def _size(update: Update) -> int:
    return sum(value.nbytes for value in update.tensors.values())


def _updates(answers: Answers) -> tuple[list[Update], list[str]]:
    updates, refused = [], []
    for client, content in sorted(answers.items()):
        try:
            updates.append(wire.read_update(content, client))
        except WireError as error:
            refused.append(f"client {client} sent {error}")
    return updates, refused


def _tallies(answers: Answers, missing: Reasons) -> dict[int, Tally]:
    """Sums that can be; a client without an image to evaluate on is left out, and one that sent nonsense named."""
    tallies: dict[int, Tally] = {}
    for client, content in answers.items():
        try:
            tally = wire.read_tally(content)
        except WireError as error:
            missing[client] = f"sent {error}"
            continue
        if tally.images and (reason := tally.wrong()):
            missing[client] = f"sent {reason}"
        elif tally.images:
            tallies[client] = tally
    return tallies


def _sentences(missing: Reasons) -> list[str]:
    return [f"client {client} {reason}" for client, reason in sorted(missing.items())]
