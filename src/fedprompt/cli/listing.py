"""Commands that show what there is: methods, data and presets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedprompt.backbone.weights import load_backbone
from fedprompt.cli.console import Json, Preset, Set, out, say, table
from fedprompt.config import Config, load_config, parse_assignments, preset_names
from fedprompt.data.download import get
from fedprompt.data.partition import partition, partition_table
from fedprompt.data.partition_figure import partition_figure
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.methods import methods
from fedprompt.methods.base import Task
from fedprompt.report.plots import png
from fedprompt.run_folder import free_path


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
    shown = table("method", "name", "paper", "shared", "personal", "server only", "bytes/round")
    for row in rows:
        groups = (", ".join(row[group]) or "-" for group in ("shared", "personal", "server"))
        shown.add_row(row["method"], row["name"], row["paper"], *groups, f"{row['bytes_per_client_and_round']:,}")
    out.print(shown)
    out.print(f"\nBytes are what one client sends in one round of the preset {preset!r}.", style="dim")


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
            say(f"{name} is in {place}.")
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
    shown = table(*rows[0])
    for row in rows:
        shown.add_row(*(", ".join(value) if isinstance(value, list | tuple) else str(value) for value in row.values()))
    out.print(f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test images, ", end="")
    out.print(f"{len(dataset.classes)} classes, {len(dataset.domains)} domains")
    out.print(shown)
    say(f"Picture: {picture}")


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
        for group, tensors in (
            ("shared", method.expected(state)),
            ("personal", state.personal),
            ("server", state.server),
        )
    }
    return {
        "method": key,
        "name": method.title,
        "paper": method.paper,
        **groups,
        "bytes_per_client_and_round": method.bytes_sent(state),
    }
