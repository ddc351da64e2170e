"""What a person sees while a run goes on: a bar with the time left, and a table that grows."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.engine import Engine
from fedprompt.runs import Observer

ROWS = 8  # rounds shown at once


class LiveRun(Observer):
    """A live view on standard error; plain lines where it is no terminal, nothing when silent."""

    def __init__(self, *, silent: bool = False) -> None:
        self.console = Console(stderr=True, quiet=silent)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.live: Live | None = None
        self.records: list[dict[str, Any]] = []
        self.rounds = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, folder: Path, engine: Engine, state: FederationState) -> None:
        self.rounds = engine.config.training.rounds
        steps = sum(engine.steps(number) for number in range(state.round + 1, self.rounds + 1))
        self.title = f"{engine.method.title}, seed {engine.config.seed}"
        self.console.print(f"{self.title}: {folder}", highlight=False, markup=False, soft_wrap=True)
        self.task = self.progress.add_task(self.title, total=steps)
        if self.console.is_terminal:
            self.live = Live(self._view(), console=self.console, transient=True, refresh_per_second=4)
            self.live.start()

    def round_begins(self, number: int, steps: int) -> None:
        self.progress.update(self.task, description=f"{self.title}, round {number}/{self.rounds}")

    def stepped(self) -> None:
        self.progress.advance(self.task)

    def round_ended(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        for refusal in record.get("refused", []):
            self.console.print(f"Refused: {refusal}", style="yellow", markup=False, soft_wrap=True)
        if self.live is not None:
            self.live.update(self._view())
        elif "average" in record:
            line = f"round {record['round']}/{self.rounds}  Average {100 * record['average']:.2f} %"
            self.console.print(f"{line}  Worst Local {100 * record['worst_local']:.2f} %", highlight=False)

    def _view(self) -> Group:
        table = Table("round", "Average", "Worst Local", "cross-entropy", box=None)
        for record in self.records[-ROWS:]:
            shown = (f"{100 * record[key]:.2f}" if key in record else "" for key in ("average", "worst_local"))
            table.add_row(str(record["round"]), *shown, f"{record['training'].get('cross_entropy', 0):.3f}")
        return Group(self.progress, table) if self.records else Group(self.progress)
