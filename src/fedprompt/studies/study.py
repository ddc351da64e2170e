"""A study at one scale, on chosen data sets: the grid of cells that its definition means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedprompt.config import Config, load_config
from fedprompt.errors import UserError
from fedprompt.methods import method_class
from fedprompt.report.sorting import flat
from fedprompt.studies.cell import Cell
from fedprompt.studies.definition import (
    SCALES,
    RowSettings,
    Scale,
    ScaleSettings,
    SetupSettings,
    StudySettings,
    read_study,
)

Winners = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by data set and method: the settings that tuning chose


@dataclass(frozen=True)
class Study:
    """A grid of runs; see :func:`load_study`."""

    name: str
    scale: Scale
    definition: StudySettings
    on: tuple[str, ...]
    setups: Mapping[str, SetupSettings]
    changes: Mapping[str, Any] = field(default_factory=dict)  # by dotted key, over everything else

    def cells(
        self,
        seeds: Sequence[int] | None = None,
        only: Iterable[str] | None = None,
        winners: Winners | None = None,
    ) -> list[Cell]:
        """The grid, seed by seed; with ``winners`` each method has one row, with the settings that tuning chose.

        ``only`` keeps the cells of the methods, columns (``m=6``) and data sets that it names.
        """
        chosen = self.chosen(only)
        found: dict[str, Cell] = {}  # a change may make two rows the same
        for seed in self.definition.seeds if seeds is None else seeds:
            for data in self.on:
                for column in self.definition.on[data]:
                    for row in self.rows(data, winners):
                        if not chosen(data, column, row.method):
                            continue
                        changes = self._changes(data) | _row_changes(row) | {self.setups[data].key: column}
                        cell = Cell(self.config(data, changes, row.method, seed), self.definition.samples)
                        found.setdefault(cell.key, cell)
        return list(found.values())

    def rows(self, data: str, winners: Winners | None = None) -> list[RowSettings]:
        """The rows of the table on a data set."""
        if winners is None:
            return list(self.definition.rows)
        return [
            RowSettings(method=method, settings=dict(winners[data][method]))
            for method in self.methods
            if method in winners.get(data, {})
        ]

    def __len__(self) -> int:
        """The number of cells with all seeds; where settings are tuned, each method has one row."""
        rows = self.methods if self.tunes else self.definition.rows
        return sum(len(self.definition.on[data]) for data in self.on) * len(rows) * len(self.definition.seeds)

    def one_row_each(self) -> Winners:
        """What tuning leaves of the rows, before it is known which settings win."""
        return {data: {method: {} for method in self.methods} for data in self.on}

    @property
    def tunes(self) -> bool:
        """Whether settings are tuned unless somebody says not to."""
        return self.scale in self.definition.tune

    def data_names(self) -> list[str]:
        """What the data sets are called in the settings of a run."""
        return [load_config(self._scale(data).preset).data.name for data in self.on]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row.method for row in self.definition.rows))

    def trials(self, data: str, method: str, settings: Mapping[str, Any], seeds: Iterable[int]) -> list[Cell]:
        """The runs that judge settings of a method on validation images; the same for every study of the data set."""
        setup, scale = self.setups[data], self._scale(data)
        changes = flat(dict(scale.settings)) | _row_changes(RowSettings(method=method, settings=settings))
        changes |= {"data.validation": setup.validation} | flat(dict(scale.trial))
        changes |= {"evaluation.split": "validation"}
        return [
            Cell(self.config(data, {**changes, setup.key: column}, method, seed))
            for column in setup.tune_at
            for seed in seeds
        ]

    def tries(self, data: str) -> Mapping[str, list[dict[str, Any]]]:
        """What the methods try on a data set in place of the usual grid."""
        return self._scale(data).tries

    def config(self, data: str, changes: Mapping[str, Any], method: str, seed: int) -> Config:
        """The settings of one run: the preset's, with changes, and those of the study on top."""
        return load_config(self._scale(data).preset, {**changes, **self.changes, "method": method, "seed": seed})

    def chosen(self, only: Iterable[str] | None) -> Callable[[str, int, str], bool]:
        """Whether a cell is among those named: words of one kind are alternatives, each kind narrows."""
        words = set(only or ())
        columns = {f"{self.setups[data].symbol}={value}" for data in self.on for value in self.definition.on[data]}
        known = (set(self.on), columns, set(self.methods))
        for word in words.difference(*known):
            raise UserError(
                f"--only names {word!r}, which is no part of the study {self.name!r}; "
                f"parts are {', '.join([*self.on, *sorted(columns), *self.methods])}."
            )

        def fits(data: str, column: int, method: str) -> bool:
            parts = (data, f"{self.setups[data].symbol}={column}", method)
            return all(part in words or not words & kind for part, kind in zip(parts, known, strict=True))

        return fits

    def _scale(self, data: str) -> ScaleSettings:
        found = self.setups[data].at(self.scale)
        assert found is not None  # load_study has looked
        return found

    def _changes(self, data: str) -> dict[str, Any]:
        definition = self.definition
        layers = (
            self._scale(data).settings,
            definition.settings,
            definition.settings_on.get(data, {}).get(self.scale, {}),
        )
        return {key: value for layer in layers for key, value in flat(dict(layer)).items()}


