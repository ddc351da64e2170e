"""State on disk: safetensors files, written whole or not at all, checked when read. Trained tensors only."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedprompt.errors import UserError
from fedprompt.methods.base import Tensors


@dataclass(frozen=True)
class FederationState:
    """All that a federation is between two rounds."""

    round: int  # rounds finished
    shared: Tensors
    server: Tensors
    personal: dict[int, Tensors] = field(default_factory=dict)  # of the clients that have trained
    participations: dict[int, int] = field(default_factory=dict)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by new content; after a crash or a full disk the old content is still whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from None


def disk_error(error: OSError, path: Path) -> UserError:
    """A failed write as one sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"There is no disk space left to write {path}; free some and try again; a run goes on with --resume."
        )
    return UserError(f"{path} cannot be written: {error.strerror or error}.")


def save_state(path: Path, state: FederationState, fingerprint: str) -> None:
    """Write a federation's state; ``fingerprint`` says which settings it belongs to."""
    tensors = {f"shared/{name}": value for name, value in state.shared.items()}
    tensors |= {f"server/{name}": value for name, value in state.server.items()}
    for client, personal in state.personal.items():
        tensors |= {f"personal/{client}/{name}": value for name, value in personal.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    participations = {str(client): count for client, count in sorted(state.participations.items())}
    about = {"round": state.round, "participations": participations, "fingerprint": fingerprint}
    # One entry: safetensors writes several in any order, and the same state should give the same bytes.
    metadata = {"fedprompt": json.dumps({"digest": _digest(tensors, about), **about})}
    write_atomically(path, save(tensors, metadata))


def load_state(path: Path, fingerprint: str | None = None, device: str = "cpu") -> FederationState:
    """Read a federation's state; a damaged file, or one of other settings, is refused."""
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {}).get("fedprompt", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, json.JSONDecodeError, OSError):
        raise UserError(f"The checkpoint {path} is damaged and cannot be read.") from None
    if not isinstance(about, dict) or about.pop("digest", None) != _digest(tensors, about):
        raise UserError(f"The checkpoint {path} is damaged: its content does not match its checksum.")
    if fingerprint is not None and about["fingerprint"] != fingerprint:
        raise UserError(f"The checkpoint {path} belongs to a run with other settings.")
    groups: dict[str, Tensors] = {"shared": {}, "server": {}}
    personal: dict[int, Tensors] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition("/")
        if group == "personal":
            client, _, rest = rest.partition("/")
            personal.setdefault(int(client), {})[rest] = value.to(device)
        else:
            groups[group][rest] = value.to(device)
    participations = {int(client): count for client, count in about["participations"].items()}
    return FederationState(about["round"], groups["shared"], groups["server"], personal, participations)


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()
