"""The figures that the paper publishes (Ye et al., CIKM 2025), to stand beside measured ones."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources

# Our name of a data set: the paper's file, and what the ablation table calls it.
_FILES = {"domainnet10": ("domainnet", "DomainNet"), "cifar100": ("cifar100", "CIFAR-100")}

SETUP = "ViT-B/16 at 224 px, 100 rounds of 5 local epochs, the last ten rounds"


def published(data: str, column: str, method: str, metric: str, *, new_clients: bool = False) -> float | None:
    """The paper's figure in % for a data set, a column such as ``m=6``, a method's title and a metric, if it has one.

    >>> published("domainnet10", "m=6", "pFedBayesPT", "worst_local")
    89.09
    >>> published("digits6", "m=6", "pFedBayesPT", "average") is None
    True
    """
    if data not in _FILES:
        return None
    file, title = _FILES[data]
    if new_clients:
        return _figures("new_clients").get((method, f"{file} {column}")) if metric == "average" else None
    found = _figures(file).get((method, metric, column))
    if found is None and metric == "average":
        found = _figures("ablation").get((f"{title} {column}", method))
    return found


@cache
def _figures(name: str) -> dict[tuple[str, ...], float]:
    """The cells of one published table, each under the texts that lead its row and the name of its column."""
    text = (resources.files("fedprompt") / "report" / "paper" / f"{name}.csv").read_text("utf-8")
    header, *rows = csv.reader(text.splitlines())
    leading = 2 if "metric" in header else 1
    return {
        (*row[:leading], column): float(value)
        for row in rows
        for column, value in zip(header[leading:], row[leading:], strict=True)
    }
