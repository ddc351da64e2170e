"""One figure over several seeds: its mean, and how far the seeds lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None where one value alone says nothing about it.

    >>> spread([1.0, 3.0])
    1.4142135623730951
    """
    return statistics.stdev(values) if len(values) > 1 else None


def mean_and_spread(values: Sequence[float], decimals: int = 2) -> str:
    """The mean, with the sample standard deviation where there is more than one value.

    >>> mean_and_spread([60.0, 62.0]), mean_and_spread([61.5])
    ('61.00 ± 1.41', '61.50')
    """
    mean, apart = statistics.fmean(values), spread(values)
    return f"{mean:.{decimals}f}" + ("" if apart is None else f" ± {apart:.{decimals}f}")
