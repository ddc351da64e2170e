"""Which code, on which machine, made a result."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import torch


@cache  # the code that runs is the code that was there when the process began
def code_version() -> dict[str, Any]:
    """The package's version, a digest of its source files, and the git commit if they are in a checkout."""
    folder = Path(str(resources.files("fedprompt")))
    version: dict[str, Any] = {"version": metadata.version("fedprompt"), "source": source_digest(folder)}
    # Ask about this very file: the package may be installed below somebody else's checkout.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return version
    version["commit"] = _git(folder, "rev-parse", "HEAD")
    version["dirty"] = bool(_git(folder, "status", "--porcelain", "--", "."))
    return version


def source_digest(folder: Path) -> str:
    """One digest of all source files and presets below a folder, with their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """What the run was computed on."""
    found: dict[str, Any] = {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _git(folder: Path, *words: str) -> str | None:
    """What git says, or None where there is no git or it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
