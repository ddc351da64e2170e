"""The command line: parse, call, print. What it does is in :mod:`fedprompt.runs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fedprompt import runs
from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config, load_config, parse_assignments, preset_names
from fedprompt.data.download import get
from fedprompt.data.partition import partition, partition_table
from fedprompt.data.partition_figure import partition_figure
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.live import LiveRun
from fedprompt.methods import methods
from fedprompt.methods.base import Task
from fedprompt.report.plots import comparison_curves, png
from fedprompt.run_folder import free_path

app = typer.Typer(
    help="Personalised federated prompt tuning of frozen vision transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
INTERRUPTED = 130  # what typer makes of Ctrl-C
out = Console()
err = Console(stderr=True)

Preset = Annotated[str, typer.Argument(help="A preset's name or a TOML file.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value, as in training.rounds=20.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else.")]
Out = Annotated[Path, typer.Option("--out", help="Folder under which run folders are made.")]


@app.command()
def run(
    preset: Annotated[str | None, typer.Argument(help="A preset's name or a TOML file; by default digits6.")] = None,
    method: Annotated[str | None, typer.Option(help="The method; see `fedprompt methods`.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything random in the run.")] = None,
    change: Set = None,
    out_folder: Out = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with the stopped run in this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Train one method and keep everything in a run folder."""
    with LiveRun(silent=as_json) as live:
        if resume is not None:
            if preset or method or seed is not None or change:
                raise UserError("--resume takes all settings from the run's folder; leave the others away.")
            done = runs.resume(resume, observer=live)
        else:
            changes = parse_assignments(change or [])
            done = runs.run(
                preset or "digits6", method=method, seed=seed, changes=changes, out=out_folder, observer=live
            )
    if as_json:
        print(json.dumps({"folder": str(done.folder), **done.summary}))
        return
    _print_comparison([done])


