"""What a study is: a TOML file that says which methods, which data, which columns, at which scale."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator

from fedprompt.config_errors import sentence
from fedprompt.errors import UserError

Scale = Literal["paper", "cpu"]
SCALES: tuple[Scale, ...] = ("paper", "cpu")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RowSettings(_Settings):
    """A row of the table: a method, with settings of its own if it has several rows."""

    method: str
    settings: dict[str, Any] = Field({}, description="settings of the method, for this row alone")

    @property
    def label(self) -> str:
        return ", ".join([self.method, *(f"{key}={value}" for key, value in self.settings.items())])


class ScaleSettings(_Settings):
    """A data set's set-up at one scale: a preset, and what is changed in it."""

    preset: str = Field(
        description="a preset's name, or a TOML file (from the study's own folder if it is one of yours)"
    )
    settings: dict[str, Any] = Field({}, description="changes to the preset, in the same tables")
    trial: dict[str, Any] = Field({}, description="further changes while settings are tuned, in the same tables")
    tries: dict[str, list[dict[str, Any]]] = Field(
        {}, description="what a method tries when it is tuned, setting by setting, in place of the usual grid"
    )


class SetupSettings(_Settings):
    """A data set as studies use it: what varies over the columns, and its set-up at each scale."""

    key: str = Field(description="the setting that differs between columns")
    symbol: str = Field(description="its letter in the paper")
    tune_at: tuple[PositiveInt, ...] = Field(
        min_length=1, description="the columns at which settings are tuned: the mean over them counts"
    )
    validation: float = Field(0.2, gt=0, lt=1, description="share of the clients' training images, for tuning")
    paper: ScaleSettings | None = None
    cpu: ScaleSettings | None = None

    @field_validator("tune_at", mode="before")
    @classmethod
    def _one_column(cls, tune_at: Any) -> Any:
        """One column may be written without brackets."""
        return (tune_at,) if isinstance(tune_at, int) else tune_at

    def at(self, scale: Scale) -> ScaleSettings | None:
        return self.paper if scale == "paper" else self.cpu


class StudySettings(_Settings):
    """A grid of runs: rows by columns by seeds, on one or more data sets."""

    title: str
    rows: tuple[RowSettings, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    on: dict[str, tuple[int, ...]] = Field(description="the columns on each data set")
    default_on: tuple[str, ...] = Field((), description="the data sets if none is named; by default all")
    settings: dict[str, Any] = Field({}, description="changes on every data set")
    settings_on: dict[str, dict[Scale, dict[str, Any]]] = Field({}, description="changes by data set and scale")
    samples: tuple[PositiveInt, ...] = Field((), description="numbers of prompt draws to measure after training (V)")
    tune: tuple[Scale, ...] = Field(
        ("paper",), description="the scales at which settings are tuned unless one says not"
    )
    setup: SetupSettings | None = Field(None, description="if the study defines its data set")

    @field_validator("rows", mode="before")
    @classmethod
    def _short_rows(cls, rows: Any) -> Any:
        """A row may be the method's key alone."""
        return [{"method": row} if isinstance(row, str) else row for row in rows] if isinstance(rows, list) else rows


class GridSettings(_Settings):
    """What is tried when settings are tuned."""

    trials: PositiveInt = Field(description="the most trials that a method gets; larger grids are drawn from")
    seed: int = Field(0, ge=0, description="of the trials' runs")
    methods: dict[str, dict[str, list[Any]]] = Field({}, description="values to try, by method and setting")


def study_names() -> list[str]:
    """The studies that come with the package, those that define a data set first."""
    folder = resources.files("fedprompt") / "presets" / "studies"
    names = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return sorted(names, key=lambda name: read_study(name).setup is None)


def read_study(name: str | Path) -> StudySettings:
    """A study's definition by its name, or from a TOML file."""
    path = Path(name)
    if path.suffix == ".toml":
        tree = _parse(_text(path), str(path))
        _find_presets(tree, path.parent)
        return _checked(StudySettings, tree, str(path))
    packaged = resources.files("fedprompt") / "presets" / "studies" / f"{name}.toml"
    if not packaged.is_file():
        near = difflib.get_close_matches(str(name), study_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"studies are {', '.join(study_names())}."
        raise UserError(f"There is no study {str(name)!r}; {hint}")
    return _checked(StudySettings, _parse(packaged.read_text("utf-8"), str(name)), str(name))


def is_study(name: str | Path) -> bool:
    """Whether a name or TOML file is that of a study, and not of a preset; a study's name wins over a preset's."""
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return "rows" in _parse(_text(path), str(path))
    return str(name) in study_names()


def read_grids(scale: Scale) -> GridSettings:
    """The values that are tried at a scale."""
    path = resources.files("fedprompt") / "presets" / "studies" / "grids" / f"{scale}.toml"
    return _checked(GridSettings, _parse(path.read_text("utf-8"), path.name), path.name)


_Kind = TypeVar("_Kind", bound=BaseModel)


def _checked(kind: type[_Kind], tree: Mapping[str, Any], where: str) -> _Kind:
    try:
        return kind(**tree)
    except ValidationError as error:
        raise UserError(f"In the study {where!r}: {sentence(error, kind)}") from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is not valid TOML: {error}.") from None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UserError(f"The study {path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid TOML: it is not text in UTF-8.") from None


def _find_presets(tree: dict[str, Any], folder: Path) -> None:
    """Presets that lie beside a study of one's own are found from anywhere."""
    setup = tree.get("setup")
    for scale in SCALES:
        chosen = setup.get(scale) if isinstance(setup, dict) else None
        if isinstance(chosen, dict) and isinstance(chosen.get("preset"), str):
            beside = folder / chosen["preset"]
            chosen["preset"] = str(beside.resolve()) if beside.is_file() else chosen["preset"]
