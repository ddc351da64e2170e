"""A node at work: its images, its personal tensors on its own disk, and what it does when the server asks.

Personal tensors are numbered by how many of the client's updates the server has accepted. Training writes the next
number beside the current one; which of the two counts is what the server's next order says. So an update that was
refused, came too late or was lost leaves no trace, and a server that was killed and resumed finds what it left.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from pydantic import ValidationError

from fedprompt.backbone.cache import ClientData
from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config, load_config
from fedprompt.device import pick_device
from fedprompt.errors import UserError
from fedprompt.evaluation.evaluate import evaluate_client
from fedprompt.evaluation.tally import Tally
from fedprompt.federation.checkpoint import FederationState, load_state, save_state, write_atomically
from fedprompt.federation.flower.node_images import NodeRefusalError, node_data
from fedprompt.federation.flower.node_settings import NodeSettings, read_node_settings
from fedprompt.federation.flower.wire import Order
from fedprompt.federation.round import fine_tune, train_client
from fedprompt.methods import method_class
from fedprompt.methods.base import Task, Tensors, Update
from fedprompt.methods.training import Schedule
from fedprompt.randomness import torch_generator


class Node:
    """One client, ready to train: built from its own folder and from what the server asks."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.folder = folder
        self.order = order
        self.own = read_node_settings(folder)
        self.config = _settings(self.own, order)
        torch.set_num_threads(self.own.threads or os.cpu_count() or 1)
        settings, device = self.config.backbone, pick_device(self.own.device)
        self.backbone = load_backbone(settings.weights, settings.image, device, settings.precision)
        if self.backbone.checksum != order.backbone:
            raise NodeRefusalError("its backbone weights are not those of the server")
        task = Task(self.backbone, len(order.classes), order.clients)
        self.method = method_class(self.config.method)(self.config.method_settings(), task)
        self.schedule = Schedule.of(self.config.training)

    @cached_property
    def _data(self) -> tuple[ClientData, ClientData]:
        return node_data(self.folder, self.own, self.config, self.order.classes, self.backbone)

    def train(self, payload: Tensors, place: str = "personal") -> Update:
        """Train for a round and keep the personal tensors until the server says whether the update was accepted."""
        order, states = self.order, _States(self._run_folder, place, self.order)
        states.prune(order.durable)
        schedule = Schedule(1, self.schedule.batch) if place == "joining" else self.schedule
        kept, update = train_client(
            self.method,
            self._on_device(payload),
            self._personal(states),
            self._data[0],
            schedule,
            seed=self.config.seed,
            round_number=order.round,
            client=order.client,
        )
        if not all(bool(torch.isfinite(value).all()) for value in kept.values()):
            raise NodeRefusalError("trained personal tensors to values that are not finite")
        states.write(order.accepted + 1, kept)
        return update

    def evaluate(self, payload: Tensors) -> Tally:
        """Sums over the node's own test images with the server's tensors and its own: its model from now on."""
        states = _States(self._run_folder, "personal", self.order)
        params = {**self._on_device(payload), **self._personal(states)}
        self._keep_model(params)
        return self._tally(params)

    def adapt(self, start: Tensors) -> Tally:
        """A client that joins after training: fine-tune what the method lets it, and keep the model."""
        params = fine_tune(
            self.method,
            self._on_device(start),
            self._data[0],
            Schedule(self.config.new_clients.epochs, self.schedule.batch),
            seed=self.config.seed,
            round_number=self.order.round + 1,
            client=self.order.client,
        )
        self._keep_model(params)
        return self._tally(params)

    def _tally(self, params: Tensors) -> Tally:
        data, order = self._data[1], self.order
        if not len(data):
            return Tally(0, 0, 0.0, 0.0, 0, ())
        generator = torch_generator(self.config.seed, "evaluate", order.round, order.client)
        return evaluate_client(self.method, params, data, generator, self.config.evaluation.batch)

    def _personal(self, states: _States) -> Tensors:
        """The personal tensors that count; fresh ones before the first accepted update."""
        if self.order.accepted == 0:
            return self.method.initial(self.config.seed).personal
        return self._on_device(states.read(self.order.accepted))

    def _keep_model(self, params: Tensors) -> None:
        """The node's classifier, for ``fedprompt client predict``: tensors, and what is needed to use them."""
        order = self.order
        about = {"settings": json.loads(order.settings), "classes": order.classes, "clients": order.clients}
        write_atomically(self.folder / "model.json", json.dumps(about, indent=2).encode() + b"\n")
        state = FederationState(order.round, {}, {}, {0: params})
        save_state(self.folder / "model.safetensors", state, order.run)

    def _on_device(self, tensors: Mapping[str, torch.Tensor]) -> Tensors:
        return {name: value.to(self.method.device) for name, value in tensors.items()}

    @property
    def _run_folder(self) -> Path:
        if not re.fullmatch(r"[0-9a-f]{32}", self.order.run):
            raise NodeRefusalError("was given a run without a proper name")
        return self.folder / "runs" / self.order.run


_resident: dict[tuple[Path, str, str, tuple[str, ...]], Node] = {}


def node_for(folder: Path, order: Order) -> Node:
    """The node for this order. A process that serves many orders, as in a simulation, keeps the last one's ready."""
    key = (folder, order.settings, order.backbone, order.classes)
    if key not in _resident:
        _resident.clear()
        _resident[key] = Node(folder, order)
    _resident[key].order = order
    return _resident[key]


class _States:
    """Numbered personal tensors of one run, each file written whole or not at all."""

    def __init__(self, folder: Path, place: str, order: Order) -> None:
        self.folder, self.place, self.order = folder, place, order

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.place}-{number}.safetensors"

    def read(self, number: int) -> Tensors:
        path = self._path(number)
        if not path.is_file():
            raise NodeRefusalError(f"has lost its personal tensors of {number} accepted updates")
        return load_state(path, self.order.run).personal.get(self.order.client, {})

    def write(self, number: int, tensors: Tensors) -> None:
        state = FederationState(self.order.round, {}, {}, {self.order.client: tensors})
        save_state(self._path(number), state, self.order.run)

    def prune(self, oldest: int) -> None:
        """Remove what the server can never ask for again."""
        for path in self.folder.glob(f"{self.place}-*.safetensors"):
            number = path.stem.rpartition("-")[2]
            if number.isdigit() and int(number) < oldest:
                path.unlink(missing_ok=True)


def _settings(own: NodeSettings, order: Order) -> Config:
    """The server's settings of method, training and evaluation, with the node's own of data, weights and machine."""
    try:
        tree = json.loads(order.settings)
        if own.share_of is not None:
            local = load_config(own.share_of).model_dump(mode="json", exclude_none=True)
            tree |= {"data": local["data"], "partition": local["partition"]}
        elif own.images is not None:
            tree["data"] = own.images.model_dump(mode="json", exclude_none=True) | {
                "validation": tree.get("data", {}).get("validation", 0.0)
            }
        else:
            raise UserError(f"The node {own.name} has no images: its settings name neither images nor share_of.")
        tree["backbone"] = {**tree.get("backbone", {}), "weights": own.weights}
        return Config(**tree | {"device": own.device, "threads": own.threads})
    except (ValueError, TypeError, ValidationError):
        raise NodeRefusalError("cannot read the server's settings; its fedprompt may be another version") from None
