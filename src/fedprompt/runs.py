"""A run: one training with its folder. The command line is a thin layer over :func:`run` and :func:`load_run`.

A run folder holds::

    config.toml          the resolved settings            metrics.jsonl   one line a round, the same for the same seed
    about.json           versions, classes, clients       timing.jsonl    seconds a round took, and when
    summary.json         the figures of the end           metrics.csv     accuracy by round and client
    checkpoint.safetensors   trained tensors only         curves.png, clients.png, partition.png
    new_clients.safetensors  if some joined afterwards    events.out.tfevents.fedprompt for TensorBoard
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config, load_config
from fedprompt.device import pick_device
from fedprompt.errors import UserError
from fedprompt.evaluation.metrics import mean_of_last
from fedprompt.federation.checkpoint import FederationState, disk_error, load_state, save_state, write_atomically
from fedprompt.federation.engine import Engine
from fedprompt.federation.simulation import Simulation
from fedprompt.methods import method_class
from fedprompt.methods.base import State, Task
from fedprompt.report.events import Events
from fedprompt.report.table import Table
from fedprompt.run_folder import append_record, new_folder, read_json, read_records, records_until, remove
from fedprompt.serve.predictor import Predictor
from fedprompt.toml_text import to_toml

# Settings that change no result, by table.
_UNDECIDING = {
    "": ("name", "device", "threads"),
    "backbone": ("feature_memory", "feature_disk"),
    "data": ("root",),
    "training": ("checkpoint_every",),
    "federation": ("deadline", "min_clients", "attempts"),  # how long to wait may change when a run is resumed
}
VERSIONED = ("fedprompt", "torch", "numpy", "pillow", "safetensors", "scikit-learn")


class Observer:
    """What one may watch while a run goes on; does nothing by itself."""

    def started(self, folder: Path, engine: Engine, state: FederationState) -> None: ...

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
        return read_json(self.folder / "about.json")

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
        return read_json(path)

    def state(self) -> FederationState:
        """The tensors of the last checkpoint."""
        return load_state(self.folder / "checkpoint.safetensors", fingerprint(self.config))

    def predictor(self, client: int) -> Predictor:
        """A client's own classifier: ``run.predictor(client=3)(images)`` gives probabilities and their spread."""
        about, config = self.about, self.config
        if not 0 <= client < about["clients"]:
            raise UserError(f"There is no client {client}; clients are 0 to {about['clients'] - 1}.")
        device = pick_device(config.device)
        settings = config.backbone
        backbone = load_backbone(settings.weights, settings.image, device, settings.precision)
        if backbone.checksum != about["backbone"]:
            raise UserError(f"The weights {config.backbone.weights!r} are not those that {self.folder} was trained on.")
        task = Task(backbone, len(about["classes"]), about["clients"])
        method = method_class(config.method)(config.method_settings(), task)
        fresh = method.initial(config.seed)
        if fresh.personal and about.get("engine") == "flower":
            raise UserError(
                f"The personal tensors of client {client} are at its own node; predict there with "
                "fedprompt client predict."
            )
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
    ['average', 'brier', 'calibration_error', 'draws', 'nll', 'worst_local']
    >>> done.predictor(client=3)(["docs/digits6.png"]).probabilities.shape  # doctest: +SKIP
    torch.Size([1, 10])
    """
    chosen = dict(changes or {})
    chosen |= {"method": method} if method is not None else {}
    chosen |= {"seed": seed} if seed is not None else {}
    config = load_config(source, chosen)
    simulation = Simulation(config)  # before the folder: a mistake in the settings leaves nothing behind
    folder = new_folder(Path(out), f"{config.name}-{config.method}-seed{config.seed}")
    try:
        _describe(folder, simulation)
    except UserError:
        remove(folder)
        raise
    return _train(folder, simulation, simulation.start(), observer or Observer())


def resume(
    folder: str | Path, observer: Observer | None = None, engine_of: Callable[[Config], Engine] = Simulation
) -> Run:
    """Go on with a run that was stopped; its results are those of a run that never was. A finished one is returned."""
    done = load_run(folder)
    if (done.folder / "summary.json").is_file():
        return done
    engine = engine_of(done.config)
    _check_unchanged(done, engine)
    state = engine.start()
    if (done.folder / "checkpoint.safetensors").is_file():
        path = done.folder / "checkpoint.safetensors"
        state = load_state(path, fingerprint(done.config), str(engine.method.device))
    kept = {name: records_until(done.folder / name, state.round) for name in ("metrics.jsonl", "timing.jsonl")}
    _describe(done.folder, engine)  # from here on the folder is written to
    for name, records in kept.items():
        content = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(done.folder / name, content.encode())
    return _train(done.folder, engine, state, observer or Observer())


def load_run(folder: str | Path) -> Run:
    """A run from its folder."""
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        raise UserError(f"There is no run in {str(folder)!r}: it has no config.toml.")
    return Run(folder)


def fingerprint(config: Config) -> str:
    """Which results a run must have: a digest of the settings that decide them.

    Not among them: the run's name, how it is computed, and where data and weights lie; that they are still the same is
    checked when a run is resumed.
    """
    tree = config.resolved()
    for table, keys in _UNDECIDING.items():
        for key in keys:
            (tree[table] if table else tree).pop(key, None)
    tree["backbone"]["weights"] = weights_name(tree["backbone"]["weights"])
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def weights_name(weights: str) -> str:
    """What weights are called wherever they lie: the name of a file, or a hub id as it is.

    >>> weights_name("/srv/vit_tiny.safetensors"), weights_name("timm/vit_tiny_patch16_224")
    ('vit_tiny.safetensors', 'timm/vit_tiny_patch16_224')
    """
    path = Path(weights)
    return path.name if path.is_absolute() else str(path)


def _train(folder: Path, engine: Engine, state: FederationState, observer: Observer) -> Run:
    observer.started(folder, engine, state)
    try:
        state = _rounds(folder, engine, state, observer)
    except OSError as error:
        raise disk_error(error, folder) from None
    _finish(folder, engine, state)
    done = Run(folder)
    observer.finished(done.summary)
    return done


def _rounds(folder: Path, engine: Engine, state: FederationState, observer: Observer) -> FederationState:
    """Train and evaluate to the last round, writing down each."""
    config = engine.config
    mark = fingerprint(config)
    rounds, so_far = config.training.rounds, Run(folder)
    with Events(folder) as events:
        for record, timing in zip(so_far.records, so_far.timings, strict=True):
            events.write(record, timing["ended"])
        while state.round < rounds:
            began = time.perf_counter()
            observer.round_begins(state.round + 1, engine.steps(state.round + 1))
            state, record = engine.round(state, observer.stepped)
            trained = time.perf_counter() - began
            if _counts(config, state.round):
                record |= engine.evaluate(state)
            timing = {"round": state.round, "train_seconds": trained, "seconds": time.perf_counter() - began}
            timing["ended"] = time.time()
            append_record(folder / "metrics.jsonl", record)
            append_record(folder / "timing.jsonl", timing)
            if state.round % config.training.checkpoint_every == 0 or state.round == rounds:
                save_state(folder / "checkpoint.safetensors", state, mark)
            events.write(record, timing["ended"])
            observer.round_ended(record)
    return state


def _finish(folder: Path, engine: Engine, state: FederationState) -> None:
    """Tables, pictures and, last of all, the summary that marks a run as finished."""
    # Here, because matplotlib takes a third of a second to import, and a node of a federation never draws.
    from fedprompt.report.plots import client_bars, learning_curves, png

    config, done = engine.config, Run(folder)
    records = done.records
    summary: dict[str, Any] = {
        "method": config.method,
        "seed": config.seed,
        "rounds": config.training.rounds,
        "final": mean_of_last(records, config.evaluation.last),
        "bytes_per_client_and_round": engine.method.bytes_sent(engine.fresh),
        "never_sampled": [client for client in engine.members if not state.participations.get(client)],
    }
    if engine.newcomers:
        figures, params = engine.adapt_newcomers(state)
        summary["new_clients"] = figures
        if params:  # over a network they stay with the clients
            adapted = FederationState(state.round, {}, {}, params)
            save_state(folder / "new_clients.safetensors", adapted, fingerprint(config))
    title = f"{engine.method.title} on {config.name}, seed {config.seed}"
    evaluated = [record for record in records if "accuracy" in record]
    write_atomically(folder / "metrics.csv", done.client_accuracy.to_csv().encode())
    write_atomically(folder / "curves.png", png(learning_curves(records, title)))
    write_atomically(folder / "clients.png", png(client_bars(evaluated[-1]["accuracy"], title)))
    if (picture := engine.picture()) is not None:
        write_atomically(folder / "partition.png", png(picture))
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")


def _counts(config: Config, number: int) -> bool:
    """Whether a round is evaluated."""
    every, last, rounds = config.evaluation.every, config.evaluation.last, config.training.rounds
    return number % every == 0 or number > rounds - last


def _about(engine: Engine) -> dict[str, Any]:
    return {
        "versions": {name: metadata.version(name) for name in VERSIONED} | {"python": platform.python_version()},
        "machine": {"system": platform.system(), "processor": platform.machine(), "threads": torch.get_num_threads()},
        "device": str(engine.method.device),
        "backbone": engine.backbone.checksum,
        "precision": str(engine.backbone.vit.pos_embed.dtype).removeprefix("torch."),
    } | engine.about()


def _describe(folder: Path, engine: Engine) -> None:
    write_atomically(folder / "config.toml", to_toml(engine.config.resolved()).encode() + b"\n")
    write_atomically(folder / "about.json", json.dumps(_about(engine), indent=2).encode() + b"\n")


def _check_unchanged(done: Run, engine: Engine) -> None:
    """Weights and images must be those that the run began with, or its results would be nobody's."""
    if not (done.folder / "about.json").is_file():
        return  # stopped before it was written, so before the first round
    now = json.loads(json.dumps(_about(engine)))
    for key, what in (
        ("backbone", "weights"),
        ("precision", "numbers of the backbone (fp32 or bf16)"),
        ("classes", "classes"),
        ("images", "images of the clients"),
    ):
        if done.about.get(key) != now[key]:
            raise UserError(f"The {what} are not those that {done.folder} began with; start a new run.")
