"""A cell of a study: one run, known by the settings that decide its result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fedprompt.config import Config
from fedprompt.methods import methods
from fedprompt.runs import fingerprint

KEY_LENGTH = 12  # hexadecimal digits; a store holds thousands of cells, not millions


@dataclass(frozen=True)
class Cell:
    """One run of a grid; two cells with the same key are the same run, whatever study they belong to."""

    config: Config
    samples: tuple[int, ...] = ()  # numbers of prompt draws to measure after training
    known_key: str = ""  # if it was written down: the weights, which are part of it, may be elsewhere now

    @cached_property
    def key(self) -> str:
        return self.known_key or settings_key(self.config)

    @property
    def column(self) -> str:
        """How the images are dealt out, as in ``m=6``."""
        return self.config.partition.level

    @property
    def trial(self) -> bool:
        """Whether it is there to choose settings, and so judged on validation images."""
        return self.config.evaluation.split == "validation"

    @property
    def name(self) -> str:
        """The name of its folder: readable, and different for different keys."""
        config = self.config
        marks = ["new"] if config.new_clients.hold_out not in ("none", ()) else []
        marks += ["trial"] if self.trial else []
        parts = [config.data.name, self.column.replace("=", ""), *marks, config.method, f"seed{config.seed}", self.key]
        return "-".join(parts)

    @property
    def title(self) -> str:
        """What a person reads while it runs."""
        config = self.config
        what = " trial" if self.trial else ""
        return f"{methods()[config.method].title}{what}, {config.data.name} {self.column}, seed {config.seed}"


def settings_key(config: Config) -> str:
    """A digest of what decides a run's result; moving data or weights does not change it, other weights do."""
    weights = Path(config.backbone.weights)
    content = _file_digest(weights) if weights.is_absolute() else ""
    return hashlib.sha256(f"{fingerprint(config)} {content}".encode()).hexdigest()[:KEY_LENGTH]


def _file_digest(path: Path) -> str:
    path = path / "model.safetensors" if path.is_dir() else path
    return _digest_at(path, path.stat().st_mtime_ns) if path.is_file() else "missing"


@cache
def _digest_at(path: Path, changed: int) -> str:
    """The digest of a file that was last written at ``changed``; a grid asks for the same file very often."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
