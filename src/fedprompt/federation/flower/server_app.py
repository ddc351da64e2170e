"""What runs beside the SuperLink: it drives a run in its folder, from the start or from its last checkpoint."""

from __future__ import annotations

import json
import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedprompt import runs
from fedprompt.config import Config
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import load_state, write_atomically
from fedprompt.federation.flower.charter import read_charter
from fedprompt.federation.flower.engine import FlowerEngine
from fedprompt.federation.flower.processes import end_with_parent
from fedprompt.run_folder import append_record

end_with_parent()
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or give new clients their models, as the run's settings say."""
    federation, run = (Path(str(context.run_config[key])) for key in ("federation", "run"))
    serve(grid, federation, run, welcome=str(context.run_config.get("welcome", "")))


def serve(grid: Grid, federation: Path, run: Path, welcome: str = "") -> None:
    """Drive a run to its end, or, with the name of a new client, give that one a model. Says how it went in a file."""
    status = Status(status_path(federation, welcome))
    try:
        if welcome:
            status.write("finished", **_welcome(grid, federation, run, welcome))
        else:
            runs.resume(run, engine_of=lambda config: _engine(config, grid, federation, run))
            status.write("finished")
    except UserError as error:
        status.write("failed", reason=str(error))
        raise
    except Exception as error:
        status.write("failed", reason=f"The server app failed with {type(error).__name__}; see the SuperLink's log.")
        raise


def status_path(federation: Path, welcome: str = "") -> Path:
    """Where the server app says how it goes: the training, or the welcome of one new client."""
    return federation / "status" / f"{f'welcome-{welcome}' if welcome else 'training'}.json"


class Status:
    """A small file by which whoever started the server app learns how it goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("running")

    def write(self, state: str, **more: Any) -> None:
        content = {"state": state, "process": os.getpid(), "time": time.time(), **more}
        write_atomically(self.path, json.dumps(content).encode())


def _engine(config: Config, grid: Grid, federation: Path, run: Path) -> FlowerEngine:
    engine = FlowerEngine(config, grid, read_charter(federation))
    engine.say = logging.getLogger("fedprompt").warning
    engine.note = partial(append_record, run / "traffic.jsonl")
    return engine


def _welcome(grid: Grid, federation: Path, run: Path, name: str) -> dict[str, Any]:
    """A model for one new client from the last checkpoint of a run that goes on or is finished."""
    done = runs.load_run(run)
    engine = _engine(done.config, grid, federation, run)
    member = engine.charter.members.get(name)
    if member is None:
        raise UserError(f"Nobody of the name {name!r} was admitted; use fedprompt federation admit.")
    state = load_state(run / "checkpoint.safetensors", runs.fingerprint(done.config), str(engine.method.device))
    engine.post.wait_for([member.client], 1)
    tallies, missing = engine.welcome(state, [member.client])
    if member.client not in tallies:
        raise UserError(f"{name} got no model: it {missing.get(member.client, 'has no image to evaluate on')}.")
    return {"accuracy": tallies[member.client].accuracy, "images": tallies[member.client].images}
