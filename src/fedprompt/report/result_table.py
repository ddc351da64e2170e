"""A table of results: mean and spread over seeds, the best of each column, the paper's figure beside ours."""

from __future__ import annotations

import csv
import html
import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from fedprompt.report.sorting import Entry
from fedprompt.report.spread import mean_and_spread, spread

MISSING = "-"


@dataclass(frozen=True)
class Metric:
    """A figure of merit, and how it is printed."""

    key: str
    title: str
    scale: float = 100.0  # from what a run stores to what is printed
    decimals: int = 2
    higher_is_better: bool = True


ACCURACY = (Metric("average", "Average"), Metric("worst_local", "Worst Local"))
CALIBRATION = (
    Metric("nll", "NLL", scale=1.0, decimals=3, higher_is_better=False),
    Metric("brier", "Brier", scale=1.0, decimals=3, higher_is_better=False),
    Metric("calibration_error", "Calibration error", higher_is_better=False),
)


@dataclass(frozen=True)
class Column:
    """A setting, such as ``m=6``, and a metric."""

    setting: str
    metric: Metric


@dataclass(frozen=True)
class Cell:
    """A figure over seeds, in printed units, with the paper's where it has one."""

    by_seed: Mapping[int, float]
    decimals: int = 2
    paper: float | None = None
    best: bool = False

    @property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds; None with one seed."""
        return spread(self.values)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.mean - self.paper

    @property
    def text(self) -> str:
        return mean_and_spread(self.values, self.decimals)

    @property
    def paper_text(self) -> str:
        """The paper's figure and how far ours lies from it; empty where it has none."""
        if self.paper is None:
            return ""
        # A true minus sign: a hyphen is easily overlooked.
        return f"paper {self.paper:.2f} ({self.mean - self.paper:+.2f})".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Row:
    """A method, with what sets it apart from other rows of the same method."""

    label: str
    method: str
    cells: tuple[Cell | None, ...]
    entries: tuple[Entry, ...] = field(default=(), repr=False, compare=False)  # the runs that it rests on


@dataclass(frozen=True)
class ResultTable:
    """Rows are methods, columns are settings and metrics; prints itself in every form that is asked for."""

    title: str
    name: str  # for file names
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row.cells) == len(self.columns) for row in self.rows)

    @property
    def settings(self) -> list[str]:
        """The settings over the columns, each once."""
        return list(dict.fromkeys(column.setting for column in self.columns))

    def cell(self, label: str, setting: str, metric: str) -> Cell | None:
        """One cell by the names of its row and column; None where there is no such run."""
        place = [(column.setting, column.metric.key) for column in self.columns].index((setting, metric))
        return next(row for row in self.rows if row.label == label).cells[place]

    def to_markdown(self) -> str:
        """The table as Markdown, with its title and notes."""
        head = ["method", *(f"{column.setting} {column.metric.title}" for column in self.columns)]
        lines = [f"### {_markdown(self.title)}", "", _line(map(_markdown, head))]
        lines.append(_line(["---", *["---:"] * len(self.columns)]))
        for row in self.rows:
            lines.append(_line([_markdown(row.label), *(_markdown_cell(cell) for cell in row.cells)]))
        lines += [""] + [f"- {_markdown(note)}" for note in self.notes]
        return "\n".join(lines).rstrip() + "\n"

    def to_csv(self) -> str:
        """One line for each cell, with every digit."""
        out = io.StringIO()
        writer = csv.DictWriter(out, _CSV, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.to_json()["cells"])
        return out.getvalue()

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""
        cells = []
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if cell is None:
                    continue
                figures: dict[str, Any] = {"mean": _finite(cell.mean), "std": _finite(cell.std)}
                figures |= {"seeds": len(cell.by_seed), "best": cell.best}
                figures |= {"paper": cell.paper, "difference": cell.difference}
                place = {"setting": column.setting, "metric": column.metric.key}
                cells.append({"row": row.label, "method": row.method, **place, **figures})
        return {"title": self.title, "name": self.name, "cells": cells, "notes": list(self.notes)}

    def to_html(self) -> str:
        """The table as HTML, its header in two lines: settings, and under each its metrics."""
        tops = [(setting, sum(column.setting == setting for column in self.columns)) for setting in self.settings]
        top = "".join(f'<th scope="colgroup" colspan="{span}">{html.escape(name)}</th>' for name, span in tops)
        under = "".join(f'<th scope="col">{html.escape(column.metric.title)}</th>' for column in self.columns)
        body = "".join(
            f'<tr><th scope="row">{html.escape(row.label)}</th>{"".join(map(_html_cell, row.cells))}</tr>\n'
            for row in self.rows
        )
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return (
            f'<table class="results"><caption>{html.escape(self.title)}</caption>\n'
            f'<thead><tr><th scope="col" rowspan="2">method</th>{top}</tr><tr>{under}</tr></thead>\n'
            f"<tbody>\n{body}</tbody></table>\n" + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def rich(self) -> RichTable:
        """The table for a terminal; notes are its caption."""
        table = RichTable(title=escape(self.title), box=None, title_justify="left", caption_justify="left")
        table.caption = escape("\n".join(self.notes)) or None
        table.add_column("method", overflow="fold")
        # As wide as the longest word of a header, unless there are so many columns that this would cut some off.
        least = 7 if len(self.columns) <= 6 else None
        for column in self.columns:
            head = f"{escape(column.setting)}\n{column.metric.title}"
            table.add_column(head, justify="right", overflow="fold", min_width=least)
        for row in self.rows:
            table.add_row(escape(row.label), *(_rich_cell(cell) for cell in row.cells))
        return table


_CSV = ("row", "method", "setting", "metric", "mean", "std", "seeds", "best", "paper", "difference")


def _finite(value: float | None) -> float | None:
    """JSON has no word for a figure that diverged."""
    return value if value is None or math.isfinite(value) else None


def _line(cells: Sequence[str] | Any) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\|<>*_`\[\]#])", r"\\\1", text.replace("\n", " "))


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return MISSING
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text}<br>{cell.paper_text}" if cell.paper_text else text


def _html_cell(cell: Cell | None) -> str:
    if cell is None:
        return f'<td class="missing">{MISSING}</td>'
    text = f"<strong>{cell.text}</strong>" if cell.best else cell.text
    paper = f'<small class="paper">{cell.paper_text}</small>' if cell.paper_text else ""
    return f"<td>{text}{paper}</td>"


def _rich_cell(cell: Cell | None) -> str:
    if cell is None:
        return MISSING
    text = f"[bold]{cell.text}[/]" if cell.best else cell.text
    return f"{text}\n[dim]{cell.paper_text}[/]" if cell.paper_text else text
