"""Every update is checked before it touches the model: each by itself, then all beside each other.

What the guard cannot see: a wrong update of a usual length (wrong labels, a small steady push), and a majority of
clients that agree to be wrong. It keeps broken and crude updates out; it is no proof against a patient attacker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from fedprompt.methods.base import Tensors, Update

COHORT = 4  # clients from which on a median says what is usual; among three, one odd client is a third of the evidence
ROOM = 0.1  # a change shorter than this share of the tensor itself is let through: it cannot do much
FLOOR = 1e-3  # and so is one whose root mean square is less than this, for tensors that start at zero


def refuse(update: Update, expected: Mapping[str, Tensor], registered: int | None) -> str | None:
    """Why this update must not be used, in one sentence, or None if it may.

    ``expected`` are the shared tensors as the server holds them; ``registered`` is the number of images that the client
    said it has when it joined, None if it never did: it cannot weigh more than that.
    """
    who = f"client {update.client}"
    if registered is None:
        return f"{who} was not asked to train"
    if update.tensors.keys() != expected.keys():
        odd = sorted(update.tensors.keys() ^ expected.keys())
        return f"{who} sent other tensors than the method shares ({', '.join(odd[:3])})"
    for name, like in expected.items():
        value = update.tensors[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            return (
                f"{who} sent {name} as {value.dtype} {tuple(value.shape)} instead of {like.dtype} {tuple(like.shape)}"
            )
        if not finite(value):
            return f"{who} sent values in {name} that are not finite"
    if not 0 < update.examples <= registered:
        return f"{who} claims {update.examples} images but registered {registered}"
    return None


def finite(value: Tensor) -> bool:
    """Whether all numbers are finite. A sum that is finite says so at once; one that is not may be an overflow."""
    return math.isfinite(float(value.sum())) or bool(torch.isfinite(value).all())


def outliers(updates: Sequence[Update], sent: Mapping[int, Tensors], factor: float) -> dict[int, str]:
    """Clients whose update lies far outside the cohort's, with the reason; the updates are sound by themselves.

    For each tensor the length of each client's change, from what it was ``sent``, is compared with the median over the
    cohort. More images are more steps, so a client with more images than the median may go further in proportion. A
    tensor that was not sent, such as a count, is measured from zero and per image.
    """
    if factor == 0 or len(updates) < COHORT:
        return {}
    reasons: dict[int, str] = {}
    usual_count = median(update.examples for update in updates)
    own_lengths: dict[int, float] = {}  # of what was sent, which is one tensor for many clients
    for name in updates[0].tensors:
        lengths = {update.client: _length(update, name, sent[update.client]) for update in updates}
        usual = median(lengths.values())
        for update in updates:
            start = sent[update.client].get(name)
            limit = factor * usual
            if start is not None:
                limit *= max(1.0, update.examples / usual_count)
            length = lengths[update.client]
            if length > limit and start is not None:
                if id(start) not in own_lengths:
                    own_lengths[id(start)] = _norm(start)
                limit = max(limit, ROOM * own_lengths[id(start)], FLOOR * start.numel() ** 0.5)
            if length > limit:
                reasons.setdefault(
                    update.client,
                    f"client {update.client} changed {name} by {length:.3g}, far more than the cohort's {usual:.3g}",
                )
    return reasons


def _length(update: Update, name: str, sent: Tensors) -> float:
    """How far a client moved a tensor; what was not sent is measured from zero, per image."""
    value, start = update.tensors[name], sent.get(name)
    return _norm(value) / update.examples if start is None else _norm(value - start)


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value if value.is_floating_point() else value.double(), dtype=torch.float64))
