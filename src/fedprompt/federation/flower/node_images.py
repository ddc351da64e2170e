"""A node's images, ready to use: decoded once and kept beside the node's other things, since each message that Flower
brings is answered by a new process."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedprompt.backbone.cache import ClientData
from fedprompt.backbone.feature_store import FeatureStore
from fedprompt.backbone.weights import Backbone
from fedprompt.config import Config
from fedprompt.data.dataset import Dataset
from fedprompt.data.partition import ClientIndices, PartitionSettings, partition
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.federation.flower.node_settings import NodeSettings
from fedprompt.federation.population import GIB, Population

FOLDER = "prepared"


class NodeRefusalError(UserError):
    """Why a node does not do as asked, in words that the server may read."""


def own_images(own: NodeSettings, config: Config, agreed: tuple[str, ...]) -> tuple[Dataset, ClientIndices]:
    """A node's images with the federation's class numbers: its own folder, or its share of a dealt-out data set."""
    if own.share_of is not None:
        population = Population(config)
        if population.dataset.classes != agreed:
            raise NodeRefusalError("its data set has other classes than the federation")
        return population.dataset, population.parts[own.share]
    dataset = open_dataset(config.data)
    agreed_name = dict(zip(own.folders, own.classes, strict=True))
    unknown = [name for name in dataset.classes if agreed_name.get(name) not in agreed]
    if unknown:
        raise NodeRefusalError(f"{len(unknown)} of its class folders are not mapped to a class of the federation")
    number = np.array([agreed.index(agreed_name[name]) for name in dataset.classes], dtype=np.int64)
    for split in (dataset.train, dataset.test):
        split.labels = number[split.labels]
    whole = PartitionSettings(kind="iid", clients=1)
    return dataset, partition(dataset, whole, config.seed, config.data.validation)[0]


def node_data(
    folder: Path, own: NodeSettings, config: Config, agreed: tuple[str, ...], backbone: Backbone
) -> tuple[ClientData, ClientData]:
    """The images to train and to evaluate on, with frozen features that are kept on disk between two messages."""
    place = folder / FOLDER
    side = backbone.vit.shape.image
    path = place / f"images-{_digest(own, config, agreed, side)}.safetensors"
    tensors = _read(path)
    if tensors is None:
        tensors = _prepare(own, config, agreed, side)
        for old in place.glob("images-*.safetensors"):
            old.unlink()
        write_atomically(path, save(tensors))
    store = FeatureStore(place / "features", config.backbone.feature_disk * GIB)
    train, held = (
        ClientData(
            backbone, partial(tensors.__getitem__, f"{part}.pixels"), tensors[f"{part}.labels"], keep=False, store=store
        )
        for part in ("train", "held")
    )
    return train, held


def _prepare(own: NodeSettings, config: Config, agreed: tuple[str, ...], side: int) -> dict[str, Tensor]:
    dataset, part = own_images(own, config, agreed)
    kind = config.evaluation.split
    source, held = (dataset.test, part.test) if kind == "test" else (dataset.train, part.validation)
    return {
        "train.pixels": dataset.train.images(part.train, side),
        "train.labels": torch.from_numpy(dataset.train.labels[part.train]),
        "held.pixels": source.images(held, side),
        "held.labels": torch.from_numpy(source.labels[held]),
    }


def _read(path: Path) -> dict[str, Tensor] | None:
    """What was prepared before; None if it is not there or not whole."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError):
        return None


def _digest(own: NodeSettings, config: Config, agreed: tuple[str, ...], side: int) -> str:
    """Of all that decides the prepared images, among it size and time of each of the node's own files."""
    about: dict[str, Any] = {
        "own": own.model_dump(mode="json"),
        "data": config.data.model_dump(mode="json"),
        "partition": config.partition.model_dump(mode="json"),
        "decides": [config.seed, config.evaluation.split, side, list(agreed)],
    }
    if own.share_of is None and config.data.root is not None:
        files = sorted(path for path in config.data.root.rglob("*") if path.is_file())
        about["files"] = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
