"""Doing one cell: begin it, or go on where it stopped, and mark it as finished."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedprompt import runs
from fedprompt.errors import UserError
from fedprompt.evaluation.samples import by_samples
from fedprompt.federation.checkpoint import FederationState, load_state, write_atomically
from fedprompt.federation.engine import Engine
from fedprompt.federation.simulation import Simulation
from fedprompt.runs import Observer, fingerprint
from fedprompt.studies.cell import Cell
from fedprompt.studies.store import (
    FAILURE,
    Store,
    check_data,
    check_whole,
    has_samples,
    is_empty,
    is_finished,
    locked,
    mark_finished,
)
from fedprompt.toml_text import to_toml

Event = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: done, busy (another process works on it) or failed."""

    kind: str
    seconds: float = 0.0  # of its rounds; 0 if there was nothing left to do
    complaint: str = ""


class _Rounds(Observer):
    """Tells which round a run is in."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell = tell
        self.rounds = 0

    def started(self, folder: Path, engine: Engine, state: FederationState) -> None:
        self.rounds = engine.config.training.rounds

    def round_begins(self, number: int, steps: int) -> None:
        self.tell({"round": number, "rounds": self.rounds})


def do_cell(store: Store, cell: Cell, data: str, tell: Callable[[Event], None] = lambda event: None) -> Outcome:
    """Finish a cell; a failure is written down in its folder and told, never raised.

    ``data`` is the digest of the data set that is there now; ``tell`` hears of rounds and of folders set aside.
    """
    folder = store.folder(cell)
    try:
        with locked(folder) as ours:
            if not ours:
                return Outcome("busy")
            damage = _damage(folder, cell)
            if damage is None:
                return _finish(folder, cell, data, tell)
        # The lock lies in the folder that goes away, so it is given up first; a second process finds the same damage.
        _set_aside(store, cell, damage, tell)
        return do_cell(store, cell, data, tell)
    except UserError as error:
        return _failed(folder, str(error), str(error))
    except Exception as error:
        return _failed(folder, f"{type(error).__name__}: {error}", traceback.format_exc())


def _damage(folder: Path, cell: Cell) -> str | None:
    """What is wrong with a cell that was begun, if anything."""
    if is_empty(folder):
        return None
    try:
        check_whole(folder, cell)
    except UserError as error:
        return str(error)
    return None


def _set_aside(store: Store, cell: Cell, damage: str, tell: Callable[[Event], None]) -> None:
    folder = store.folder(cell)
    with locked(folder) as ours:
        if ours and _damage(folder, cell):
            tell({"note": f"{damage} It was set aside as {store.set_aside(folder)} and is done anew."})


def _finish(folder: Path, cell: Cell, data: str, tell: Callable[[Event], None]) -> Outcome:
    seconds = 0.0
    if is_finished(folder, cell.key):
        check_data(folder, data)
    else:
        # A cell begins as a run that was stopped before its first round, so beginning and resuming are the same.
        write_atomically(folder / "config.toml", to_toml(cell.config.resolved()).encode() + b"\n")
        runs.resume(folder, _Rounds(tell))
        seconds = mark_finished(folder, cell, data)["seconds"]
    if not has_samples(folder, cell.samples):
        tell({"note": f"{cell.title}: measuring {len(cell.samples)} numbers of draws."})
        measure_samples(folder, cell)
    return Outcome("done", seconds)


def measure_samples(folder: Path, cell: Cell) -> None:
    """Write samples.json from the last checkpoint; training does not depend on the number of draws at test."""
    simulation = Simulation(cell.config)
    device = str(simulation.method.device)
    state = load_state(folder / "checkpoint.safetensors", fingerprint(cell.config), device)
    content = {"round": state.round, "rows": by_samples(simulation, state, cell.samples)}
    write_atomically(folder / "samples.json", json.dumps(content, indent=2).encode() + b"\n")


def _failed(folder: Path, complaint: str, details: str) -> Outcome:
    try:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        write_atomically(folder / FAILURE, f"{when}\n{details}\n".encode())
    except UserError:
        pass  # a full disk is what went wrong
    return Outcome("failed", complaint=complaint)
