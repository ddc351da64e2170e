"""The two small files that a server and a node exchange by hand before they meet: an invitation and a card."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.federation.flower.node_settings import NAME
from fedprompt.toml_text import to_toml


class _Paper(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def write(self, path: Path) -> None:
        write_atomically(path, to_toml(self.model_dump(mode="json")).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        what = cls.__name__.lower()
        if not path.is_file():
            raise UserError(f"There is no {what} {str(path)!r}.")
        try:
            return cls(**tomllib.loads(path.read_text("utf-8")))
        except (ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError):
            raise UserError(f"{path} is no {what}, or a damaged one.") from None


class Invitation(_Paper):
    """What a node must know: where the server is, how to recognise it, and what the classes are called. No secret."""

    address: str = Field(description="host:port of the SuperLink")
    certificate: str = Field(description="PEM of the authority that signed the server's certificate")
    classes: tuple[str, ...]
    weights: str = Field(description="the frozen backbone: mini, a file's name, or a Hugging Face hub id")
    backbone: str = Field(description="its checksum")
    method: str
    validation: float = 0.0


class Card(_Paper):
    """What a node tells before it is let in: its name, its public key, and how many images it trains on. No secret."""

    name: str = Field(pattern=NAME)
    key: str = Field(pattern=r"^ecdsa-sha2-nistp384 \S+$")
    images: PositiveInt
