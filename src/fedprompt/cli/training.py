"""Commands that train: run and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedprompt import runs
from fedprompt.cli.console import Json, Out, Preset, Set, numbers, out, say, table
from fedprompt.config import load_config, parse_assignments
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.live import LiveRun
from fedprompt.methods import methods
from fedprompt.report.plots import comparison_curves, png
from fedprompt.report.spread import mean_and_spread
from fedprompt.run_folder import free_path


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
    chosen = [(seed, key) for seed in numbers(seeds) for key in keys]
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
    say(f"Curves of all: {_draw_comparison(done, out_folder)}")


def _print_comparison(done: list[runs.Run]) -> None:
    """One row a method: means over the seeds of the last evaluated rounds."""
    shown = table("method", "Average", "Worst Local", "bytes sent / client / round", "seconds")
    for column in shown.columns[1:]:
        column.justify = "right"
    for title, group in _by_method(done).items():
        figures = [one.summary["final"] for one in group]
        cells = [mean_and_spread([100 * f[name] for f in figures]) for name in ("average", "worst_local")]
        seconds = sum(sum(line["seconds"] for line in one.timings) for one in group) / len(group)
        sent = group[0].summary["bytes_per_client_and_round"]
        shown.add_row(title, *cells, f"{sent:,}", f"{seconds:.0f}")
    out.print()
    out.print(shown)
    last = min(done[0].config.evaluation.last, done[0].config.training.rounds)
    seeds = len({one.config.seed for one in done})
    note = f"Accuracy in %, mean of the last {last} rounds"
    out.print(note + (f", mean ± standard deviation over {seeds} seeds." if seeds > 1 else "."), style="dim")
    for one in done:
        summary = one.summary
        if summary["never_sampled"]:
            say(f"{one.folder.name}: clients never sampled: {summary['never_sampled']}", style="yellow")
        if "new_clients" in summary:
            new = summary["new_clients"]
            say(f"{one.folder.name}: new clients' Average {100 * new['average']:.2f} %")
    out.print("Run folders, with plots:", style="dim")
    for one in done:
        say(f"  {one.folder}")


def _by_method(done: list[runs.Run]) -> dict[str, list[runs.Run]]:
    """The runs of each method, under its name."""
    groups: dict[str, list[runs.Run]] = {}
    for one in done:
        groups.setdefault(methods()[one.config.method].title, []).append(one)
    return groups


def _draw_comparison(done: list[runs.Run], folder: Path) -> Path:
    """A picture of all curves beside the run folders, under a name that is still free."""
    histories = {title: [one.records for one in group] for title, group in _by_method(done).items()}
    name = done[0].config.name
    path = free_path(folder / f"{name}-comparison.png")
    write_atomically(path, png(comparison_curves(histories, f"Methods on {name}")))
    return path
