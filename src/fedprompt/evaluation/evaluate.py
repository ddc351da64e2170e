"""A client's predictions on its own images."""

from __future__ import annotations

import torch

from fedprompt.backbone.cache import ClientData
from fedprompt.evaluation.tally import Tally, tally
from fedprompt.methods.base import Method, Tensors


@torch.no_grad()
def evaluate_client(method: Method, params: Tensors, data: ClientData, generator: torch.Generator, batch: int) -> Tally:
    """Predict all images of a client, the mean over the draws of each; randomness is its own, and nothing changes."""
    chunks, drawn = [], 0
    for index in torch.arange(len(data)).split(batch):
        draws = method.predict(params, data.batch(index, method.needs), generator).cpu()  # NaN where none was made
        chunks.append(draws.nanmean(0))
        drawn += int((~draws[..., 0].isnan()).sum())
    return tally(torch.cat(chunks), data.labels, drawn)
