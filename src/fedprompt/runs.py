"""A run: one training with its folder. The command line is a thin layer over :func:`run` and :func:`load_run`.

A run folder holds::

    config.toml          the resolved settings            metrics.jsonl   one line a round, the same for the same seed
    about.json           versions, classes, clients       timing.jsonl    seconds a round took, and when
    summary.json         the figures of the end           metrics.csv     accuracy by round and client
    checkpoint.safetensors   trained tensors only         curves.png, clients.png, TensorBoard events
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config, load_config, to_toml
from fedprompt.data.partition_figure import partition_figure
from fedprompt.device import pick_device
from fedprompt.errors import UserError
from fedprompt.evaluation.metrics import mean_of_last
from fedprompt.federation.checkpoint import FederationState, disk_error, load_state, save_state, write_atomically
from fedprompt.federation.simulation import Simulation
from fedprompt.methods import method_class
from fedprompt.methods.base import State, Task
from fedprompt.report.plots import client_bars, learning_curves, png
from fedprompt.report.table import Table
from fedprompt.serve.predictor import Predictor

VERSIONED = ("fedprompt", "torch", "numpy", "pillow", "safetensors", "scikit-learn")


class Observer:
    """What one may watch while a run goes on; does nothing by itself."""

    def started(self, folder: Path, simulation: Simulation, state: FederationState) -> None: ...

    def round_begins(self, number: int, steps: int) -> None: ...

    def stepped(self) -> None: ...

    def round_ended(self, record: dict[str, Any]) -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...


class Run:
    """A finished or unfinished run, read from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @cached_property
    def config(self) -> Config:
        """The resolved settings."""
        return load_config(self.folder / "config.toml")

    @cached_property
    def about(self) -> dict[str, Any]:
        """Versions, class names, and the size of each client."""
        content: dict[str, Any] = json.loads((self.folder / "about.json").read_text("utf-8"))
        return content

    @property
    def records(self) -> list[dict[str, Any]]:
        """What was written down of each round."""
        return read_records(self.folder / "metrics.jsonl")

    @property
    def timings(self) -> list[dict[str, Any]]:
        """How long each round took; apart from the metrics, which are the same for the same seed."""
        return read_records(self.folder / "timing.jsonl")

    @property
    def metrics(self) -> Table:
        """One row for each round: Average, Worst Local and the training figures."""
        rows = []
        for record in self.records:
            plain = {key: value for key, value in record.items() if isinstance(value, int | float)}
            rows.append(plain | record["training"])
        return Table(rows)

    @property
    def client_accuracy(self) -> Table:
        """One row for each evaluated round and client."""
        return Table(
            [
                {"round": record["round"], "client": int(client), "accuracy": value}
                for record in self.records
                for client, value in record.get("accuracy", {}).items()
            ]
        )

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the end: means over the last evaluated rounds, bytes, clients never sampled."""
        path = self.folder / "summary.json"
        if not path.is_file():
            raise UserError(f"The run in {self.folder} is not finished; go on with --resume.")
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return content

    def state(self) -> FederationState:
        """The tensors of the last checkpoint."""
        return load_state(self.folder / "checkpoint.safetensors", fingerprint(self.config))

    def predictor(self, client: int) -> Predictor:
        """A client's own classifier: ``run.predictor(client=3)(images)`` gives probabilities and their spread."""
        about, config = self.about, self.config
        if not 0 <= client < about["clients"]:
            raise UserError(f"There is no client {client}; clients are 0 to {about['clients'] - 1}.")
        device = pick_device(config.device)
        backbone = load_backbone(config.backbone.weights, config.backbone.image, device)
        if backbone.checksum != about["backbone"]:
            raise UserError(f"The weights {config.backbone.weights!r} are not those that {self.folder} was trained on.")
        task = Task(backbone, len(about["classes"]), about["clients"])
        method = method_class(config.method)(config.method_settings(), task)
        fresh = method.initial(config.seed)
        state = load_state(self.folder / "checkpoint.safetensors", fingerprint(config), device)
        groups = State(state.shared, fresh.personal, state.server)
        params = {**method.payload(groups, client), **state.personal.get(client, fresh.personal)}
        joined = self.folder / "new_clients.safetensors"
        if client not in state.personal and joined.is_file():
            adapted = load_state(joined, fingerprint(config), device).personal
            params |= adapted.get(client, {})
        return Predictor(method, params, tuple(about["classes"]), config.seed)


