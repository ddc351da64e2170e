"""Commands over grids of runs: study list, run and show, and tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedprompt.cli.console import Json, Set, numbers, out, say, table
from fedprompt.config import parse_assignments
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.studies.cell import Cell
from fedprompt.studies.definition import SCALES, Scale, is_study, read_grids, read_study, study_names
from fedprompt.studies.finding import code_notes, planned, tables
from fedprompt.studies.records import keep_records
from fedprompt.studies.running import OUT, run_study, run_trials
from fedprompt.studies.store import Store
from fedprompt.studies.study import Study, load_study, study_of_preset
from fedprompt.studies.tuning import Trials, parse_grid, plan_trials

app = typer.Typer(help="The paper's tables as grids of runs.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A study, see `fedprompt study list`, or a TOML file of your own.")]
On = Annotated[str, typer.Option(help="Data sets, comma-separated; by default the study's own.")]
Seeds = Annotated[str, typer.Option(help="Comma-separated; by default the study's, 0,1,2.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes at work at once; they share the cores, and the GPUs.")]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder that keeps the cells.")]


@app.command("list")
def list_studies(as_json: Json = False) -> None:
    """List the studies, with the data sets and the number of runs at each scale."""
    rows = [_describe(name) for name in study_names()]
    if as_json:
        print(json.dumps(rows))
        return
    shown = table("study", "what", "on", *(f"runs ({scale})" for scale in SCALES))
    for row in rows:
        counts = (str(row["cells"].get(scale, "-")) for scale in SCALES)
        shown.add_row(row["study"], row["title"], ", ".join(row["on"]), *counts)
    out.print(shown)


@app.command("run")
def run(
    name: Name,
    on: On = "",
    scale: Annotated[str, typer.Option(help="paper: to the letter, for GPUs; cpu: the same, shrunk.")] = "cpu",
    seeds: Seeds = "",
    only: Annotated[str, typer.Option(help="Methods, columns (m=6) and data sets to keep, comma-separated.")] = "",
    jobs: Jobs = 1,
    change: Set = None,
    tune: Annotated[bool | None, typer.Option(help="Choose settings on validation images first.")] = None,
    out_folder: OutFolder = Path(OUT),
    as_json: Json = False,
) -> None:
    """Do every run of a study that is not done yet; stop it and start it again as you like."""
    study = load_study(name, scale, _words(on), parse_assignments(change or []))
    chosen = numbers(seeds) if seeds else None
    result = run_study(study, seeds=chosen, only=_words(only), jobs=jobs, tune=tune, out=out_folder, silent=as_json)
    store = result.store
    if as_json:
        content = _content(name, store, result.cells)
        content["trials"] = [trials.to_json(store) for trials in result.trials]
        print(json.dumps(content | {"failed": result.failures}))
    else:
        for trials in result.trials:
            _print_winner(trials, store)
        _print(name, store, result.cells)
        for cell, complaint in result.failures.items():
            say(f"Failed: {cell}: {complaint}", style="red")
    if result.failures:
        raise typer.Exit(1)


@app.command("show")
def show(
    name: Name,
    on: On = "",
    scale: Annotated[str, typer.Option(help="paper or cpu; by default that of the last run.")] = "",
    change: Set = None,
    out_folder: OutFolder = Path(OUT),
    as_json: Json = False,
) -> None:
    """Print the tables of a study as far as it got, with the settings that it was last run with."""
    changes = parse_assignments(change or [])
    cells = planned(name, scale or None, _words(on), out=out_folder, changes=changes)
    store = Store(out_folder)
    if as_json:
        print(json.dumps(_content(name, store, cells)))
    else:
        _print(name, store, cells)


@app.command("records")
def records(
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="The store to make of them.")],
    out_folder: OutFolder = Path(OUT),
    as_json: Json = False,
) -> None:
    """Copy settings and figures of every finished cell, without tensors and without this machine's paths."""
    kept = keep_records(Store(out_folder), to)
    if as_json:
        print(json.dumps([str(folder) for folder in kept]))
    else:
        say(f"{len(kept)} finished cells: {to}")


