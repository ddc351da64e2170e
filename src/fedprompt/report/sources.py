"""Which runs a report is about: run folders, folders of run folders, and studies by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedprompt.errors import UserError
from fedprompt.runs import Run, load_run

SET_ASIDE = "damaged"  # where a study moves folders that it cannot use


def collect(sources: Sequence[str], studies: Path = Path("studies")) -> list[Run]:
    """The runs that are meant, each once, in the order of their folders' names.

    A source is a run folder, any folder (all runs below it are taken), or the name of a study, whose cells lie in the
    folder ``studies``.
    """
    found: dict[Path, Run] = {}
    for source in sources:
        for run in _runs_of(source, studies):
            _check(run)
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def _runs_of(source: str, studies: Path) -> Iterable[Run]:
    folder = Path(source)
    if not folder.is_dir():
        return _of_study(source, studies)
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


def _of_study(name: str, folder: Path) -> list[Run]:
    """The finished runs of a study."""
    from fedprompt.studies import finished, study_names  # here, because a report of run folders does not need them

    if name not in study_names() and not name.endswith(".toml"):
        raise UserError(
            f"There is no folder {name!r}, and no study of that name; studies are {', '.join(study_names())}."
        )
    runs = finished(name, out=folder)
    if not runs:
        raise UserError(
            f"The study {name!r} has no finished run in {str(folder)!r}; begin with: fedprompt study run {name}"
        )
    return runs
