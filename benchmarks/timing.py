"""Figures that can be compared: candidates take turns, so that what else the machine does hits all of them alike; and
what is measured for its memory has a process of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def alone(measure: Callable[..., _Result], *args: Any) -> _Result:
    """What a function returns in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *args).result()


def peak_mib() -> float:
    """The most memory that this process has held.

    Not ``ru_maxrss`` where it can be helped: on Linux that starts at the size of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