def tune(
    source: Annotated[str, typer.Argument(metavar="PRESET_OR_STUDY", help="A study, a preset or a TOML file.")],
    method_list: Annotated[
        str, typer.Option("--methods", help="Comma-separated; by default all that have a grid.")
    ] = "",
    grid: Annotated[
        list[str] | None, typer.Option(help="Values to try, as in learning_rate=0.01,0.03; in place of the usual ones.")
    ] = None,
    on: On = "",
    scale: Annotated[str, typer.Option(help="Of the study and of the usual values: paper or cpu.")] = "cpu",
    seeds: Annotated[str, typer.Option(help="Comma-separated; by default 0.")] = "",
    trials: Annotated[int | None, typer.Option(min=1, help="The most that a method may try.")] = None,
    jobs: Jobs = 1,
    change: Set = None,
    out_folder: OutFolder = Path(OUT),
    as_json: Json = False,
) -> None:
    """Try settings on images set aside from the clients' training data, never on test images, and name the best."""
    grids = read_grids(_scale(scale))
    grids = grids.model_copy(update={"trials": trials}) if trials else grids
    changes, wanted = parse_assignments(change or []), _words(method_list)
    if is_study(source):
        study = load_study(source, scale, _words(on), changes)
    elif on:
        raise UserError(f"--on is for studies, and {source!r} is none.")
    else:
        study = study_of_preset(source, _scale(scale), wanted or list(grids.methods), changes)
    values = parse_grid(grid) if grid else None
    planned_trials = plan_trials(
        study, grids, wanted=wanted or None, grid=values, seeds=numbers(seeds) if seeds else None
    )
    store = Store(out_folder)
    failures = run_trials(store, planned_trials, jobs=jobs, silent=as_json)
    done = [one for one in planned_trials if one.decided(store)]
    path = _keep_winners(study, store, done)
    if as_json:
        content = {"file": str(path), "methods": [one.to_json(store) for one in done], "failed": failures}
        print(json.dumps(content))
    else:
        for one in done:
            if one.cells:
                out.print(one.table(store))
                out.print()
        say(path.read_text("utf-8").rstrip())
        say(f"These settings: {path}")
        for cell, complaint in failures.items():
            say(f"Failed: {cell}: {complaint}", style="red")
    if failures:
        raise typer.Exit(1)


def _keep_winners(study: Study, store: Store, done: list[Trials]) -> Path:
    """The winning settings as a file; an older file with other settings is left alone."""
    content = "\n".join(one.to_toml(store) for one in done).encode()
    path = store.root / "tuned" / f"{study.name}-{study.scale}.toml"
    number = 1
    while path.is_file() and path.read_bytes() != content:
        number += 1
        path = path.with_name(f"{study.name}-{study.scale}-{number}.toml")
    write_atomically(path, content)
    return path


def _describe(name: str) -> dict[str, Any]:
    definition = read_study(name)
    counts = {}
    for scale in SCALES:
        try:
            counts[scale] = len(load_study(name, scale))
        except UserError:
            continue  # its data set does not exist at this scale
    return {"study": name, "title": definition.title, "on": list(definition.on), "cells": counts}


def _content(name: str, store: Store, cells: list[Cell]) -> dict[str, Any]:
    runs = store.runs(cells)
    return {
        "study": name,
        "cells": len(cells),
        "done": len(runs),
        "folders": [str(run.folder) for run in runs],
        "tables": [one.to_json() for one in tables(name, runs)],
    }


def _print(name: str, store: Store, cells: list[Cell]) -> None:
    runs = store.runs(cells)
    for one in tables(name, runs):
        out.print(one.rich())
        out.print()
    say(f"{len(runs)} of {len(cells)} cells are done; they are in {store.root / 'cells'}.")
    for note in code_notes(runs):
        say(note, style="yellow")


def _print_winner(trials: Trials, store: Store) -> None:
    if trials.cells and trials.decided(store):
        settings = ", ".join(f"{key} = {value}" for key, value in trials.winner(store).items())
        say(f"{trials.method} on {trials.data}: best of {len(trials.tried)} trials: {settings}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _scale(text: str) -> Scale:
    for scale in SCALES:
        if scale == text:
            return scale
    raise UserError(f"There is no scale {text!r}; there are {' and '.join(SCALES)}.")
