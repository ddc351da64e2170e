"""The work under Flower's simulation engine: a ClientApp, a ServerApp with FedAvg, Ray underneath.

PYTHONPATH=. python flower_peer.py FOLDER KIND ROUNDS THREADS   prints one line of JSON: seconds and losses of rounds.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
folder, kind, rounds, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.environ["PEER_FOLDER"], os.environ["PEER_KIND"] = str(folder), kind

from flower_client import client  # noqa: E402
from flwr.app import ArrayRecord, Context, MetricRecord  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from work import make_model  # noqa: E402

about = json.loads((folder / "work.json").read_text())
logging.getLogger("flwr").setLevel(logging.ERROR)
server = ServerApp()
moments: list[float] = []
losses: list[float] = []


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=about["clients"])
    model = make_model(kind, about["classes"])

    def note(number: int, arrays: ArrayRecord) -> MetricRecord:
        moments.append(time.perf_counter())
        return MetricRecord({"round": number})

    start = ArrayRecord(model.state_dict())
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=note)
    losses.extend(float(record["loss"]) for record in result.train_metrics_clientapp.values())


run_simulation(
    server_app=server,
    client_app=client,
    num_supernodes=about["clients"],
    backend_config={"client_resources": {"num_cpus": 1.0}, "init_args": {"num_cpus": threads}},
)
seconds = [after - before for before, after in pairwise(moments)]
print(json.dumps({"seconds": seconds, "losses": losses}))
