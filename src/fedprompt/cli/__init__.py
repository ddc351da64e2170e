"""The command line: parse, call, print. Each module here holds the commands of one kind."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from fedprompt.cli import listing, prediction, training
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
app.command("predict")(prediction.predict)
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
            err.print("Stopped. A run goes on with: fedprompt run --resume FOLDER")
        raise
