"""Figures against the number of prompts drawn at prediction, from the runs in which they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedprompt.report.result_table import ACCURACY, CALIBRATION, Cell, Column, Metric, ResultTable, Row
from fedprompt.report.sorting import Entry, grouped, row_labels
from fedprompt.run_folder import read_json
from fedprompt.runs import Run

MEASURED = "samples.json"  # in a run's folder


def draws_tables(runs: Sequence[Run]) -> list[ResultTable]:
    """A table for each metric: rows are methods on a data set at one setting, columns are numbers of draws.

    Runs in which nothing was measured are passed over.
    """
    measured = [(Entry(run), read_json(run.folder / MEASURED)) for run in runs if (run.folder / MEASURED).is_file()]
    counts = sorted({row["samples"] for _, content in measured for row in content["rows"]})
    if not counts:
        return []
    rows = _by_row(measured)
    rounds = sorted({content["round"] for _, content in measured})
    note = f"After round {' or '.join(map(str, rounds))}; the first V of {counts[-1]} prompt draws, averaged."
    return [_table(rows, metric, counts, note) for metric in (*ACCURACY, *CALIBRATION)]


_Measured = list[tuple[Entry, dict[str, Any]]]


def _by_row(measured: _Measured) -> dict[tuple[str, str], _Measured]:
    """What was measured, by label and method: a row for each data set, setting and variant of a method."""
    rows: dict[tuple[str, str], _Measured] = {}
    contents = {entry.run.folder: content for entry, content in measured}
    for data, split in dict.fromkeys((entry.data, entry.split) for entry, _ in measured):
        groups = grouped(entry for entry, _ in measured if (entry.data, entry.split) == (data, split))
        where = "" if split == "test" else f", {split} split"
        for label, group in zip(row_labels(groups), groups, strict=True):
            for entry in sorted(group.entries, key=lambda entry: (entry.column_order, entry.seed)):
                row = rows.setdefault((f"{label}, {data} {entry.column}{where}", group.method), [])
                row.append((entry, contents[entry.run.folder]))
    return rows


def _table(rows: dict[tuple[str, str], _Measured], metric: Metric, counts: Sequence[int], note: str) -> ResultTable:
    lines = []
    for (label, method), measured in rows.items():
        by_count: dict[int, dict[int, float]] = {}
        for entry, content in measured:
            for row in content["rows"]:
                by_count.setdefault(row["samples"], {})[entry.seed] = metric.scale * row[metric.key]
        cells = tuple(Cell(by_count[count], metric.decimals) if count in by_count else None for count in counts)
        lines.append(Row(label, method, cells))
    columns = tuple(Column(f"V={count}", metric) for count in counts)
    return ResultTable(f"{metric.title} against the draws V", f"samples-{metric.key}", columns, tuple(lines), (note,))
