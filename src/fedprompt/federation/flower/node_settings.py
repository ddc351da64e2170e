"""A node's own folder: what it says of itself, its keys, and where its images are. The server never reads it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedprompt.config_errors import sentence
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.toml_text import to_toml

NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"  # a node's name goes into file names and TOML keys
FILE = "client.toml"


class NodeSettings(BaseModel):
    """What a node decides for itself, whatever the server sends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME, description="the name under which the server admitted this node")
    images: DataSettings | None = Field(None, description="the node's own images")
    folders: tuple[str, ...] = Field((), description="its class folders, and beside them, in the same order,")
    classes: tuple[str, ...] = Field((), description="the names that the federation agreed on for them")
    share_of: Path | None = Field(None, description="instead of own images: settings whose data set is dealt out")
    share: int = Field(0, ge=0, description="with share_of: which client's share")
    weights: str = Field("mini", description="the node's own copy of the frozen backbone")
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: int = Field(0, ge=0, description="CPU threads; 0 for all cores")

    def write(self, folder: Path) -> None:
        tree = self.model_dump(mode="json", exclude_none=True)
        write_atomically(folder / FILE, to_toml(tree).encode() + b"\n")


def make_node_settings(**values: Any) -> NodeSettings:
    """Checked settings, or one sentence on what is wrong."""
    try:
        return NodeSettings(**values)
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("name",):
            raise UserError(
                f"The name is {values['name']!r}, but it must be small letters, digits and hyphens, as in hospital-a."
            ) from None
        raise UserError(sentence(error, NodeSettings)) from None


def read_node_settings(folder: Path) -> NodeSettings:
    """The settings of a node from its folder."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"There is no node in {str(folder)!r}: it has no {FILE}; make one with fedprompt client init.")
    try:
        return NodeSettings(**tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        raise UserError(f"{path}: {sentence(error, NodeSettings)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from None