def run(
    source: str | Path = "digits6",
    *,
    method: str | None = None,
    seed: int | None = None,
    changes: dict[str, Any] | None = None,
    out: str | Path = "runs",
    observer: Observer | None = None,
) -> Run:
    """Train a method on a preset (or a TOML file) and return the run; its folder is a new one under ``out``.

    >>> import tempfile
    >>> small = {"training.rounds": 1, "data.train_per_domain": 12, "data.test_per_domain": 12}
    >>> done = run("digits6", method="head-tune", seed=0, changes=small, out=tempfile.mkdtemp())
    >>> sorted(done.summary["final"])
    ['average', 'calibration_error', 'nll', 'worst_local']
    >>> done.predictor(client=3)(["docs/digits6.png"]).probabilities.shape  # doctest: +SKIP
    torch.Size([1, 10])
    """
    chosen = dict(changes or {})
    chosen |= {"method": method} if method is not None else {}
    chosen |= {"seed": seed} if seed is not None else {}
    config = load_config(source, chosen)
    simulation = Simulation(config)  # before the folder: a mistake in the settings leaves nothing behind
    folder = _new_folder(Path(out), config)
    try:
        _describe(folder, simulation)
    except UserError:
        _remove_if_empty(folder)
        raise
    return _train(folder, simulation, simulation.start(), observer or Observer())


def resume(folder: str | Path, observer: Observer | None = None) -> Run:
    """Go on with a run that was stopped; its results are those of a run that never was. A finished one is returned."""
    done = load_run(folder)
    if (done.folder / "summary.json").is_file():
        return done
    simulation = Simulation(done.config)
    state = simulation.start()
    if (done.folder / "checkpoint.safetensors").is_file():
        path = done.folder / "checkpoint.safetensors"
        state = load_state(path, fingerprint(done.config), str(simulation.method.device))
    _describe(done.folder, simulation)
    _keep_records(done.folder / "metrics.jsonl", state.round)
    _keep_records(done.folder / "timing.jsonl", state.round)
    return _train(done.folder, simulation, state, observer or Observer())


def load_run(folder: str | Path) -> Run:
    """A run from its folder."""
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        raise UserError(f"There is no run in {str(folder)!r}: it has no config.toml.")
    return Run(folder)


