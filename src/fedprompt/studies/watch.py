"""What a person sees while a grid goes on: cells done, what runs now, and about how long it will take."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedprompt.studies.cell import Cell


class Estimate:
    """How long cells take, from those that are done: of the same method and data, of the same data, or of all."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def learn(self, cell: Cell, seconds: float) -> None:
        if seconds:
            self.seconds.setdefault((cell.config.method, cell.config.data.name), []).append(seconds)

    def of(self, cell: Cell) -> float | None:
        """Seconds that a cell may take; None while nothing is known."""
        method, data = cell.config.method, cell.config.data.name
        same_data = [values for (_, where), values in self.seconds.items() if where == data]
        for groups in ([self.seconds.get((method, data), [])], same_data, self.seconds.values()):
            known = [value for values in groups for value in values]
            if known:
                return fmean(known)
        return None

    def left(self, waiting: Iterable[Cell], running: Iterable[tuple[Cell, float]], jobs: int) -> float | None:
        """Seconds to the end of the grid; ``running`` says what share of each cell is done."""
        total = 0.0
        for cell, share in (*((cell, 0.0) for cell in waiting), *running):
            seconds = self.of(cell)
            if seconds is None:
                return None
            total += seconds * (1 - share)
        return total / jobs


class Watch:
    """A bar over the grid on standard error; plain lines where it is no terminal, nothing when silent."""

    def __init__(self, title: str, *, jobs: int = 1, silent: bool = False) -> None:
        self.console = Console(stderr=True, quiet=silent)
        self.estimate = Estimate()
        self.jobs = jobs
        self.waiting: dict[str, Cell] = {}
        self.running: dict[str, tuple[Cell, float]] = {}  # with the share of its rounds that is done
        self.now: dict[str, str] = {}
        self.total = self.done = 0
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[now]}"),
            console=self.console,
            transient=True,
            disable=silent or not self.console.is_terminal,
        )
        self.task = self.progress.add_task(title, total=None, left="", now="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, waiting: Iterable[Cell], done: int) -> None:
        """A grid of which some cells are done already."""
        self.waiting = {cell.key: cell for cell in waiting}
        self.done, self.total = done, done + len(self.waiting)
        self.say(f"{self.total} cells, {done} of them done before." if done else f"{self.total} cells.")
        self._draw()

    def started(self, cell: Cell) -> None:
        self.waiting.pop(cell.key, None)
        self.running[cell.key] = (cell, 0.0)
        self.now[cell.key] = cell.title
        self._draw()

    def round(self, cell: Cell, number: int, rounds: int) -> None:
        self.running[cell.key] = (cell, (number - 1) / rounds)
        self.now[cell.key] = f"{cell.title}, round {number}/{rounds}"
        self._draw()

    def put_back(self, cell: Cell) -> None:
        """Another process works on it; it will be looked at again."""
        self._forget(cell)
        self.waiting[cell.key] = cell

    def ended(self, cell: Cell, told: str, seconds: float = 0.0) -> None:
        self._forget(cell)
        self.estimate.learn(cell, seconds)
        self.done += 1
        self.say(f"[{self.done}/{self.total}] {cell.title}: {told}{self._left(', ')}")
        self._draw()

    def say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)

    def _forget(self, cell: Cell) -> None:
        self.waiting.pop(cell.key, None)
        self.running.pop(cell.key, None)
        self.now.pop(cell.key, None)

    def _left(self, before: str = "") -> str:
        seconds = self.estimate.left(self.waiting.values(), self.running.values(), self.jobs)
        return f"{before}about {duration(seconds)} left" if seconds else ""

    def _draw(self) -> None:
        now = "; ".join(self.now.values())
        self.progress.update(
            self.task, total=self.total, completed=self.done, left=self._left(), now=escape(now), refresh=True
        )


def duration(seconds: float) -> str:
    """A length of time in words.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
