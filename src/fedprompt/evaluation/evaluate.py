"""A client's predictions on its own images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.backbone.cache import ClientData
from fedprompt.evaluation.metrics import accuracy
from fedprompt.methods.base import Method, Tensors


@dataclass(frozen=True)
class Predicted:
    """Mean probabilities over the draws, for every image of a client."""

    probabilities: Tensor  # (images, classes)
    accuracy: float


@torch.no_grad()
def evaluate_client(
    method: Method, params: Tensors, data: ClientData, generator: torch.Generator, batch: int
) -> Predicted:
    """Predict all images of a client; it has randomness of its own and changes nothing."""
    chunks = [
        method.predict(params, data.batch(index, method.needs), generator).nanmean(0).cpu()
        for index in torch.arange(len(data)).split(batch)
    ]
    probabilities = torch.cat(chunks)
    return Predicted(probabilities, accuracy(probabilities, data.labels))
