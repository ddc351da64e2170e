"""Files of a run folder: made new, appended to, and read back with doubt."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import disk_error


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; a last line cut short by a crash is left out."""
    records: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} is missing or damaged, so {path.parent} is no whole run.")
    return content


def free_path(path: Path) -> Path:
    """The path itself, or with a number the first that does not exist: nothing is ever written over."""
    number, wanted = 1, path
    while path.exists():
        number += 1
        path = wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
    return path


def new_folder(out: Path, name: str) -> Path:
    """A folder that did not exist before, with a number if need be: nothing is ever written over."""
    number = 1
    while True:
        folder = out / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir() or not out.is_dir():
                raise UserError(f"{out} cannot hold runs: it is not a folder.") from None
            number += 1
        except OSError as error:
            raise disk_error(error, folder) from None
        else:
            return folder


def remove(folder: Path) -> None:
    for leftover in folder.iterdir():
        leftover.unlink()
    folder.rmdir()


def append_record(path: Path, record: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())  # on the disk before the checkpoint that counts this round as done


def records_until(path: Path, rounds: int) -> list[dict[str, Any]]:
    """What was written up to the checkpoint; the rounds after it are run again."""
    kept = read_records(path)[:rounds]
    if [record.get("round") for record in kept] != list(range(1, rounds + 1)):
        raise UserError(f"{path} is damaged: it lacks rounds that the checkpoint has; start the run anew.")
    return kept
