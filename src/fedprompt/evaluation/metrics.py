"""Figures of merit, each a pure function of probabilities, labels or accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

BINS = 15  # of confidence, for the calibration error


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Share of images (n, classes) whose most probable class is the right one.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    0.5
    """
    return float((probabilities.argmax(-1) == labels).double().mean())


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """Mean of -log p(right class), in nats; a certain mistake costs at most -log(1e-12)."""
    return float(log_losses(probabilities, labels).mean())


def log_losses(probabilities: Tensor, labels: Tensor) -> Tensor:
    """-log p(right class) of each image (n,), in float64."""
    return -probabilities.gather(-1, labels.unsqueeze(-1)).clamp_min(1e-12).double().log().squeeze(-1)


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """Mean squared distance between the probabilities (n, classes) and the right answer; 0 is perfect, 2 the worst.

    >>> brier_score(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    0.25
    """
    return float(squared_distances(probabilities, labels).mean())


def squared_distances(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Squared distance between each image's probabilities and its right answer (n,), in float64."""
    right = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
    return (probabilities.double() - right).square().sum(-1)


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: how far confidence and accuracy lie apart, over equal bins of confidence.

    >>> calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]))
    0.0
    """
    return float(calibration_gaps(probabilities, labels, bins).abs().sum() / len(labels))


def calibration_gaps(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Tensor:
    """The sum of confidence - correctness in each of the equal bins of confidence (bins,)."""
    confidence, predicted = probabilities.double().max(-1)
    right = (predicted == labels).double()
    place = (confidence * bins).long().clamp_max(bins - 1)
    return torch.zeros(bins, dtype=torch.float64).index_add_(0, place.cpu(), (confidence - right).cpu())


def summary(accuracies: Sequence[float]) -> dict[str, float]:
    """Average over clients, each counting alike, and Worst Local, the lowest of them.

    >>> summary([0.5, 1.0])
    {'average': 0.75, 'worst_local': 0.5}
    """
    return {"average": sum(accuracies) / len(accuracies), "worst_local": min(accuracies)}


def mean_of_last(records: Sequence[Mapping[str, Any]], count: int) -> dict[str, float]:
    """The mean of each figure over the last ``count`` evaluated rounds (a mean of minima, not a minimum of means).

    >>> rounds = [{"average": a, "worst_local": a / 2} for a in (0.1, 0.6, 0.8)]
    >>> mean_of_last(rounds, 2)
    {'average': 0.7, 'worst_local': 0.35}
    """
    evaluated = [record for record in records if "average" in record][-count:]
    figures = ("average", "worst_local", "nll", "brier", "calibration_error", "draws")
    return {
        key: round(sum(record[key] for record in evaluated) / len(evaluated), 10)
        for key in figures
        if evaluated and key in evaluated[0]
    }
