"""Which runs a report is about, and which of them share a table: run folders together, a study's with each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedprompt.errors import UserError
from fedprompt.report.results import Heading
from fedprompt.runs import Run, load_run

SET_ASIDE = "damaged"  # where a study moves folders that it cannot use


@dataclass(frozen=True)
class Part:
    """Runs that share tables, each once: those of a study, under its heading, or those given as folders."""

    runs: Sequence[Run]
    heading: Heading | None = None
    draws: bool = False  # whether it is about the number of prompt draws, and about nothing else


def collect(sources: Sequence[str], studies: Path = Path("studies")) -> list[Part]:
    """The runs that are meant: those of folders first, together, then a part for each study in the order given.

    A source is a run folder, any folder (all runs below it are taken), or the name of a study, whose cells lie in the
    folder ``studies``.
    """
    folders = [source for source in sources if Path(source).is_dir()]
    parts = [Part(_once(run for folder in folders for run in _below(folder)))] if folders else []
    return parts + [_of_study(name, studies) for name in dict.fromkeys(sources) if name not in folders]


def all_runs(parts: Sequence[Part]) -> list[Run]:
    """The runs of several parts, each once."""
    return _once(run for part in parts for run in part.runs)


def _once(runs: Iterable[Run]) -> list[Run]:
    found: dict[Path, Run] = {}
    for run in runs:
        _check(run)
        found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def _below(source: str) -> Iterable[Run]:
    """The run in a folder, or all runs below it in the order of their names."""
    folder = Path(source)
    if (folder / "config.toml").is_file():
        return [load_run(folder)]
    below = sorted(path.parent for path in folder.rglob("config.toml") if SET_ASIDE not in path.parts)
    if not below:
        raise UserError(f"There is no run in {source!r}: neither it nor a folder below it has a config.toml.")
    return [load_run(place) for place in below]


def _check(run: Run) -> None:
    """A damaged settings file is one sentence now, not something in the middle of the page."""
    try:
        run.config  # noqa: B018 (reads the file)
    except UserError as error:
        raise UserError(f"The run in {str(run.folder)!r} cannot be read. {error}") from None


def _of_study(name: str, folder: Path) -> Part:
    """The finished runs of a study."""
    # Here, because a report of run folders does not need them.
    from fedprompt.studies.definition import read_study, study_names
    from fedprompt.studies.finding import finished, heading

    if name not in study_names() and not name.endswith(".toml"):
        raise UserError(
            f"There is no folder {name!r}, and no study of that name; studies are {', '.join(study_names())}."
        )
    runs = finished(name, out=folder)
    if not runs:
        raise UserError(
            f"The study {name!r} has no finished run in {str(folder)!r}; begin with: fedprompt study run {name}"
        )
    return Part(_once(runs), heading(name), draws=bool(read_study(name).samples))
