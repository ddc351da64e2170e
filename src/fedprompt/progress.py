"""Progress bars for whatever may take more than two seconds; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


@contextmanager
def bar(title: str, total: float | None, *columns: TextColumn) -> Iterator[Progress]:
    """A progress bar on standard error with one task, gone when done; draws nothing unless it is a terminal."""
    console = Console(stderr=True)
    shown = columns or (MofNCompleteColumn(),)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *shown,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        progress.add_task(title, total=total)
        yield progress


def track(items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
    """Go through ``items`` under a progress bar."""
    if total is None and isinstance(items, Sequence):
        total = len(items)
    with bar(title, total) as progress:
        for item in items:
            yield item
            progress.advance(progress.task_ids[0])
