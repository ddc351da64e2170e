"""One round, in two halves that every engine calls: what a client does, and what the server does with the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fedprompt.backbone.cache import CHUNK, ClientData, KnownFeatures
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.guard import finite, outliers, refuse
from fedprompt.federation.settings import FederationSettings
from fedprompt.methods.base import HEAD, NEWCOMER, Context, Method, Stage, State, Tensors, Update
from fedprompt.methods.training import Schedule, train
from fedprompt.randomness import torch_generator


def train_client(
    method: Method,
    payload: Tensors,
    personal: Tensors,
    data: ClientData,
    schedule: Schedule,
    *,
    seed: int,
    round_number: int,
    client: int,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Tensors, Update]:
    """A client's half: train from what the server sent, keep the personal tensors, send the shared ones."""
    generator = torch_generator(seed, "train", round_number, client)
    context = Context(payload, round_number, client, generator)
    params = train(method, {**payload, **personal}, data, schedule, context, seed, on_step=on_step)
    kept = {name: params[name] for name in personal}
    return kept, Update(client, method.upload(params, context), len(data), mean_logs(context))


def adapt_client(
    method: Method, state: State, data: ClientData, schedule: Schedule, *, seed: int, round_number: int, client: int
) -> Tensors:
    """All tensors of a client that joins after training and fine-tunes what the method lets it, its head.

    A method may first exchange a few rounds of one epoch with the server, in which the server learns about the client.
    What the client itself trains there is left behind: each method fine-tunes for the same number of epochs.
    """
    personal = state.personal
    for extra in range(method.joining_rounds):
        personal, update = train_client(
            method,
            method.payload(state, NEWCOMER),
            personal,
            data,
            Schedule(1, schedule.batch),
            seed=seed,
            round_number=round_number + extra,
            client=client,
        )
        state = method.meet(state, update)
    start = method.newcomer(state)
    return fine_tune(method, start, data, schedule, seed=seed, round_number=round_number, client=client)


def fine_tune(
    method: Method, start: Tensors, data: ClientData, schedule: Schedule, *, seed: int, round_number: int, client: int
) -> Tensors:
    """A new client's own part: train what the method lets it, its head, from what the server gave."""
    stage = Stage(frozenset(name for name in start if method.adapts(name)))
    # What it fine-tunes is its own from here on: no method should hold it to where it began.
    received = {name: value for name, value in start.items() if name not in stage.names}
    context = Context(received, round_number, client, torch_generator(seed, "adapt", client))
    known = known_features(method, start, data) if method.fixed_feature and stage.names <= set(HEAD) else data
    return train(method, start, known, schedule, context, seed, stages=[stage])


@torch.no_grad()
def known_features(method: Method, params: Tensors, data: ClientData) -> KnownFeatures:
    """What a client's head will see in every epoch while nothing but the head is trained."""
    chunks = [method.feature(params, data.batch(index, method.needs)) for index in torch.arange(len(data)).split(CHUNK)]
    return KnownFeatures(data.labels, torch.cat(chunks))


def mean_logs(context: Context) -> dict[str, float]:
    """The mean of each figure over the steps of a client's round."""
    return {name: sum(values) / len(values) for name, values in context.logs.items()}


class TooFewUpdatesError(UserError):
    """A round without enough usable updates; over a network it is worth another try."""


def finish_round(
    method: Method,
    state: FederationState,
    fresh: Tensors,
    updates: Sequence[Update],
    kept: Mapping[int, Tensors],
    registered: Mapping[int, int],
    rules: FederationSettings | None = None,
) -> tuple[FederationState, list[str]]:
    """The server's half: refuse what is wrong, aggregate the rest; ``fresh`` is what a new client's state would be.

    Returns the next state and one sentence for each update that was refused.
    """
    rules = rules or FederationSettings()
    groups = State(state.shared, fresh, state.server)
    expected = method.expected(groups)
    good: dict[int, Update] = {}
    refused: list[str] = []
    for update in updates:
        reason = refuse(update, expected, registered.get(update.client))
        if reason is None and not _finite(kept.get(update.client, {})):
            reason = f"client {update.client} trained personal tensors to values that are not finite"
        if reason is None and update.client in good:
            reason = f"client {update.client} answered twice"
        if reason is None:
            good[update.client] = update
        else:
            refused.append(reason)
    sent = {client: {**groups.shared, **method.payload(groups, client)} for client in good}
    far = outliers(list(good.values()), sent, rules.norm_factor)
    used = [update for client, update in good.items() if client not in far]
    refused += far.values()
    if len(used) < rules.min_clients:
        more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
        reasons = "; ".join(refused[:3]) or f"{len(updates) or 'nobody'} answered"
        count = f"{len(used)} of {rules.min_clients} usable updates" if used else "no usable update"
        raise TooFewUpdatesError(f"Round {state.round + 1} has {count}: {reasons}{more}.")
    after = method.aggregate(groups, used)
    counts = dict(state.participations)
    for update in used:
        counts[update.client] = counts.get(update.client, 0) + 1
    personal = {**state.personal, **{update.client: kept[update.client] for update in used if update.client in kept}}
    return FederationState(state.round + 1, after.shared, after.server, personal, counts), refused


def round_record(
    before: FederationState, after: FederationState, asked: Sequence[int], updates: Sequence[Update], refused: list[str]
) -> dict[str, Any]:
    """What is written down of a round: who was asked, the mean of the accepted clients' figures, refusals."""
    figures: dict[str, list[float]] = {}
    once = {update.client: update for update in reversed(updates)}
    # In the order of the clients' numbers, so that the mean does not depend on who answered first.
    for _, update in sorted(once.items()):
        if after.participations.get(update.client, 0) > before.participations.get(update.client, 0):
            for name, value in update.metrics.items():
                if math.isfinite(value):
                    figures.setdefault(name, []).append(value)
    means = {name: sum(values) / len(values) for name, values in sorted(figures.items())}
    record: dict[str, Any] = {"round": after.round, "participants": list(asked), "training": means}
    return record | ({"refused": refused} if refused else {})


def _finite(tensors: Tensors) -> bool:
    return all(finite(value) for value in tensors.values())
