"""Flower's simulation engine: the same apps in Ray's workers, for many GPUs or a Ray cluster."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

from flwr.app import ConfigRecordValues, Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedprompt import runs
from fedprompt.errors import UserError
from fedprompt.federation.flower.charter import read_charter
from fedprompt.federation.flower.client_app import make_client_app
from fedprompt.federation.flower.server_app import serve, status_path


def simulate(folder: Path, cpus: float = 1.0, gpus: float = 0.0) -> runs.Run:
    """Drive the run of a prepared folder, with so many CPUs and GPUs for each client at work."""
    if find_spec("ray") is None:
        raise UserError(
            "Flower's simulation engine needs Ray; install it with: pip install 'fedprompt[flower-simulation]'."
        )
    folder = folder.resolve()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, folder / "server", folder)

    def place(context: Context) -> Path:
        return folder / "nodes" / f"client-{context.node_config['partition-id']}"

    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    clients = len(read_charter(folder / "server").members)
    resources: dict[str, ConfigRecordValues] = {"num_cpus": cpus, "num_gpus": gpus}
    try:
        run_simulation(server_app, make_client_app(place), clients, backend_config={"client_resources": resources})
    except (Exception, SystemExit):
        status = json.loads(status_path(folder / "server").read_text())
        if status["state"] == "failed":
            raise UserError(str(status["reason"])) from None
        raise
    return runs.load_run(folder)
