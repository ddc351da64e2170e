"""How accuracy and calibration depend on the number of prompts drawn at test (the paper's V)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedprompt.backbone.cache import ClientData
from fedprompt.errors import UserError
from fedprompt.evaluation.metrics import accuracy, brier_score, calibration_error, negative_log_likelihood, summary
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.simulation import Simulation
from fedprompt.methods.base import Method, Tensors
from fedprompt.randomness import torch_generator


def by_samples(simulation: Simulation, state: FederationState, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Figures of every member at each number of draws, from one state.

    The largest number is drawn once, and the smaller ones are its first draws: so differences between rows are not
    differences between draws. Each batch of images has its own address, apart from those of training and evaluation.
    """
    if "samples" not in type(simulation.method).Settings.model_fields:
        raise UserError(f"{simulation.method.title} draws no prompts, so there is no number of draws to vary.")
    groups = simulation.groups(state)
    chances: dict[int, list[Tensor]] = {count: [] for count in counts}  # (images, classes) of each client
    labels = []
    for client in simulation.members:
        data = simulation.held_data[client]
        if not len(data):
            continue
        params = {**simulation.method.payload(groups, client), **simulation.personal(state, client)}
        address = ("samples", state.round, client)
        means = running_means(simulation, params, data, max(counts), address)
        for count in counts:
            # A method without randomness answers once, and more draws would repeat it.
            chances[count].append(means[min(count, len(means)) - 1])
        labels.append(data.labels)
    if not labels:
        raise UserError("No client has an image to evaluate on; give the evaluation split more images.")
    return [{"samples": count, **_figures(chances[count], labels)} for count in counts]


@torch.no_grad()
def running_means(
    simulation: Simulation, params: Tensors, data: ClientData, most: int, address: tuple[str | int, ...]
) -> Tensor:
    """Mean probabilities over the first 1, 2, ... ``most`` draws (draws, images, classes) of a client's images."""
    method = with_samples(simulation.method, most)
    chunks = []
    for place, index in enumerate(torch.arange(len(data)).split(simulation.config.evaluation.batch)):
        generator = torch_generator(simulation.config.seed, *address, place)
        draws = method.predict(params, data.batch(index, method.needs), generator).cpu()
        chunks.append(draws.cumsum(0) / torch.arange(1, len(draws) + 1).view(-1, 1, 1))
    return torch.cat(chunks, dim=1)


def with_samples(method: Method, samples: int) -> Method:
    """The same method, drawing so many prompts at test."""
    return type(method)(method.settings.model_copy(update={"samples": samples, "stop_early": None}), method.task)


def _figures(probabilities: Sequence[Tensor], labels: Sequence[Tensor]) -> dict[str, float]:
    figures = summary([accuracy(own, truth) for own, truth in zip(probabilities, labels, strict=True)])
    pooled, truth = torch.cat(list(probabilities)), torch.cat(list(labels))
    figures["nll"] = negative_log_likelihood(pooled, truth)
    figures["calibration_error"] = calibration_error(pooled, truth)
    figures["brier"] = brier_score(pooled, truth)
    return figures
