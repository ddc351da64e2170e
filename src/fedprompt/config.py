"""One typed tree of settings. Presets (``presets/*.toml``) are the only place for experiment numbers."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from fedprompt.config_errors import sentence
from fedprompt.data.partition import PartitionSettings
from fedprompt.data.settings import DataSettings
from fedprompt.device import Precision
from fedprompt.errors import UserError
from fedprompt.federation.settings import FederationSettings
from fedprompt.methods import method_class, methods


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BackboneSettings(_Settings):
    """The frozen ViT."""

    weights: str = Field("mini", description="mini, a .safetensors file, a folder, or a Hugging Face hub id")
    image: PositiveInt | None = Field(None, description="side of the input in pixels; by default as pre-trained")
    precision: Precision = Field(
        "auto", description="number format of the frozen ViT; auto: bf16 where the machine computes in it natively"
    )
    feature_memory: float | None = Field(
        None, ge=0, description="GiB of memory for frozen features; by default a quarter of what is free"
    )
    feature_disk: float = Field(
        20.0, ge=0, description="GiB on disk for frozen features beyond it; what does not fit is computed anew"
    )


class TrainingSettings(_Settings):
    """Rounds, and what a client does in one."""

    rounds: PositiveInt = Field(100, description="communication rounds (R)")
    epochs: PositiveInt = Field(5, description="local epochs in a round (E)")
    batch: PositiveInt = Field(64, description="images in a local step (B)")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients that train in a round")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="of shared tensors' learning rates over the rounds; cosine lets them fall"
    )
    checkpoint_every: PositiveInt = Field(1, description="rounds between checkpoints; the last is always kept")


class EvaluationSettings(_Settings):
    """When and on what to evaluate. Each client: the aggregated shared tensors with its own latest personal ones."""

    every: PositiveInt = Field(1, description="evaluate each so many rounds; the last ones that count always are")
    last: PositiveInt = Field(10, description="rounds at the end whose mean is reported")
    split: Literal["test", "validation"] = Field("test", description="validation is for choosing settings")
    batch: PositiveInt = Field(32, description="images at once; small batches stay in the CPU's cache")


class NewClientSettings(_Settings):
    """Clients that join after training, with a head fine-tuned on their own data and nothing else."""

    hold_out: Literal["none", "half", "random_half"] | tuple[int, ...] = Field(
        "none", description="none, half (the last ones), random_half, or a list of client numbers"
    )
    epochs: PositiveInt = Field(5, description="fine-tuning epochs")


class Config(_Settings):
    """All that decides a run."""

    name: str = Field("run", pattern=r"^[^/\\]+$", description="the preset's name; run folders begin with it")
    method: str = Field("pfedbayespt", description="see `fedprompt methods`")
    seed: int = Field(0, ge=0)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: int = Field(0, ge=0, description="CPU threads; 0 for all cores")
    backbone: BackboneSettings = BackboneSettings()
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    new_clients: NewClientSettings = NewClientSettings()
    federation: FederationSettings = FederationSettings()
    methods: dict[str, dict[str, Any]] = Field({}, description="settings of each method, under its key")

    def method_settings(self) -> BaseModel:
        """The checked settings of the method that this run uses."""
        return method_class(self.method).Settings(**self.methods.get(self.method, {}))

    def resolved(self) -> dict[str, Any]:
        """The whole tree as plain values, with the chosen method's defaults written out and other methods left out."""
        tree = self.model_dump(mode="json", exclude_none=True)
        tree["methods"] = {self.method: self.method_settings().model_dump(mode="json", exclude_none=True)}
        return tree


def preset_names() -> list[str]:
    """The presets that come with the package."""
    folder = resources.files("fedprompt") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_config(source: str | Path, changes: Mapping[str, Any] | None = None) -> Config:
    """Settings from a preset's name or a TOML file, with changes by dotted key.

    >>> load_config("digits6", {"training.rounds": 3}).training.rounds
    3
    """
    tree = _read(source)
    for key, value in (changes or {}).items():
        _set(tree, key, value)
    _make_absolute(tree)
    try:
        config = Config(**tree)
        for key, settings in config.methods.items():
            _check_method(key, settings)
        method_class(config.method)
    except ValidationError as error:
        raise UserError(sentence(error, Config)) from None
    return config


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """``key=value`` strings as changes; a value is read as TOML, and as a plain string if it is none.

    >>> parse_assignments(["training.rounds=3", "data.root=/my/images", "new_clients.hold_out=[4, 5]"])
    {'training.rounds': 3, 'data.root': '/my/images', 'new_clients.hold_out': [4, 5]}
    """
    changes: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{text!r} is not of the form key=value, as in training.rounds=20.")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changes[key.strip()] = value.strip()
    return changes


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UserError(f"There is no settings file {str(path)!r}.")
        text, where = _text(path), str(path)
    elif str(source) in preset_names():
        text, where = (resources.files("fedprompt") / "presets" / f"{source}.toml").read_text("utf-8"), str(source)
    else:
        near = difflib.get_close_matches(str(source), preset_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"presets are {', '.join(preset_names())}."
        raise UserError(f"There is no preset or .toml file {str(source)!r}; {hint}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is not valid TOML: {error}.") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid TOML: it is not text in UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise UserError(f"The setting {key!r} goes into {part!r}, which holds a single value.")
    tree[last] = value


def _make_absolute(tree: dict[str, Any]) -> None:
    """Write paths out in full, so that a run can be resumed and used from any folder."""
    for table, key in (("data", "root"), ("backbone", "weights")):
        settings = tree.get(table)
        if not isinstance(settings, dict):
            continue
        value = settings.get(key)
        if isinstance(value, str | Path) and value not in ("", "mini") and Path(value).exists():
            settings[key] = str(Path(value).resolve())


def _check_method(key: str, settings: Mapping[str, Any]) -> None:
    if key not in methods():
        method_class(key)  # raises, with the nearest name
    kind = methods()[key].Settings
    try:
        kind(**settings)
    except ValidationError as error:
        raise UserError(sentence(error, kind, f"methods.{key}.")) from None
