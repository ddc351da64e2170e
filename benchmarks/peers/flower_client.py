"""The client's side under Flower's simulation engine: a module of its own, since Ray's workers import it by name."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from work import clients_data, local_epoch, make_model

client = ClientApp()


@cache
def work() -> tuple[str, int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Kind, classes and the clients' data, read once by each of Ray's workers; each worker has one core."""
    torch.set_num_threads(1)
    folder, kind = Path(os.environ["PEER_FOLDER"]), os.environ["PEER_KIND"]
    return kind, json.loads((folder / "work.json").read_text())["classes"], clients_data(folder, kind)


@client.train()
def train(message: Message, context: Context) -> Message:
    kind, classes, data = work()
    inputs, labels = data[int(context.node_config["partition-id"])]
    model = make_model(kind, classes)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = local_epoch(model, inputs, labels)
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
