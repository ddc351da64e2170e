"""The command that reports."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedprompt.cli.console import Json, out, say


def report(
    sources: Annotated[
        list[str], typer.Argument(metavar="RUN_OR_STUDY...", help="Run folders, folders of them, or a study's name.")
    ],
    target: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    client: Annotated[int, typer.Option(help="Whose images and predictions to show.")] = 0,
    gallery: Annotated[bool, typer.Option(help="Show a client's images with their predictions.")] = True,
    studies: Annotated[Path, typer.Option(help="Where studies keep their runs.")] = Path("studies"),
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Write one page about runs: tables, curves, each client, predictions with their uncertainty, settings."""
    # Here, because the other commands start faster without them.
    from fedprompt.report.gallery import look
    from fedprompt.report.page import describe
    from fedprompt.report.sources import all_runs, collect
    from fedprompt.report.writing import check_name, write_report

    check_name(target)
    parts = collect(sources, studies)
    shown = look(all_runs(parts), client) if gallery else ""
    words = ["fedprompt", "report", *sources, "-o", target.name]
    words += ["--studies", str(studies)] * (studies != Path("studies"))
    words += ["--client", str(client)] * (client != 0) + ["--no-gallery"] * (not gallery)
    told = describe(parts, shown, shlex.join(words))
    written = write_report(told, target, force=force)
    if as_json:
        files = [str(path) for path in written]
        print(json.dumps({"page": files[0], "files": files, "tables": [table.to_json() for table in told.all_tables]}))
        return
    for table in (*told.tables, *told.draws):
        out.print(table.rich())
        out.print()
    if isinstance(shown, str) and shown:
        say(shown, style="yellow")
    if written[0] != target:
        say(f"{target} exists, so the report has another name; --force writes over it.", style="yellow")
    say(f"Page: {written[0]}")
    say(f"Beside it: {', '.join(path.name for path in written[1:])}")
