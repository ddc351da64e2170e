"""Take a part of many things so that every group gives its share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprompt.data.dataset import Indices


def whole_shares(weights: NDArray[np.float64], total: int, order: NDArray[Any] | None = None) -> Indices:
    """Cut ``total`` things in whole numbers as near to ``weights`` as can be (largest remainders first).

    Among equal remainders the one that comes first in ``order`` (default: the first) gets the odd thing.

    >>> whole_shares(np.array([1.0, 1.0, 2.0]), 10).tolist()
    [3, 2, 5]
    """
    exact = weights / weights.sum() * total
    shares: Indices = np.floor(exact).astype(np.int64)
    tie = np.arange(len(weights)) if order is None else order
    # Rounded, so that equal remainders stay equal whatever the last bit of the division says.
    by_remainder = np.lexsort((tie, -np.round(exact - shares, 9)))
    shares[by_remainder[: total - shares.sum()]] += 1
    return shares


def stratified_choice(groups: NDArray[Any], count: int, generator: np.random.Generator) -> Indices:
    """Sorted positions of ``count`` of the things, drawn at random so that every group gives its share.

    >>> groups = np.array([0] * 8 + [1] * 4)
    >>> chosen = stratified_choice(groups, 6, np.random.default_rng(0))
    >>> np.bincount(groups[chosen]).tolist()
    [4, 2]
    """
    _, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    shares = whole_shares(sizes.astype(np.float64), count, generator.permutation(len(sizes)))
    shuffled = generator.permutation(len(groups))
    chosen = [shuffled[member[shuffled] == group][:share] for group, share in enumerate(shares)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