def load_study(
    name: str | Path, scale: str = "cpu", on: Iterable[str] | None = None, changes: Mapping[str, Any] | None = None
) -> Study:
    """A study by its name (or a TOML file), at a scale, on the data sets named.

    >>> study = load_study("ablation", "paper")
    >>> study.on, len(study.cells(seeds=[0]))
    (('domainnet', 'cifar100'), 6)
    """
    definition = read_study(name)
    own = Path(name).stem
    if scale not in SCALES:
        raise UserError(f"There is no scale {scale!r}; there are {' and '.join(SCALES)}.")
    if definition.setup is not None and own not in definition.on:
        raise UserError(f"The table [setup] of the study {own!r} is of no use: [on] does not name {own!r}.")
    wanted = tuple(on) if on else definition.default_on or tuple(definition.on)
    setups = {}
    for data in wanted:
        if data not in definition.on:
            raise UserError(f"The study {own!r} is not defined on {data!r}; use --on {' or '.join(definition.on)}.")
        setup = definition.setup if data == own else read_study(data).setup
        if setup is None:
            raise UserError(f"The study {own!r} names {data!r}, which defines no data set: it lacks the table [setup].")
        chosen = setup.at(scale)
        if chosen is None:
            there = [known for known in SCALES if setup.at(known)]
            raise UserError(f"{data} exists at scale {' and '.join(there)} only; use --scale {there[0]}.")
        for method in chosen.tries:
            method_class(method)  # or nothing would be tried in its name
        setups[data] = setup
    return Study(own, scale, definition, wanted, setups, dict(changes or {}))


def study_of_preset(source: str, scale: Scale, methods: Sequence[str], changes: Mapping[str, Any]) -> Study:
    """A preset or settings file as a study of one column, so that it can be tuned like one."""
    config = load_config(source, changes)
    chosen: dict[str, Any] = {"key": "partition.clients", "symbol": "n", "tune_at": config.partition.clients}
    chosen |= {"validation": config.data.validation} if config.data.validation else {}
    setup = SetupSettings(**chosen, **{scale: ScaleSettings(preset=str(source))})
    name = config.name
    rows = tuple(RowSettings(method=method) for method in methods)
    definition = StudySettings(title=name, rows=rows, seeds=(0,), on={name: setup.tune_at}, setup=setup)
    return Study(name, scale, definition, (name,), {name: setup}, dict(changes))


def _row_changes(row: RowSettings) -> dict[str, Any]:
    """A row's settings by dotted key; a key that has a dot already is not one of the method's."""
    return {key if "." in key else f"methods.{row.method}.{key}": value for key, value in row.settings.items()}
