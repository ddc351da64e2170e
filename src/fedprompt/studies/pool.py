"""Worker processes over a grid: who does what, and what happens when one dies or somebody presses Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedprompt.data.settings import DataSettings
from fedprompt.runs import Run
from fedprompt.studies.cell import Cell
from fedprompt.studies.store import Store
from fedprompt.studies.watch import Watch, duration

# Read once, when the library is loaded, so they must be there before the process begins.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
LOOK_AGAIN = 0.5  # seconds before a cell that another process works on is tried again
PATIENCE = 5.0  # seconds that a worker gets to end


class Worker:
    """One process, the cell it has, and a thread that carries its answers to a queue."""

    def __init__(self, number: int, root: Path, environment: Mapping[str, str], answers: queue.Queue[Any]) -> None:
        self.number = number
        self.cell: Cell | None = None
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedprompt.studies.worker", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=dict(environment),
            text=True,
        )
        threading.Thread(target=self._carry, args=(answers,), daemon=True).start()

    def _carry(self, answers: queue.Queue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self, json.loads(line)))
        answers.put((self, {"died": True}))

    def give(self, cell: Cell, data: str) -> None:
        self.cell = cell
        task = {"settings": cell.config.resolved(), "samples": cell.samples, "data": data}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, which its answers will tell
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()

    def obituary(self) -> str:
        """How it ended, and the last thing that it said."""
        code = self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its process {how}" + (f": {said[-1]}" if said else "")

    def stop(self) -> None:
        """End the process, kindly at first."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # it ends when its input does
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def do_all(
    store: Store, cells: Sequence[Cell], digests: Mapping[DataSettings, str], jobs: int, watch: Watch
) -> dict[str, str]:
    """Finish all cells; what went wrong is returned by key, and does not keep the others from being done.

    ``digests`` says which data sets are there now. Cells that another process works on are waited for.
    """
    left = [cell for cell in cells if not store.finished(cell)]
    keys = {cell.key for cell in left}
    for cell in cells:
        if cell.key not in keys:
            watch.estimate.learn(cell, _seconds(store, cell))
    watch.begin(left, len(cells) - len(left))
    if not left:
        return {}
    jobs = min(jobs, len(left))
    answers: queue.Queue[tuple[Worker, dict[str, Any]]] = queue.Queue()
    environments = _environments(jobs)
    pending, busy, failures = deque(left), deque[tuple[float, Cell]](), dict[str, str]()
    threads = max(1, cores() // jobs)
    workers: list[Worker] = []
    try:
        workers += [Worker(number, store.root, environments[number], answers) for number in range(jobs)]
        while True:
            for worker in workers:
                if worker.cell is None:
                    _give_next(worker, store, pending, busy, digests, threads, watch)
            if not pending and not busy and all(worker.cell is None for worker in workers):
                return failures
            try:
                worker, event = answers.get(timeout=LOOK_AGAIN if busy else None)
            except queue.Empty:
                continue
            if worker.cell is not None:
                _hear(worker, event, store, busy, failures, watch)
            if "died" in event:
                worker.stop()
                replacement = Worker(worker.number, store.root, environments[worker.number], answers)
                workers[workers.index(worker)] = replacement
    finally:
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.process.terminate()  # all at once; then wait for each
        for worker in workers:
            worker.stop()


def _give_next(
    worker: Worker,
    store: Store,
    pending: deque[Cell],
    busy: deque[tuple[float, Cell]],
    digests: Mapping[DataSettings, str],
    threads: int,
    watch: Watch,
) -> None:
    """Hand out the next cell that nobody has done meanwhile; those of other processes come last, after a pause."""
    while pending or (busy and busy[0][0] <= time.monotonic()):
        cell = pending.popleft() if pending else busy.popleft()[1]
        if store.finished(cell):
            watch.ended(cell, "done by another process")
            continue
        settings = cell.config.model_copy(update={"threads": min(cell.config.threads or threads, threads)})
        worker.give(Cell(settings, cell.samples), digests[cell.config.data])
        watch.started(cell)
        return


def _hear(
    worker: Worker,
    event: dict[str, Any],
    store: Store,
    busy: deque[tuple[float, Cell]],
    failures: dict[str, str],
    watch: Watch,
) -> None:
    cell = worker.cell
    assert cell is not None
    if "round" in event:
        watch.round(cell, event["round"], event["rounds"])
    elif "note" in event:
        watch.say(event["note"])
    elif "died" in event:
        failures[cell.key] = worker.obituary()
        watch.ended(cell, f"FAILED: {failures[cell.key]}")
    else:
        worker.cell = None
        if event["outcome"] == "busy":
            busy.append((time.monotonic() + LOOK_AGAIN, cell))
            watch.put_back(cell)
        elif event["outcome"] == "failed":
            failures[cell.key] = event["complaint"]
            watch.ended(cell, f"FAILED: {event['complaint']}")
        else:
            watch.ended(cell, _told(store, cell, event["seconds"]), event["seconds"])


def _told(store: Store, cell: Cell, seconds: float) -> str:
    summary = Run(store.folder(cell)).summary
    figures = summary.get("new_clients", summary["final"])
    return f"Average {100 * figures['average']:.2f} %" + (f" ({duration(seconds)})" if seconds else "")


def _seconds(store: Store, cell: Cell) -> float:
    content = json.loads((store.folder(cell) / "cell.json").read_text("utf-8"))
    return float(content.get("seconds", 0.0))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environments(jobs: int) -> list[dict[str, str]]:
    """The environment of each worker: its share of the cores, and one GPU where there are some."""
    threads = str(max(1, cores() // jobs))
    shared = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, threads)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    gpus = gpus if torch.cuda.is_available() else []
    return [shared | ({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}) for number in range(jobs)]
