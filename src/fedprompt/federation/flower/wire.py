"""What travels: named raw arrays, counts and figures; nothing that could be code.

An array goes as its little-endian bytes with type and shape beside it, as in a safetensors file, so that what a client
sends is as many bytes as ``fedprompt methods`` says. All that comes in is checked here for form; whether the numbers
are acceptable is the guard's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedprompt.evaluation.tally import Tally
from fedprompt.methods.base import Tensors, Update

HELLO, TRAIN, EVALUATE, JOIN, ADAPT = "query", "train", "evaluate", "train.join", "train.adapt"
RAW = "fedprompt.raw"
_TYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_FIGURES = 64  # a client's training figures; more are nobody's


class WireError(ValueError):
    """A message that is not of the agreed form; the text says how, and names no value."""


@dataclass(frozen=True)
class Order:
    """What the server asks of a client, beside the tensors."""

    run: str  # which run this is, the same after a resume
    settings: str  # the resolved settings, as JSON
    classes: tuple[str, ...]
    clients: int
    client: int
    round: int
    accepted: int  # how many of the client's updates were accepted: which of its personal tensors count
    durable: int  # the same at the server's last checkpoint: older personal tensors are never asked for again
    backbone: str  # checksum of the frozen weights

    def to_record(self) -> ConfigRecord:
        return ConfigRecord({**asdict(self), "classes": list(self.classes)})

    @staticmethod
    def from_content(content: RecordDict) -> Order:
        record = content["order"]
        if not isinstance(record, ConfigRecord):
            raise WireError("the order is no record of settings")
        values: dict[str, Any] = dict(record)
        return Order(**{**values, "classes": tuple(values["classes"])})


def pack(tensors: Tensors) -> ArrayRecord:
    """Tensors as named raw arrays."""
    return ArrayRecord({name: _pack(value) for name, value in tensors.items()})


def _pack(value: torch.Tensor) -> Array:
    value = value.detach().cpu().contiguous()
    data = value.numpy().astype(value.numpy().dtype.newbyteorder("<"), copy=False).tobytes()
    return Array(_NAMES[value.dtype], tuple(value.shape), RAW, data)


def unpack(content: RecordDict, name: str) -> Tensors:
    """Named raw arrays as tensors; anything of another form is refused before it is read."""
    record = content.get(name)
    if not isinstance(record, ArrayRecord):
        raise WireError(f"no tensors under {name!r}")
    return {key: _unpack(key, array) for key, array in record.items()}


def _unpack(name: str, array: Array) -> torch.Tensor:
    if array.stype != RAW or array.dtype not in _TYPES:
        raise WireError(f"{name} is {array.stype} of {array.dtype}, which is not read")
    kind = np.dtype(array.dtype).newbyteorder("<")
    if any(side < 0 for side in array.shape) or math.prod(array.shape) * kind.itemsize != len(array.data):
        raise WireError(f"{name} has {len(array.data)} bytes, which do not fill {tuple(array.shape)} of {array.dtype}")
    values = np.frombuffer(array.data, dtype=kind).astype(array.dtype)  # a copy: it may be written to
    return torch.from_numpy(values).reshape(tuple(array.shape))


def update_content(update: Update) -> RecordDict:
    """A client's update as it travels."""
    counts = MetricRecord({"examples": update.examples})
    return RecordDict({"update": pack(update.tensors), "counts": counts, "figures": MetricRecord(dict(update.metrics))})


def read_update(content: RecordDict, client: int) -> Update:
    """An update out of a message of a node that is known to be this client."""
    counts, figures = _metrics(content, "counts"), _metrics(content, "figures")
    examples = _whole(counts, "examples")
    if len(figures) > _FIGURES or not all(isinstance(value, int | float) for value in figures.values()):
        raise WireError("training figures that are no numbers")
    metrics = {str(name): float(value) for name, value in figures.items() if isinstance(value, int | float)}
    return Update(client, unpack(content, "update"), examples, metrics)


def tally_content(tally: Tally) -> RecordDict:
    """A client's sums over its test images as they travel."""
    return RecordDict({"tally": MetricRecord({**asdict(tally), "gaps": list(tally.gaps)})})


def read_tally(content: RecordDict) -> Tally:
    """A client's sums out of a message; whether they can be is asked of the tally itself."""
    record = _metrics(content, "tally")
    images, right, drawn = (_whole(record, key) for key in ("images", "right", "drawn"))
    log_loss, squares = (_number(record, key) for key in ("log_loss", "squares"))
    gaps = record.get("gaps")
    if not isinstance(gaps, Sequence):
        raise WireError("no calibration sums")
    return Tally(images, right, log_loss, squares, drawn, tuple(float(gap) for gap in gaps))


def _whole(record: MetricRecord, key: str) -> int:
    value = record.get(key)
    if not isinstance(value, int):
        raise WireError(f"no whole number under {key!r}")
    return value


def _number(record: MetricRecord, key: str) -> float:
    value = record.get(key)
    if not isinstance(value, int | float):
        raise WireError(f"no number under {key!r}")
    return float(value)


def failure_content(reason: str) -> RecordDict:
    """Why a node could not do as asked; the text must hold nothing private."""
    return RecordDict({"failure": ConfigRecord({"reason": reason})})


def read_failure(content: RecordDict) -> str | None:
    """The reason that a node gave for not doing as asked, cut to a sentence's length; None if it did."""
    record = content.get("failure")
    return str(record.get("reason", ""))[:200] if isinstance(record, ConfigRecord) else None


def _metrics(content: RecordDict, name: str) -> MetricRecord:
    record = content.get(name)
    if not isinstance(record, MetricRecord):
        raise WireError(f"no figures under {name!r}")
    return record
