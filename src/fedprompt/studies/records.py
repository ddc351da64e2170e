"""The records of finished cells, small and without a trace of the machine, for a repository or a colleague.

They are a store themselves, without tensors: ``study show``, ``tune`` and ``report`` make the same tables of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedprompt.config import Config
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.run_folder import read_json
from fedprompt.runs import load_run, weights_name
from fedprompt.studies.plans import copy_plans
from fedprompt.studies.store import Store, is_finished
from fedprompt.toml_text import to_toml

COPIED = ("metrics.jsonl", "samples.json", "summary.json", "timing.jsonl")


def keep_records(store: Store, to: Path) -> list[Path]:
    """Copy what was measured and with what settings from every finished cell; tensors and pictures stay behind.

    Where weights and data lay is left out, their names are not. A record that is there already and says something else
    is never written over.
    """
    target, kept = Store(to), []
    for cell in sorted((store.root / "cells").glob("*")):
        marks = cell / "cell.json"
        if not marks.is_file():
            continue
        about = read_json(marks)
        if not is_finished(cell, about["key"]):
            continue
        settings = _portable(load_run(cell).config).resolved()
        run = read_json(cell / "about.json")
        run["unreadable"] = [Path(name).name for name in run["unreadable"]]
        files = {
            "about.json": json.dumps(run, indent=2).encode() + b"\n",
            "config.toml": to_toml(settings).encode() + b"\n",
            "cell.json": json.dumps(about | {"settings": settings}, indent=1).encode() + b"\n",
        }
        files |= {name: (cell / name).read_bytes() for name in COPIED if (cell / name).is_file()}
        folder = target.root / "cells" / cell.name
        _refuse_another(folder, files["summary.json"])
        for name, content in files.items():
            write_atomically(folder / name, content)
        kept.append(folder)
    if not kept:
        raise UserError(f"{store.root} has no finished cell.")
    copy_plans(store, target, _portable)
    return kept


def _portable(config: Config) -> Config:
    """The same settings, but for where weights and data lie."""
    weights = {"weights": weights_name(config.backbone.weights)}
    return config.model_copy(
        update={
            "backbone": config.backbone.model_copy(update=weights),
            "data": config.data.model_copy(update={"root": None}),
        }
    )


def _refuse_another(folder: Path, summary: bytes) -> None:
    there = folder / "summary.json"
    if there.is_file() and there.read_bytes() != summary:
        raise UserError(f"{folder} holds another result of the same cell; move it away, or keep records elsewhere.")
