"""Every update is checked before it touches the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedprompt.methods.base import Update


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
        if not bool(torch.isfinite(value).all()):
            return f"{who} sent values in {name} that are not finite"
    if not 0 < update.examples <= registered:
        return f"{who} claims {update.examples} images but registered {registered}"
    return None
