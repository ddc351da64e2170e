"""Reading what a node sent, request by request."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_type_from_object_content


@dataclass
class Sent:
    """All that left a node."""

    bodies: list[bytes] = field(default_factory=list)  # of every request, whatever it was
    heads: list[bytes] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)  # of Flower's objects
    tensors: Counter[str] = field(default_factory=Counter)  # by name
    numbers: set[str] = field(default_factory=set)  # names of counts and figures
    words: set[str] = field(default_factory=set)  # names of texts
    chunks: list[bytes] = field(default_factory=list)  # the tensors' numbers

    @property
    def tensor_bytes(self) -> int:
        return sum(map(len, self.chunks))


def read_sent(folder: Path) -> Sent:
    """Every request of a node, taken apart as far as Flower's objects go."""
    sent = Sent()
    for path in sorted(folder.iterdir()):
        head, _, body = path.read_bytes().partition(b"\n\n")
        sent.heads.append(head)
        sent.bodies.append(body)
        if path.name.endswith("push-object"):
            _take_apart(PushObjectRequest.FromString(body).object_content, sent)
    return sent


def _take_apart(content: bytes, sent: Sent) -> None:
    kind = get_object_type_from_object_content(content)
    sent.kinds[kind] += 1
    if kind == "ArrayChunk":
        sent.chunks.append(content[content.index(b"\x00") + 1 :])
    elif kind == "ArrayRecord":
        sent.tensors.update(list(json.loads(get_object_body(content, ArrayRecord))))
    elif kind == "MetricRecord":
        sent.numbers |= MetricRecord.inflate(content).keys()
    elif kind == "ConfigRecord":
        sent.words |= ConfigRecord.inflate(content).keys()
