"""Which cells a study consists of, written down when it is run: to show it, one need not repeat every option."""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedprompt.config import Config
from fedprompt.federation.checkpoint import disk_error, write_atomically
from fedprompt.run_folder import read_json
from fedprompt.studies.cell import Cell
from fedprompt.studies.store import Store
from fedprompt.studies.study import Study

_LOCAL = ("device", "threads", "data.root")  # changes that make no other study


@dataclass(frozen=True)
class Plan:
    """The cells of a study with one set of changes; further seeds and columns are added to it."""

    study: str
    scale: str
    changes: Mapping[str, Any]
    tuned: bool
    updated: float
    cells: tuple[Cell, ...]

    def on(self, data: Sequence[str]) -> list[Cell]:
        """The cells on the data sets of these names; all of them if there are no names."""
        return [cell for cell in self.cells if not data or cell.config.data.name in data]


def save_plan(store: Store, study: Study, cells: Sequence[Cell], *, tuned: bool) -> None:
    """Write down that a study has these cells, beside those that it has already."""
    plan = Plan(study.name, study.scale, study.changes, tuned, time.time(), tuple(cells))
    _write(_path(store, study, tuned), plan)


def copy_plans(store: Store, to: Store, portable: Callable[[Config], Config]) -> None:
    """Set a store's plans beside those of another, with each cell's settings made fit to leave this machine."""
    for path in sorted((store.root / "plans").glob("*.json")):
        plan = _read(path)
        cells = tuple(replace(cell, config=portable(cell.config), known_key=cell.key) for cell in plan.cells)
        _write(to.root / "plans" / path.name, replace(plan, changes=_portable_changes(plan.changes), cells=cells))


def find_plan(store: Store, study: Study, *, tuned: bool | None = None) -> Plan | None:
    """The plan with the study's changes if it has any, else the one that was worked on last; None if there is none."""
    paths = sorted((store.root / "plans").glob(f"{study.name}-{study.scale}-*.json"))
    if study.changes:
        paths = [path for path in paths if path in (_path(store, study, True), _path(store, study, False))]
    plans = [plan for plan in map(_read, paths) if tuned in (None, plan.tuned)]
    return max(plans, key=lambda plan: plan.updated, default=None)


def _path(store: Store, study: Study, tuned: bool) -> Path:
    mark = json.dumps([_portable_changes(study.changes), tuned], sort_keys=True, default=str)
    digest = hashlib.sha256(mark.encode()).hexdigest()[:8]
    return store.root / "plans" / f"{study.name}-{study.scale}-{digest}.json"


def _portable_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in changes.items() if key not in _LOCAL}
    if weights := kept.get("backbone.weights"):
        kept["backbone.weights"] = Path(str(weights)).name
    return kept


def _read(path: Path) -> Plan:
    content = read_json(path)
    cells = tuple(
        Cell(Config(**entry["settings"]), tuple(entry["samples"]), entry.get("key", "")) for entry in content["cells"]
    )
    return Plan(content["study"], content["scale"], content["set"], content["tuned"], content["updated"], cells)


def _write(path: Path, plan: Plan) -> None:
    """Write a plan, beside the cells that are written down there already; in the same place the new ones count."""
    with _alone(path.parent):
        old = _read(path).cells if path.is_file() else ()
        anew = {_place(cell) for cell in plan.cells}
        kept = [cell for cell in old if _place(cell) not in anew]
        merged = {cell.key: cell for cell in (*kept, *plan.cells)}
        content = {
            "study": plan.study,
            "scale": plan.scale,
            "set": dict(plan.changes),
            "tuned": plan.tuned,
            "updated": plan.updated,
            "cells": [
                {"key": cell.key, "settings": cell.config.resolved(), "samples": cell.samples}
                for cell in merged.values()
            ],
        }
        write_atomically(path, json.dumps(content, default=str).encode() + b"\n")


def _place(cell: Cell) -> tuple[str, str, str, int]:
    """Where a cell stands in a study: a method's rows are always planned together, whatever their settings then are."""
    return cell.config.data.name, cell.column, cell.config.method, cell.config.seed


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, so that none loses what another adds."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise disk_error(error, folder) from None
