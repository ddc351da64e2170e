"""The work under Flower's simulation engine: a ClientApp, a ServerApp with FedAvg, Ray underneath.

python flower_peer.py FOLDER KIND ROUNDS THREADS   prints one line of JSON: seconds of each round.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import clients_data, local_epoch, make_model

folder, kind, rounds, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
about = json.loads((folder / "work.json").read_text())
logging.getLogger("flwr").setLevel(logging.ERROR)

client = ClientApp()
server = ServerApp()
moments: list[float] = []


@cache
def data():
    torch.set_num_threads(1)  # each of Flower's workers has one core
    return clients_data(folder, kind)


@client.train()
def train(message: Message, context: Context) -> Message:
    inputs, labels = data()[int(context.node_config["partition-id"])]
    model = make_model(kind, about["classes"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    local_epoch(model, inputs, labels)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=about["clients"])
    model = make_model(kind, about["classes"])

    def note(number: int, arrays: ArrayRecord) -> MetricRecord:
        moments.append(time.perf_counter())
        return MetricRecord({"round": number})

    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=note)


run_simulation(
    server_app=server,
    client_app=client,
    num_supernodes=about["clients"],
    backend_config={"client_resources": {"num_cpus": 1.0}, "init_args": {"num_cpus": threads}},
)
print(json.dumps({"seconds": [after - before for before, after in pairwise(moments)]}))
