"""Choosing a method's settings on images set aside from the clients' training data, never on test images."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from fedprompt.config import parse_assignments
from fedprompt.errors import UserError
from fedprompt.methods import methods
from fedprompt.randomness import numpy_generator
from fedprompt.studies.cell import Cell
from fedprompt.studies.definition import GridSettings
from fedprompt.studies.store import Store
from fedprompt.studies.study import Study
from fedprompt.toml_text import to_toml

Choice = dict[str, Any]  # settings of a method by name, or any setting by dotted key


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[Choice]:
    """Every combination of the values of a grid.

    >>> grid_points({"learning_rate": [0.1, 0.2], "length": [5]})
    [{'learning_rate': 0.1, 'length': 5}, {'learning_rate': 0.2, 'length': 5}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def choices(points: Sequence[Choice], rows: Sequence[Choice], trials: int, address: str) -> list[Choice]:
    """What a method gets to try: all of the points, or ``trials`` of them drawn without replacement.

    Each of the ``rows`` (a method's variants) is combined with every point. The draw depends on the address alone, so
    all studies of a data set try the same.

    >>> choices([{"learning_rate": 0.1}, {"learning_rate": 0.2}], [{"variant": "deep"}], 9, "")
    [{'variant': 'deep', 'learning_rate': 0.1}, {'variant': 'deep', 'learning_rate': 0.2}]
    """
    everything = [{**row, **point} for row in rows for point in points]
    if len(everything) <= trials:
        return everything
    drawn = numpy_generator(0, "tuning", address).choice(len(everything), trials, replace=False)
    return [everything[place] for place in sorted(int(place) for place in drawn)]


@dataclass(frozen=True)
class Trials:
    """All that is tried for one method on one data set: for each choice one cell a column and seed."""

    data: str
    method: str
    possible: int  # combinations in the grid
    tried: tuple[tuple[Choice, tuple[Cell, ...]], ...]

    @property
    def cells(self) -> list[Cell]:
        """Nothing is run where there is nothing to choose."""
        return [cell for _, cells in self.tried for cell in cells] if len(self.tried) > 1 else []

    def ranking(self, store: Store) -> list[dict[str, Any]]:
        """The choices that are done, best first: by Average on validation images, then by Worst Local."""
        rows = []
        for choice, cells in self.tried:
            finals = [run.summary["final"] for run in store.runs(list(cells))] if self.cells else []
            if len(finals) == len(cells):
                figures = {key: fmean(final[key] for final in finals) for key in ("average", "worst_local")}
                rows.append({"settings": choice, **figures, "runs": len(finals)})
        return sorted(rows, key=lambda row: (row["average"], row["worst_local"]), reverse=True)

    def decided(self, store: Store) -> bool:
        """Whether there is a winner."""
        return not self.cells or bool(self.ranking(store))

    def winner(self, store: Store) -> Choice:
        """The settings to use."""
        if not self.cells:
            return self.tried[0][0]
        ranking = self.ranking(store)
        if not ranking:
            raise UserError(f"No trial of {self.method} on {self.data} came to its end, so nothing can be chosen.")
        chosen: Choice = ranking[0]["settings"]
        return chosen

    def table(self, store: Store) -> RichTable:
        """The ranking for a terminal."""
        done = self.ranking(store)
        title = f"{methods()[self.method].title} on {self.data}: {len(done)} of {len(self.tried)} trials"
        if self.possible > len(self.tried):
            title += f" (drawn from {self.possible} combinations)"
        names = list(dict.fromkeys(name for choice, _ in self.tried for name in choice))
        shown = RichTable(*map(escape, names), "Average", "Worst Local", title=escape(title), box=None)
        shown.title_justify = "left"
        for row in done:
            settings = (escape(str(row["settings"].get(name, ""))) for name in names)
            shown.add_row(*settings, *(f"{100 * row[key]:.2f}" for key in ("average", "worst_local")))
        return shown

    def to_json(self, store: Store) -> dict[str, Any]:
        return {
            "data": self.data,
            "method": self.method,
            "possible": self.possible,
            "trials": len(self.tried) if self.cells else 0,
            "runs": len(self.cells),
            "ranking": [{**row, "settings": _finite(row["settings"])} for row in self.ranking(store)],
            "winner": _finite(self.winner(store)),
        }

    def to_toml(self, store: Store) -> str:
        """The winning settings, ready for a preset: the preset's own for this method, with the choice on top."""
        winner = self.winner(store)
        own = {key: value for key, value in winner.items() if "." not in key}
        said = self.tried[0][1][0].config.methods.get(self.method, {}) if self.tried[0][1] else {}
        lines = [f"# {methods()[self.method].title} on {self.data}: {len(self.tried)} trials on validation images"]
        lines += [f"# also chosen: {key} = {json.dumps(value)}" for key, value in winner.items() if "." in key]
        if {**said, **own}:
            lines.append(to_toml({"methods": {self.method: {**said, **own}}}))
        return "\n".join(lines) + "\n"


def _finite(choice: Choice) -> Choice:
    """JSON has no infinity: a limit that is lifted is null there."""
    return {name: None if value == math.inf else value for name, value in choice.items()}


def plan_trials(
    study: Study,
    grids: GridSettings,
    *,
    wanted: Sequence[str] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Trials]:
    """What is tried for each method on each data set of a study; ``grid`` is tried in place of the usual values."""
    planned = []
    for data in study.on:
        for method in study.methods if wanted is None else wanted:
            points = _points(study, data, method, grids, grid)
            varied = {name for point in points for name in point}
            rows = _distinct(
                {name: value for name, value in row.settings.items() if name not in varied}
                for row in study.definition.rows
                if row.method == method
            ) or [{}]
            found = choices(points, rows, grids.trials, f"{data} {method}")
            tried = tuple(
                (choice, tuple(study.trials(data, method, choice, seeds or [grids.seed]))) for choice in found
            )
            planned.append(Trials(data, method, len(points) * len(rows), tried))
    return planned


def _points(
    study: Study, data: str, method: str, grids: GridSettings, grid: Mapping[str, Sequence[Any]] | None
) -> list[Choice]:
    """What is tried of a method: a grid that was asked for, what the data set's study says, or the usual grid."""
    if grid is not None:
        return grid_points(grid)
    return study.tries(data).get(method) or grid_points(grids.methods.get(method, {}))


def _distinct(found: Iterable[Choice]) -> list[Choice]:
    return list({json.dumps(choice, sort_keys=True): choice for choice in found}.values())


def parse_grid(assignments: Sequence[str]) -> dict[str, list[Any]]:
    """``key=v1,v2`` strings as values to try; each value is read as TOML, and as a plain string if it is none.

    >>> parse_grid(["learning_rate=0.01,0.1", "prompt_start=blank"])
    {'learning_rate': [0.01, 0.1], 'prompt_start': ['blank']}
    """
    grid: dict[str, list[Any]] = {}
    for text in assignments:
        key, _, values = text.partition("=")
        if not key.strip() or not values.strip():
            raise UserError(f"--grid is {text!r}, but it must be key=value,value, as in learning_rate=0.01,0.03.")
        grid[key.strip()] = [parse_assignments([f"value={value}"])["value"] for value in values.split(",")]
    return grid
