"""Where a data set lies: the folder the user named, or the usual place."""

from __future__ import annotations

import os
from pathlib import Path

from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError


def usual_place() -> Path:
    """The folder that holds data sets when nothing else is said: $FEDPROMPT_DATA, or ./data."""
    return Path(os.environ.get("FEDPROMPT_DATA") or "data")


def find_root(settings: DataSettings, usual: str | None, remedy: str) -> Path:
    """The folder of the data set; ``usual`` is its name in the usual places, ``remedy`` says how to get it."""
    if settings.root is not None:
        root = settings.root.expanduser()
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            raise UserError(f"The folder {root} for the data set {settings.name!r} {what}; {remedy}.")
        # Both the folder itself and the one it was unpacked into are natural answers to "where is it?".
        return root / usual if usual and (root / usual).is_dir() else root
    if usual is None:
        raise UserError(f"The data set {settings.name!r} needs data.root; {remedy}.")
    places = [usual_place() / usual, Path("data") / usual]
    for place in places:
        if place.is_dir():
            return place
    raise UserError(f"The data set {settings.name!r} is not in {places[0]}; {remedy}.")
