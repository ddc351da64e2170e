"""What all commands share: the consoles, options that mean the same everywhere, plain tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from fedprompt.errors import UserError

out = Console()
err = Console(stderr=True)

Preset = Annotated[str, typer.Argument(help="A preset's name or a TOML file.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value, as in training.rounds=20.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else.")]
Out = Annotated[Path, typer.Option("--out", help="Folder under which run folders are made.")]


def table(*headings: str) -> RichTable:
    """A plain table that cuts nothing off, however narrow the terminal."""
    table = RichTable(*headings, box=None)
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = headings[0] == "method"
    return table


def say(text: str, style: str | None = None) -> None:
    """Print a line as it is: not wrapped, and with brackets in a path left alone."""
    out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds is {text!r}, but it must be numbers with commas, as in 0,1,2.") from None