def fingerprint(config: Config) -> str:
    """Which results a run must have: a digest of the settings that decide them."""
    tree = {key: value for key, value in config.resolved().items() if key not in ("device", "threads")}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; a last line cut short by a crash is left out."""
    records: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _train(folder: Path, simulation: Simulation, state: FederationState, observer: Observer) -> Run:
    config = simulation.config
    mark = fingerprint(config)
    rounds = config.training.rounds
    observer.started(folder, simulation, state)
    with _events(folder, state.round) as events:
        while state.round < rounds:
            began = time.perf_counter()
            observer.round_begins(state.round + 1, simulation.steps(state.round + 1))
            state, record = simulation.round(state, observer.stepped)
            trained = time.perf_counter() - began
            if _counts(config, state.round):
                record |= simulation.evaluate(state)
            timing = {"round": state.round, "train_seconds": trained, "seconds": time.perf_counter() - began}
            _append(folder / "metrics.jsonl", record)
            _append(folder / "timing.jsonl", timing)
            if state.round % config.training.checkpoint_every == 0 or state.round == rounds:
                save_state(folder / "checkpoint.safetensors", state, mark)
            _write_events(events, record)
            observer.round_ended(record)
    _finish(folder, simulation, state, mark)
    done = Run(folder)
    observer.finished(done.summary)
    return done


def _finish(folder: Path, simulation: Simulation, state: FederationState, mark: str) -> None:
    """Tables, pictures and, last of all, the summary that marks a run as finished."""
    config, done = simulation.config, Run(folder)
    records = done.records
    summary: dict[str, Any] = {
        "method": config.method,
        "seed": config.seed,
        "rounds": config.training.rounds,
        "final": mean_of_last(records, config.evaluation.last),
        "bytes_per_client_and_round": simulation.bytes_per_round,
        "never_sampled": [client for client in simulation.members if not state.participations.get(client)],
    }
    if simulation.newcomers:
        figures, params = simulation.adapt_newcomers(state)
        summary["new_clients"] = figures
        adapted = FederationState(state.round, {}, {}, params)
        save_state(folder / "new_clients.safetensors", adapted, mark)
    title = f"{simulation.method.title} on {config.name}, seed {config.seed}"
    evaluated = [record for record in records if "accuracy" in record]
    write_atomically(folder / "metrics.csv", done.client_accuracy.to_csv().encode())
    write_atomically(folder / "curves.png", png(learning_curves(records, title)))
    write_atomically(folder / "clients.png", png(client_bars(evaluated[-1]["accuracy"], title)))
    write_atomically(folder / "partition.png", png(partition_figure(simulation.dataset, simulation.parts)))
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")


def _counts(config: Config, number: int) -> bool:
    """Whether a round is evaluated."""
    every, last, rounds = config.evaluation.every, config.evaluation.last, config.training.rounds
    return number % every == 0 or number > rounds - last


def _describe(folder: Path, simulation: Simulation) -> None:
    config = simulation.config
    about = {
        "versions": {name: metadata.version(name) for name in VERSIONED} | {"python": platform.python_version()},
        "machine": {"system": platform.system(), "processor": platform.machine(), "threads": torch.get_num_threads()},
        "device": str(simulation.method.device),
        "backbone": simulation.backbone.checksum,
        "classes": simulation.dataset.classes,
        "domains": simulation.dataset.domains,
        "clients": len(simulation.parts),
        "images": [{"train": len(part.train), "test": len(part.test)} for part in simulation.parts],
        "unreadable": simulation.dataset.unreadable,
    }
    write_atomically(folder / "config.toml", to_toml(config.resolved()).encode() + b"\n")
    write_atomically(folder / "about.json", json.dumps(about, indent=2).encode() + b"\n")


def _new_folder(out: Path, config: Config) -> Path:
    """A folder that did not exist before: nothing is ever written over."""
    name = f"{config.name}-{config.method}-seed{config.seed}"
    number = 1
    while True:
        folder = out / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir() or not out.is_dir():
                raise UserError(f"{out} cannot hold runs: it is not a folder.") from None
            number += 1
        except OSError as error:
            raise disk_error(error, folder) from None
        else:
            return folder


def _remove_if_empty(folder: Path) -> None:
    for leftover in folder.iterdir():
        leftover.unlink()
    folder.rmdir()


def _append(path: Path, record: dict[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise disk_error(error, path) from None


def _keep_records(path: Path, rounds: int) -> None:
    """Drop what was written after the checkpoint: those rounds are run again."""
    kept = [record for record in read_records(path) if record["round"] <= rounds]
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept).encode())


def _events(folder: Path, round_number: int) -> SummaryWriter:
    try:
        return SummaryWriter(str(folder), purge_step=round_number + 1)
    except OSError as error:
        raise disk_error(error, folder) from None


def _write_events(events: SummaryWriter, record: dict[str, Any]) -> None:
    for name in ("average", "worst_local", "nll", "calibration_error"):
        if name in record:
            events.add_scalar(f"evaluation/{name}", record[name], record["round"])
    for name, value in record["training"].items():
        events.add_scalar(f"training/{name}", value, record["round"])
