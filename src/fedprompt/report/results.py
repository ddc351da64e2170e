"""From run folders to tables: everything is read from each run's settings and figures, nothing is told twice."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedprompt.report.published import SETUP, published
from fedprompt.report.result_table import ACCURACY, Cell, Column, Metric, ResultTable, Row
from fedprompt.report.sorting import Entry, Group, column_settings, grouped, plain_settings, row_labels
from fedprompt.runs import Run

__all__ = ["Heading", "ResultTable", "result_tables"]

FAMILY = ("pfedbayespt", "pfedbayespt-g", "pfedbayespt-d")  # the paper's ablation


@dataclass(frozen=True)
class Heading:
    """What the runs of a study ask together, and its name in file names."""

    title: str
    name: str


def result_tables(
    runs: Sequence[Run], metrics: Sequence[Metric] = ACCURACY, heading: Heading | None = None
) -> list[ResultTable]:
    """One table for each data set, split and protocol; without a heading the ablations get one of their own.

    Rows are methods (or a method's variants, named by what differs), columns are settings such as ``m=6``; each figure
    is a mean over seeds. Runs on the validation split never share a table with runs on test, nor new clients with old.
    """
    groups: dict[tuple[str, str, bool], list[Entry]] = {}
    for run in runs:
        entry = Entry(run)
        groups.setdefault((entry.data, entry.split, entry.new_clients), []).append(entry)
    tables: list[ResultTable] = []
    for entries in groups.values():
        if heading is not None:
            tables.append(_table(entries, metrics, heading=heading))
            continue
        ablated = [entry for entry in entries if entry.method in FAMILY]
        others = [entry for entry in entries if entry.method not in FAMILY[1:]]
        if {entry.method for entry in ablated} >= {FAMILY[0]} and len({entry.method for entry in ablated}) > 1:
            columns = {entry.column for entry in ablated if entry.method != FAMILY[0]}
            if any(entry.method != FAMILY[0] for entry in others):
                tables.append(_table(others, metrics))
            else:
                columns |= {entry.column for entry in ablated}
            tables.append(_table([entry for entry in ablated if entry.column in columns], metrics, "ablation"))
        else:
            tables.append(_table(entries, metrics))
    return [table for table in tables if table.rows or table.notes]


def _table(
    entries: Sequence[Entry], metrics: Sequence[Metric], kind: str = "", heading: Heading | None = None
) -> ResultTable:
    first = entries[0]
    notes = []
    kept, doubles = _without_doubles(entries)
    if doubles:
        notes.append(f"Given twice with the same settings and seed, counted once: {', '.join(doubles)}.")
    started = [entry for entry in kept if entry.figures]
    for entry in kept:
        if not entry.finished:
            told = "its figures stand in a row of their own" if entry.figures else "it has no figures yet"
            notes.append(f"{entry.run.folder.name} is unfinished ({entry.progress}); {told}.")
    if first.new_clients:
        metrics = [metric for metric in metrics if metric.key != "worst_local"]
    order = {entry.column: entry.column_order for entry in started}
    columns = [Column(name, metric) for name in sorted(order, key=order.__getitem__) for metric in metrics]
    by_column = column_settings(started)
    groups = grouped(started, by_column)
    cells = [[_cell(group, column) for column in columns] for group in groups]
    _add_paper(groups, columns, cells, first)
    _mark_best(groups, columns, cells)
    rows = [
        Row(label, group.method, tuple(line), tuple(group.entries))
        for label, group, line in zip(row_labels(groups), groups, cells, strict=True)
    ]
    for label, settings in plain_settings(groups).items():
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        notes.append(f"Where not said otherwise, {label} has {told}.")
    for key, values in by_column.items():
        told = ", ".join(f"{values[name].partition('@')[0]} ({name})" for name in sorted(values, key=order.__getitem__))
        notes.append(f"{key} changes with the column: {told}.")
    notes += (
        _seed_notes(rows, columns) + _format_notes(rows) + _absence_notes(kept) + _scale_notes(metrics, kept, cells)
    )
    title, name = _names(first, metrics, kind, heading)
    return ResultTable(title, name, tuple(columns), tuple(rows), tuple(notes))


def _names(entry: Entry, metrics: Sequence[Metric], kind: str, heading: Heading | None) -> tuple[str, str]:
    """The title of a table and its name in file names."""
    who = ", new clients" if entry.new_clients and heading is None else ""
    if heading is None:
        what = f"{'Ablation' if kind else 'Methods'} on {entry.data_title}"
    else:
        what = heading.title if entry.data_title in heading.title else f"{heading.title}: {entry.data_title}"
        kind = heading.name if heading.name != entry.data else ""
    how = ", calibration" if all(metric.key not in ("average", "worst_local") for metric in metrics) else ""
    where = ", VALIDATION split (not test)" if entry.split == "validation" else ""
    title = f"{what}{who}{how}{where}"
    parts = [entry.data, kind, who, how, "validation" if where else ""]
    return title, "-".join(re.sub(r"[^\w]+", "-", part).strip("-") for part in parts if part).lower()


def _without_doubles(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """The runs, each once: a run that is there twice is not two seeds."""
    kept: dict[object, Entry] = {}
    doubles = []
    for entry in entries:
        key = (entry.method, entry.column, entry.seed, entry.progress, tuple(sorted(entry.settings.items())))
        if key not in kept:
            kept[key] = entry
        elif entry.run.folder.resolve() != kept[key].run.folder.resolve():
            doubles.append(entry.run.folder.name)
    return list(kept.values()), doubles


def _cell(group: Group, column: Column) -> Cell | None:
    metric = column.metric
    own = sorted((entry for entry in group.entries if entry.column == column.setting), key=lambda entry: entry.seed)
    values = {entry.seed: metric.scale * entry.figures[metric.key] for entry in own if metric.key in entry.figures}
    return Cell(values, metric.decimals) if values else None


def _add_paper(
    groups: Sequence[Group], columns: Sequence[Column], cells: list[list[Cell | None]], entry: Entry
) -> None:
    """Set the paper's figures beside ours: of several variants of a method, beside the best one alone."""
    if entry.split != "test":
        return
    for place, column in enumerate(columns):
        for method in {group.method for group in groups}:
            rivals = [
                row
                for row, group in enumerate(groups)
                if group.method == method and not group.progress and cells[row][place] is not None
            ]
            if not rivals:
                continue
            # By the first metric (Average) in both columns, so that both of the paper's figures stand in one row.
            judged = next(i for i, other in enumerate(columns) if other.setting == column.setting)
            best = max(rivals, key=lambda row: _mean(cells[row][judged]))
            found = published(
                entry.data, column.setting, groups[best].title, column.metric.key, new_clients=entry.new_clients
            )
            cell = cells[best][place]
            if found is not None and cell is not None:
                cells[best][place] = replace(cell, paper=found)


def _mean(cell: Cell | None) -> float:
    return float("-inf") if cell is None else cell.mean


def _mark_best(groups: Sequence[Group], columns: Sequence[Column], cells: list[list[Cell | None]]) -> None:
    """Mark the best figure of each column, and those that print the same; what is unfinished or diverged cannot win."""
    for place, column in enumerate(columns):
        rivals: dict[int, float] = {}
        for row, group in enumerate(groups):
            cell = cells[row][place]
            if cell is not None and not group.progress and math.isfinite(cell.mean):
                rivals[row] = round(cell.mean, column.metric.decimals)
        if len(rivals) < 2:
            continue
        best = (max if column.metric.higher_is_better else min)(rivals.values())
        for row, value in rivals.items():
            cell = cells[row][place]
            if cell is not None and value == best:
                cells[row][place] = replace(cell, best=True)


def _seed_notes(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Say where rows of a column rest on different seeds: their means are then not quite comparable."""
    notes = []
    for setting in dict.fromkeys(column.setting for column in columns):
        place = next(i for i, column in enumerate(columns) if column.setting == setting)
        cells = {row.label: cell for row in rows if (cell := row.cells[place]) is not None}
        seeds = {label: _numbers(tuple(cell.by_seed)) for label, cell in cells.items()}
        if len(set(seeds.values())) > 1:
            notes.append(f"Seeds differ between the rows of {setting} ({_by_kind(seeds)}).")
    return notes


def _format_notes(rows: Sequence[Row]) -> list[str]:
    """Say where runs were computed in different number formats, as those of two machines may be."""
    found = {row.label: sorted({entry.number_format for entry in row.entries} - {""}) for row in rows}
    if len({name for formats in found.values() for name in formats}) < 2:
        return []
    told = _by_kind({label: " and ".join(formats) for label, formats in found.items() if formats})
    return [f"Number formats of the backbone differ, and with them the figures of the same seed ({told})."]


def _by_kind(kinds: Mapping[str, str]) -> str:
    """Which rows are of which kind. Most are often of one, and these are not named one by one."""
    labels: dict[str, list[str]] = {}
    for label, kind in kinds.items():
        labels.setdefault(kind, []).append(label)
    told = {kind: ", ".join(own) for kind, own in labels.items()}
    most = max(labels, key=lambda kind: len(labels[kind]))
    if len(labels) > 1 and len(labels[most]) > 2:
        del told[most]
        told[most] = "the other rows"  # behind those that it is the others of
    return "; ".join(f"{rows}: {kind}" for kind, rows in told.items())


def _absence_notes(entries: Sequence[Entry]) -> list[str]:
    """Say which clients never trained: where heads are local they have none, and are often the worst."""
    if entries[0].new_clients:
        return []  # they are judged alone, and all of them have trained a head
    found = {
        f"client {client} with seed {entry.seed}": None
        for entry in sorted(entries, key=lambda entry: entry.seed)
        if entry.finished
        for client in entry.run.summary["never_sampled"]
    }
    return [f"Sampled in no round, so judged as it began: {', '.join(found)}."] if found else []


def _numbers(seeds: Sequence[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))


def _scale_notes(
    metrics: Sequence[Metric], entries: Sequence[Entry], cells: Sequence[Sequence[Cell | None]]
) -> list[str]:
    """What the figures are, and what the paper's rest on where they stand beside ours."""
    shown = [cell for line in cells for cell in line if cell is not None]
    if not shown:
        return []
    counts = sorted({len(cell.by_seed) for cell in shown})
    spread_of = (
        f", mean ± sample standard deviation over {' or '.join(map(str, counts))} seeds" if counts[-1] > 1 else ""
    )
    lower = [metric.title for metric in metrics if not metric.higher_is_better]
    percent = [metric.title for metric in metrics if metric.scale != 1]
    notes = [f"{' and '.join(percent)} in %{spread_of}{'; lower is better' if lower else ''}."]
    if any(cell.paper is not None for cell in shown):
        used = _used([entry.settings for entry in entries])
        notes.append(f"The paper's figures rest on {SETUP}; these runs on {used}. In brackets: ours minus the paper's.")
    return notes


def _used(settings: Sequence[Mapping[str, str]]) -> str:
    """What the runs were trained on, in a few words."""
    words = {
        "backbone.weights": "{}",
        "backbone.image": "{} px",
        "training.rounds": "rounds: {}",
        "training.epochs": "local epochs: {}",
        "partition.clients": "clients: {}",
    }
    parts = []
    for key, form in words.items():
        values = dict.fromkeys(one[key].partition("@")[0] for one in settings if key in one)
        if values:
            parts.append(form.format(" or ".join(values)))
    return ", ".join(parts)