@app.command()
def compare(
    preset: Preset = "digits6",
    method_list: Annotated[str, typer.Option("--methods", help="Comma-separated; by default all.")] = "",
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "0",
    change: Set = None,
    out_folder: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Train several methods on the same clients and print one table."""
    keys = [key.strip() for key in method_list.split(",") if key.strip()] or list(methods())
    changes = parse_assignments(change or [])
    chosen = [(seed, key) for seed in _numbers(seeds) for key in keys]
    for seed, key in chosen:  # mistakes show before the first run
        load_config(preset, changes | {"seed": seed, "method": key})
    done = []
    for seed, key in chosen:
        with LiveRun(silent=as_json) as live:
            done.append(runs.run(preset, method=key, seed=seed, changes=changes, out=out_folder, observer=live))
    if as_json:
        print(json.dumps([{"folder": str(one.folder), **one.summary} for one in done]))
        return
    _print_comparison(done)
    _say(f"Curves of all: {_draw_comparison(done, out_folder)}")


@app.command("methods")
def list_methods(
    preset: Preset = "digits6",
    change: Set = None,
    as_json: Json = False,
) -> None:
    """List the methods: their paper, what they share and keep, and the bytes a client sends in a round."""
    config = load_config(preset, parse_assignments(change or []))
    backbone = load_backbone(config.backbone.weights, config.backbone.image)
    task = Task(backbone, len(open_dataset(config.data).classes), config.partition.clients)
    rows = [_describe_method(key, config, task) for key in methods()]
    if as_json:
        print(json.dumps(rows))
        return
    table = _table("method", "name", "paper", "shared", "personal", "server only", "bytes/round")
    for row in rows:
        groups = (", ".join(row[group]) or "-" for group in ("shared", "personal", "server"))
        table.add_row(row["method"], row["name"], row["paper"], *groups, f"{row['bytes_per_client_and_round']:,}")
    out.print(table)
    out.print(f"\nBytes are what one client sends in one round of the preset {preset!r}.", style="dim")


@app.command("data")
def data(
    preset: Annotated[str, typer.Argument(help="A preset or TOML file to show, or the word get.")],
    name: Annotated[str | None, typer.Argument(help="With get: cifar100 or domainnet10.")] = None,
    target: Annotated[Path, typer.Option("--to", help="With get: where data sets are kept.")] = Path("data"),
    picture: Annotated[Path, typer.Option(help="Where the picture of the partition goes.")] = Path("partition.png"),
    change: Set = None,
    as_json: Json = False,
) -> None:
    """Show who gets what as a table and a picture; `fedprompt data get NAME` downloads a data set."""
    if preset == "get":
        if name is None:
            raise UserError("Say which data set to get: fedprompt data get cifar100, or domainnet10.")
        place = str(get(name, target))
        if as_json:
            print(json.dumps({"name": name, "folder": place}))
        else:
            _say(f"{name} is in {place}.")
        return
    if name is not None:
        raise UserError(f"{name!r} is one word too many; give one preset, or get and the name of a data set.")
    config = load_config(preset, parse_assignments(change or []))
    dataset = open_dataset(config.data)
    parts = partition(dataset, config.partition, config.seed, config.data.validation)
    rows = partition_table(dataset, parts)
    picture = free_path(picture)
    write_atomically(picture, png(partition_figure(dataset, parts)))
    if as_json:
        print(json.dumps({"clients": rows, "picture": str(picture)}))
        return
    table = _table(*rows[0])
    for row in rows:
        table.add_row(*(", ".join(value) if isinstance(value, list | tuple) else str(value) for value in row.values()))
    out.print(f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test images, ", end="")
    out.print(f"{len(dataset.classes)} classes, {len(dataset.domains)} domains")
    out.print(table)
    _say(f"Picture: {picture}")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[list[str], typer.Argument(help="Image files.")],
    client: Annotated[int, typer.Option(help="Whose classifier to use.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 3,
    as_json: Json = False,
) -> None:
    """Classify images with one client's model: probabilities, and their spread over the draws of the prompt."""
    prediction = runs.load_run(folder).predictor(client)(images)
    rows: list[dict[str, Any]] = []
    for image, mean, spread in zip(images, prediction.probabilities, prediction.spread, strict=True):
        best = mean.argsort(descending=True)[:top]
        found = [
            {"class": prediction.classes[int(i)], "probability": float(mean[i]), "spread": float(spread[i])}
            for i in best
        ]
        rows.append({"image": image, "draws": len(prediction.draws), "classes": found})
    if as_json:
        print(json.dumps(rows))
        return
    table = _table("image", "class", "probability", f"spread over {len(prediction.draws)} draws")
    for row in rows:
        for place, found_class in enumerate(row["classes"]):
            figures = (f"{100 * found_class[key]:.1f} %" for key in ("probability", "spread"))
            table.add_row(row["image"] if place == 0 else "", found_class["class"], *figures)
    out.print(table)


@app.command("presets")
def list_presets() -> None:
    """List the presets that come with fedprompt."""
    for name in preset_names():
        out.print(name)


def _describe_method(key: str, config: Config, task: Task) -> dict[str, Any]:
    chosen = config.model_copy(update={"method": key})
    method = methods()[key](chosen.method_settings(), task)
    state = method.initial(config.seed)
    groups = {
        group: sorted({name.split(".")[0] for name in tensors})
        for group, tensors in (("shared", state.shared), ("personal", state.personal), ("server", state.server))
    }
    return {
        "method": key,
        "name": method.title,
        "paper": method.paper,
        **groups,
        "bytes_per_client_and_round": method.bytes_sent(state),
    }


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds is {text!r}, but it must be numbers with commas, as in 0,1,2.") from None


def _print_comparison(done: list[runs.Run]) -> None:
    """One row a method: means over the seeds of the last evaluated rounds."""
    table = _table("method", "Average", "Worst Local", "bytes sent / client / round", "seconds")
    for column in table.columns[1:]:
        column.justify = "right"
    for title, group in _by_method(done).items():
        figures = [one.summary["final"] for one in group]
        cells = [_mean_and_spread([100 * f[name] for f in figures]) for name in ("average", "worst_local")]
        seconds = sum(sum(line["seconds"] for line in one.timings) for one in group) / len(group)
        sent = group[0].summary["bytes_per_client_and_round"]
        table.add_row(title, *cells, f"{sent:,}", f"{seconds:.0f}")
    out.print()
    out.print(table)
    last = min(done[0].config.evaluation.last, done[0].config.training.rounds)
    seeds = len({one.config.seed for one in done})
    note = f"Accuracy in %, mean of the last {last} rounds"
    out.print(note + (f", mean ± standard deviation over {seeds} seeds." if seeds > 1 else "."), style="dim")
    for one in done:
        summary = one.summary
        if summary["never_sampled"]:
            _say(f"{one.folder.name}: clients never sampled: {summary['never_sampled']}", style="yellow")
        if "new_clients" in summary:
            new = summary["new_clients"]
            _say(f"{one.folder.name}: new clients' Average {100 * new['average']:.2f} %")
    out.print("Run folders, with plots:", style="dim")
    for one in done:
        _say(f"  {one.folder}")


def _by_method(done: list[runs.Run]) -> dict[str, list[runs.Run]]:
    """The runs of each method, under its name."""
    groups: dict[str, list[runs.Run]] = {}
    for one in done:
        groups.setdefault(methods()[one.config.method].title, []).append(one)
    return groups


def _table(*headings: str) -> RichTable:
    """A plain table that cuts nothing off, however narrow the terminal."""
    table = RichTable(*headings, box=None)
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = headings[0] == "method"
    return table


def _say(text: str, style: str | None = None) -> None:
    """Print a line as it is: not wrapped, and with brackets in a path left alone."""
    out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _draw_comparison(done: list[runs.Run], folder: Path) -> Path:
    """A picture of all curves beside the run folders, under a name that is still free."""
    histories = {title: [one.records for one in group] for title, group in _by_method(done).items()}
    name = done[0].config.name
    path = free_path(folder / f"{name}-comparison.png")
    write_atomically(path, png(comparison_curves(histories, f"Methods on {name}")))
    return path


def _mean_and_spread(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.2f}"
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return f"{mean:.2f} ± {variance**0.5:.2f}"


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        err.print("[bold red]Error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            err.print("Stopped. A run goes on with: fedprompt run --resume FOLDER")
        raise
