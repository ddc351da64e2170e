"""The command line: parse, call, print. Each module here holds the commands of one kind."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from fedprompt.cli import client, federation, listing, prediction, reporting, studies, training
from fedprompt.cli.console import err
from fedprompt.errors import UserError

__all__ = ["app", "main"]
INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    help="Personalised federated prompt tuning of frozen vision transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(training.run)
app.command("compare")(training.compare)
app.add_typer(studies.app, name="study")
app.command("tune")(studies.tune)
app.command("report")(reporting.report)
app.command("predict")(prediction.predict)
app.add_typer(federation.app, name="federation")
app.add_typer(client.app, name="client")
app.command("methods")(listing.list_methods)
app.command("data")(listing.data)
app.command("presets")(listing.list_presets)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        err.print("[bold red]Error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            err.print(
                "Stopped. A run goes on with: fedprompt run --resume FOLDER; a federation with "
                "--resume; a study with the same command again"
            )
        raise
