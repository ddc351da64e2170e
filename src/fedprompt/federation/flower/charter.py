"""What the members of a federation agreed on: the classes by name, who they are, and how many images each has."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.toml_text import to_toml

FILE = "federation.toml"


class Member(BaseModel):
    """One admitted node; its public key lies beside, in ``members/NAME.pub``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: int = Field(ge=0, description="its number, for life")
    images: PositiveInt = Field(description="training images it registered: it cannot weigh more")
    trains: bool = Field(True, description="false: joins after training, for a model of its own")


class Charter(BaseModel):
    """The server's own record of the federation; a node's claims never change it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(pattern=r"^[0-9a-f]{32}$", description="the run's name, the same after a resume")
    address: str = Field(description="where nodes reach the SuperLink, as host:port")
    classes: tuple[str, ...]
    clients: int = Field(0, ge=0, description="members when the run began; who is admitted later is a new client")
    members: dict[str, Member] = {}

    def write(self, folder: Path) -> None:
        write_atomically(folder / FILE, to_toml(self.model_dump(mode="json")).encode() + b"\n")

    def admit(self, name: str, images: int, *, trains: bool = True) -> Charter:
        """The charter with one more member, or with new figures of one that is known."""
        known = self.members.get(name)
        client = known.client if known else len(self.members)
        member = Member(client=client, images=images, trains=trains and (not self.clients or client < self.clients))
        return self.model_copy(update={"members": {**self.members, name: member}})

    def begin(self) -> Charter:
        """The charter of a run that begins: its number of clients is settled."""
        return self if self.clients else self.model_copy(update={"clients": len(self.members)})

    def names(self) -> dict[int, str]:
        """Each client's name under its number."""
        return {member.client: name for name, member in self.members.items()}


def read_charter(folder: Path) -> Charter:
    """The charter from a federation's folder."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(
            f"There is no federation in {str(folder)!r}: it has no {FILE}; make one with fedprompt federation init."
        )
    try:
        return Charter(**tomllib.loads(path.read_text("utf-8")))
    except (ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError):
        raise UserError(f"{path} is damaged and cannot be read.") from None
