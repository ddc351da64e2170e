"""The results in words: who leads, by how much, and whether that is more than chance over the seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedprompt.report.result_table import Cell, Column, Metric, ResultTable

IN_FULL = 2  # settings that get a sentence each; more are summed up

Ranked = list[tuple[str, Cell]]


def in_words(table: ResultTable) -> list[str]:
    """Sentences on what can be compared in a table: its columns one by one, or summed up where they are many."""
    contests = [(column, ranked) for column in table.columns if len(ranked := _ranking(table, column)) > 1]
    if len(table.settings) <= IN_FULL:
        sentences = [_lead(column, ranked) for column, ranked in contests]
    else:
        metrics = dict.fromkeys(column.metric for column, _ in contests)
        sentences = [_overall(metric, [r for column, r in contests if column.metric == metric]) for metric in metrics]
    return sentences + _against_paper(table)


def spread_of_both(one: Cell, other: Cell) -> float | None:
    """The pooled standard deviation of two figures; None where either has a single seed.

    >>> spread_of_both(Cell({0: 1.0, 1: 3.0}), Cell({0: 2.0, 1: 4.0}))
    1.4142135623730951
    """
    if one.std is None or other.std is None:
        return None
    return float(((one.std**2 + other.std**2) / 2) ** 0.5)


def listed(words: Sequence[str]) -> str:
    """Words with commas and an "and".

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _ranking(table: ResultTable, column: Column) -> Ranked:
    """The finished rows of a column, the best first."""
    place = table.columns.index(column)
    ranked = [
        (row.label, cell)
        for row in table.rows
        if (cell := row.cells[place]) is not None
        and not any(entry.progress for entry in row.entries)
        and math.isfinite(cell.mean)
    ]
    return sorted(ranked, key=lambda item: item[1].mean, reverse=column.metric.higher_is_better)


def _lead(column: Column, ranked: Ranked) -> str:
    (label, best), (second, after) = ranked[:2]
    what = f"{_best(column.metric)} {column.metric.title}"
    unit = " %" if column.metric.scale != 1 else ""
    tied = [name for name, cell in ranked if round(cell.mean, cell.decimals) == round(best.mean, best.decimals)]
    if len(tied) > 1:
        return f"{column.setting}: {listed(tied)} share the {what}, {best.mean:.{best.decimals}f}{unit}."
    start = f"{column.setting}: {label} has the {what}, {best.text}{unit}; {second} follows with {after.text}{unit}"
    apart = spread_of_both(best, after)
    if apart is None:
        return f"{start}. With one seed nothing is known of chance."
    if abs(best.mean - after.mean) <= apart:
        return f"{start}, which is within the spread over seeds: no clear winner."
    return f"{start}, a difference larger than the spread over seeds."


def _overall(metric: Metric, contests: Sequence[Ranked]) -> str:
    """Who leads how often, and in how many settings by more than the spread."""
    wins = Counter(ranked[0][0] for ranked in contests).most_common()
    told = ", ".join(f"{label} in {count}" for label, count in wins)
    known = [
        (ranked, apart) for ranked in contests if (apart := spread_of_both(ranked[0][1], ranked[1][1])) is not None
    ]
    start = f"{_best(metric)} {metric.title} of {len(contests)} settings: {told}"
    if not known:
        return f"{start}. With one seed nothing is known of chance."
    clear = sum(abs(ranked[0][1].mean - ranked[1][1].mean) > apart for ranked, apart in known)
    return f"{start}; ahead of the next by more than the spread over seeds in {clear} of {len(known)}."


def _best(metric: Metric) -> str:
    return "highest" if metric.higher_is_better else "lowest"


def _against_paper(table: ResultTable) -> list[str]:
    gaps = [
        gap for row in table.rows for cell in row.cells if cell is not None and (gap := cell.difference) is not None
    ]
    if not gaps:
        return []
    mean = sum(gaps) / len(gaps)
    way = "above" if mean > 0 else "below"
    figures = "figure" if len(gaps) == 1 else f"{len(gaps)} figures"
    ends = f"from {min(gaps):+.2f} to {max(gaps):+.2f}"
    return [f"against the paper's {figures}: {abs(mean):.2f} points {way} on average ({ends})."]
