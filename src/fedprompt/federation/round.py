"""One round, in two halves that every engine calls: what a client does, and what the server does with the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from fedprompt.backbone.cache import ClientData
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.guard import refuse
from fedprompt.methods.base import NEWCOMER, Context, Method, Stage, State, Tensors, Update
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
    stage = Stage(frozenset(name for name in start if method.adapts(name)))
    context = Context(start, round_number, client, torch_generator(seed, "adapt", client))
    return train(method, start, data, schedule, context, seed, stages=[stage])


def mean_logs(context: Context) -> dict[str, float]:
    """The mean of each figure over the steps of a client's round."""
    return {name: sum(values) / len(values) for name, values in context.logs.items()}


def finish_round(
    method: Method,
    state: FederationState,
    fresh: Tensors,
    updates: Sequence[Update],
    kept: Mapping[int, Tensors],
    registered: Mapping[int, int],
) -> tuple[FederationState, list[str]]:
    """The server's half: refuse what is wrong, aggregate the rest; ``fresh`` is what a new client's state would be.

    Returns the next state and one sentence for each update that was refused.
    """
    groups = State(state.shared, fresh, state.server)
    expected = method.expected(groups)
    good: list[Update] = []
    refused: list[str] = []
    for update in updates:
        reason = refuse(update, expected, registered.get(update.client))
        if reason is None and not _finite(kept.get(update.client, {})):
            reason = f"client {update.client} trained personal tensors to values that are not finite"
        if reason is None and any(update.client == other.client for other in good):
            reason = f"client {update.client} answered twice"
        if reason is None:
            good.append(update)
        else:
            refused.append(reason)
    if not good:
        more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
        reasons = "; ".join(refused[:3]) or "nobody answered"
        raise UserError(f"Round {state.round + 1} has no usable update: {reasons}{more}.")
    after = method.aggregate(groups, good)
    counts = dict(state.participations)
    for update in good:
        counts[update.client] = counts.get(update.client, 0) + 1
    personal = {**state.personal, **{update.client: kept[update.client] for update in good if update.client in kept}}
    return FederationState(state.round + 1, after.shared, after.server, personal, counts), refused


def _finite(tensors: Tensors) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in tensors.values())
