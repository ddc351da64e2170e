"""Running a study: check what can be known, tune if asked to, and do every cell that is not done."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedprompt.backbone.weights import load_backbone
from fedprompt.data.dataset import Dataset
from fedprompt.data.partition import partition
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError
from fedprompt.runs import Run
from fedprompt.studies.cell import Cell
from fedprompt.studies.definition import read_grids
from fedprompt.studies.plans import save_plan
from fedprompt.studies.pool import do_all
from fedprompt.studies.store import Store, check_data, data_digest
from fedprompt.studies.study import Study
from fedprompt.studies.tuning import Trials, plan_trials
from fedprompt.studies.watch import Watch

OUT = "studies"


@dataclass(frozen=True)
class Result:
    """What became of a study."""

    study: Study
    store: Store
    cells: list[Cell]
    trials: list[Trials] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # complaints by the name of the cell

    @property
    def runs(self) -> list[Run]:
        """The finished runs."""
        return self.store.runs(self.cells)


def run_study(
    study: Study,
    *,
    seeds: Sequence[int] | None = None,
    only: Iterable[str] | None = None,
    jobs: int = 1,
    tune: bool | None = None,
    out: str | Path = OUT,
    silent: bool = False,
) -> Result:
    """Do every cell of a study that is not done yet, in ``jobs`` processes.

    With ``tune``, each method's settings are first chosen on validation images, and the grid is run with the winners;
    by default where the study says so. A cell that fails is reported in the result and does not stop the others.
    """
    store = Store(out)
    only = None if only is None else list(only)
    cells = study.cells(seeds, only)  # a mistake in the settings shows here, before anything is tuned
    digests = check_up_front(store, cells)
    trials: list[Trials] = []
    failures: dict[str, str] = {}
    tuned = study.tunes if tune is None else tune
    if tuned:
        kept = {cell.config.method for cell in cells}
        trials = plan_trials(study, read_grids(study.scale), wanted=[key for key in study.methods if key in kept])
        failures = run_trials(store, trials, jobs=jobs, silent=silent)
        winners: dict[str, dict[str, Any]] = {}
        for one in trials:
            try:
                winners.setdefault(one.data, {})[one.method] = one.winner(store)
            except UserError as error:
                failures[f"{one.data}-{one.method}"] = str(error)
        cells = study.cells(seeds, only, winners)
    save_plan(store, study, cells, tuned=tuned)
    return Result(study, store, cells, trials, failures | _do(store, cells, digests, jobs, study.name, silent))


def run_trials(store: Store, trials: Sequence[Trials], *, jobs: int = 1, silent: bool = False) -> dict[str, str]:
    """Do the cells of all trials; complaints by the name of the cell."""
    cells = list({cell.key: cell for one in trials for cell in one.cells}.values())
    return _do(store, cells, check_up_front(store, cells), jobs, "tuning", silent) if cells else {}


def _do(
    store: Store, cells: Sequence[Cell], digests: Mapping[DataSettings, str], jobs: int, title: str, silent: bool
) -> dict[str, str]:
    with Watch(title, jobs=jobs, silent=silent) as watch:
        failures = do_all(store, cells, digests, jobs, watch)
    names = {cell.key: cell.name for cell in cells}
    return {names[key]: complaint for key, complaint in failures.items()}


def check_up_front(store: Store, cells: Sequence[Cell]) -> dict[DataSettings, str]:
    """Open each data set and backbone once, so that what is missing shows before the first run.

    Gives a digest of each data set; one that only finished cells need may be missing, and is then left out.
    """
    opened: dict[DataSettings, Dataset] = {}
    digests: dict[DataSettings, str] = {}
    checked: set[Hashable] = set()
    for cell in cells:
        config, finished = cell.config, store.finished(cell)
        if config.data not in opened:
            try:
                opened[config.data] = open_dataset(config.data)
            except UserError:
                if finished:
                    continue
                raise
            digests[config.data] = data_digest(opened[config.data])
        check_data(store.folder(cell), digests[config.data])
        dealt = (config.data, config.partition)
        if not finished and dealt not in checked:
            partition(opened[config.data], config.partition, config.seed, config.data.validation)
            checked.add(dealt)
        if not finished and config.backbone not in checked:
            load_backbone(config.backbone.weights, config.backbone.image)
            checked.add(config.backbone)
    return digests
