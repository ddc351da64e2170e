"""Times that can be compared: candidates take turns, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def take_turns(candidates: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each candidate in each of ``repeats`` turns, after one turn that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, candidate in candidates.items():
            began = time.perf_counter()
            candidate()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(seconds: Mapping[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """How many times as fast as ``base`` each candidate is: the median over turns, and the range over turns.

    The ratio is taken within each turn, where both saw the same machine.
    """
    found = {}
    for name, own in seconds.items():
        each = [reference / mine for reference, mine in zip(seconds[base], own, strict=True)]
        found[name] = {
            "seconds": statistics.median(own),
            "ratio": statistics.median(each),
            "lowest": min(each),
            "highest": max(each),
        }
    return found
