"""A run's figures for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

EVALUATED = ("average", "worst_local", "nll", "brier", "calibration_error", "draws")


class Events:
    """TensorBoard's file in a run folder, begun anew from the records each time a run goes on.

    So after a crash no round is missing and none is there twice. It writes in this thread, unlike TensorBoard's own
    writer, whose thread keeps a full disk to itself.
    """

    def __init__(self, folder: Path) -> None:
        self.writer = RecordWriter((folder / "events.out.tfevents.fedprompt").open("wb"))
        self.writer.write(Event(wall_time=0, file_version="brain.Event:2").SerializeToString())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def write(self, record: Mapping[str, Any], when: float) -> None:
        """Add the figures of one round, which ended at ``when`` (seconds since 1970)."""
        figures = {f"evaluation/{name}": record[name] for name in EVALUATED if name in record}
        figures |= {f"training/{name}": value for name, value in record["training"].items()}
        for name, value in figures.items():
            event = Event(wall_time=when, step=record["round"], summary=scalar(name, value))
            self.writer.write(event.SerializeToString())
        self.writer.flush()
