"""What a client tells of its test images: sums alone, so that figures over all clients need no client's predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedprompt.evaluation.metrics import BINS, calibration_gaps, log_losses, squared_distances, summary


@dataclass(frozen=True)
class Tally:
    """Sums over one client's evaluated images."""

    images: int
    right: int
    log_loss: float  # sum of -log p(right class)
    squares: float  # sum of squared distances between the probabilities and the right answer
    drawn: int  # predictions made, one for each draw of an image's prompt
    gaps: tuple[float, ...]  # sum of confidence - correctness in each bin of confidence

    @property
    def accuracy(self) -> float:
        return self.right / self.images

    def wrong(self) -> str | None:
        """Why these sums cannot be those of any images, or None; a server asks this of what a client sent."""
        if self.images <= 0 or not 0 <= self.right <= self.images:
            return f"{self.right} right of {self.images} images"
        if len(self.gaps) != BINS or not all(math.isfinite(gap) and abs(gap) <= self.images for gap in self.gaps):
            return "calibration sums that cannot be"
        if not (math.isfinite(self.log_loss) and self.log_loss >= 0):
            return "a log-loss that cannot be"
        if not 0 <= self.squares <= 2 * self.images + 1e-6:  # rounding, at most
            return "a Brier score that cannot be"
        if self.drawn < self.images:
            return f"{self.drawn} draws for {self.images} images"
        return None


def tally(probabilities: Tensor, labels: Tensor, drawn: int) -> Tally:
    """The sums of a client's predictions (images, classes), for which so many draws were made."""
    return Tally(
        images=len(labels),
        right=int((probabilities.argmax(-1) == labels).sum()),
        log_loss=float(log_losses(probabilities, labels).sum()),
        squares=float(squared_distances(probabilities, labels).sum()),
        drawn=drawn,
        gaps=tuple(calibration_gaps(probabilities, labels).tolist()),
    )


def figures(tallies: Mapping[int, Tally]) -> dict[str, Any]:
    """Average and Worst Local over clients; log-loss, Brier score and calibration error over all their images together.

    >>> found = figures({0: Tally(4, 3, 2.0, 0.9, 20, (0.0,) * 15), 7: Tally(1, 1, 0.5, 0.1, 5, (-0.5,) + (0.0,) * 14)})
    >>> found["average"], found["worst_local"], found["nll"], found["brier"], found["calibration_error"]
    (0.875, 0.75, 0.5, 0.2, 0.1)
    >>> found["accuracy"], found["draws"]
    ({'0': 0.75, '7': 1.0}, 5.0)
    """
    ordered = dict(sorted(tallies.items()))
    images = sum(one.images for one in ordered.values())
    gaps = [math.fsum(column) for column in zip(*(one.gaps for one in ordered.values()), strict=True)]
    found: dict[str, Any] = dict(summary([one.accuracy for one in ordered.values()]))
    found["nll"] = math.fsum(one.log_loss for one in ordered.values()) / images
    found["brier"] = math.fsum(one.squares for one in ordered.values()) / images
    found["calibration_error"] = math.fsum(abs(gap) for gap in gaps) / images
    found["draws"] = sum(one.drawn for one in ordered.values()) / images
    found["accuracy"] = {str(client): one.accuracy for client, one in ordered.items()}
    return found
