"""Where cells are kept: a folder for each, locked while somebody works on it, marked when it is finished.

A store holds::

    cells/<name>-<key>/     a run folder, with cell.json once it is finished (and samples.json if that was asked for)
    damaged/                cell folders that could not be read and were set aside
    plans/                  which cells each study consists of
    tuned/                  settings that tuning chose
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedprompt.data.dataset import Dataset, FileSplit
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import disk_error, load_state, write_atomically
from fedprompt.run_folder import free_path, read_json, records_until
from fedprompt.runs import Run, fingerprint, load_run
from fedprompt.studies.cell import Cell
from fedprompt.studies.provenance import code_version, machine

LOCK = ".lock"
FAILURE = "failure.txt"


class Store:
    """The cells under one folder; any number of processes may use it at once."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def folder(self, cell: Cell) -> Path:
        return self.root / "cells" / cell.name

    def finished(self, cell: Cell) -> bool:
        """Whether there is nothing left to do for a cell."""
        return is_finished(self.folder(cell), cell.key) and has_samples(self.folder(cell), cell.samples)

    def runs(self, cells: list[Cell]) -> list[Run]:
        """The runs of the cells that are finished."""
        return [Run(self.folder(cell)) for cell in cells if self.finished(cell)]

    def set_aside(self, folder: Path) -> Path:
        """Move a cell folder out of the way under a name that is free; nothing is deleted."""
        target = free_path(self.root / "damaged" / folder.name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)
        except OSError as error:
            raise disk_error(error, target) from None
        return target


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Make a cell's folder if need be, and own it: True, or False while another process does.

    The lock is the operating system's, so it ends with its process, however that ends.
    """
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("a")
        except FileNotFoundError:
            continue  # set aside by another process in this very moment
        except OSError as error:
            raise disk_error(error, folder) from None
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if not _same_file(file.fileno(), folder / LOCK):
                continue  # it was moved away before we had it
            yield True
            return
        finally:
            file.close()


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def is_finished(folder: Path, key: str) -> bool:
    """Whether a folder holds the finished run of this key, both marks being whole."""
    return _mark(folder / "cell.json").get("key") == key and bool(_mark(folder / "summary.json"))


def has_samples(folder: Path, samples: tuple[int, ...]) -> bool:
    """Whether the accuracy at each of these numbers of draws has been measured."""
    rows = _mark(folder / "samples.json").get("rows", []) if samples else []
    return set(samples) <= {row.get("samples") for row in rows if isinstance(row, dict)}


def _mark(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except UserError:
        return {}


def is_empty(folder: Path) -> bool:
    """Whether nothing was written yet that belongs to a run."""
    return all(entry.name.startswith(".") or entry.name == FAILURE for entry in folder.iterdir())


def check_whole(folder: Path, cell: Cell) -> None:
    """Raise a UserError that says what is wrong with a cell that was begun, if anything is."""
    kept = load_run(folder).config
    if fingerprint(kept) != fingerprint(cell.config):
        raise UserError(f"{folder / 'config.toml'} holds other settings than the cell's name says.")
    for name in ("summary.json", "cell.json"):
        if (folder / name).exists():
            read_json(folder / name)
    rounds = 0
    if (folder / "checkpoint.safetensors").exists():
        rounds = load_state(folder / "checkpoint.safetensors", fingerprint(kept)).round
    elif (folder / "summary.json").exists():
        raise UserError(f"{folder} has a summary but no checkpoint.")
    for name in ("metrics.jsonl", "timing.jsonl"):
        records_until(folder / name, rounds)


def mark_finished(folder: Path, cell: Cell, data: str) -> dict[str, Any]:
    """Write cell.json: what was computed, by which code, when, for how long, on what."""
    timings = Run(folder).timings
    content = {
        "key": cell.key,
        "settings": cell.config.resolved(),
        "data": data,
        "code": code_version(),
        "started": timings[0]["ended"] - timings[0]["seconds"],
        "ended": time.time(),
        "seconds": round(sum(timing["seconds"] for timing in timings), 3),  # of the rounds, over all sittings
        "machine": machine(),
    }
    write_atomically(folder / "cell.json", json.dumps(content, indent=2).encode() + b"\n")
    with suppress(FileNotFoundError):
        (folder / FAILURE).unlink()
    return content


def check_data(folder: Path, data: str) -> None:
    """Refuse a finished cell that was made from other images than those that are there now."""
    made_from = _mark(folder / "cell.json").get("data", data)
    if made_from != data:
        raise UserError(f"{folder} was made from other images than those that are there now; use another --out.")


def data_digest(dataset: Dataset) -> str:
    """Which images a data set has, as far as labels, file names and sizes tell: a cell's key says nothing of them."""
    digest = hashlib.sha256(json.dumps([dataset.classes, dataset.domains]).encode())
    for split in (dataset.train, dataset.test):
        digest.update(split.labels.astype("<i8").tobytes() + split.domains.astype("<i8").tobytes())
        for path in split.paths if isinstance(split, FileSplit) else ():
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()
