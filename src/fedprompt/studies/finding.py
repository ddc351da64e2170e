"""What is there of a study: its cells, the finished ones, and their tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprompt.errors import UserError
from fedprompt.report.draws import draws_tables
from fedprompt.report.result_table import ACCURACY, Metric, ResultTable
from fedprompt.report.results import Heading, result_tables
from fedprompt.run_folder import read_json
from fedprompt.runs import Run
from fedprompt.studies.cell import Cell
from fedprompt.studies.definition import SCALES, read_study
from fedprompt.studies.plans import find_plan
from fedprompt.studies.running import OUT
from fedprompt.studies.store import Store
from fedprompt.studies.study import load_study


def planned(
    name: str | Path,
    scale: str | None = None,
    on: Iterable[str] | None = None,
    *,
    out: str | Path = OUT,
    changes: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells of a study as it was last run from the store ``out``; if it never was, those of its definition.

    Without a scale that of the last run is taken, and without changes those of the last run.
    """
    store, wanted = Store(out), list(on or ())
    plans = {}
    for one in SCALES if scale is None else [scale]:
        try:
            study = load_study(name, one, wanted, changes)
        except UserError:
            if scale is not None or one == SCALES[-1]:
                raise
            continue  # this data set does not exist at that scale
        plan = find_plan(store, study)
        if plan is not None:
            plans[plan.updated] = plan.on(study.data_names() if wanted else [])
    return plans[max(plans)] if plans else study.cells()


def finished(
    name: str | Path,
    scale: str | None = None,
    on: Iterable[str] | None = None,
    *,
    out: str | Path = OUT,
    changes: Mapping[str, Any] | None = None,
) -> list[Run]:
    """The finished runs of a study, as :func:`planned`; trials of tuning are not among them."""
    return Store(out).runs(planned(name, scale, on, out=out, changes=changes))


def tables(name: str | Path, runs: Sequence[Run], metrics: Sequence[Metric] = ACCURACY) -> list[ResultTable]:
    """A study's tables from the runs that are there."""
    return draws_tables(runs) if read_study(name).samples else result_tables(runs, metrics, heading(name))


def heading(name: str | Path) -> Heading:
    """What stands over a study's tables."""
    return Heading(read_study(name).title, Path(name).stem)


def code_notes(runs: Sequence[Run]) -> list[str]:
    """A sentence if the runs were made by more than one version of the code."""
    sources = {json.dumps(read_json(run.folder / "cell.json")["code"].get("source")) for run in runs}
    return (
        [f"These cells were made by {len(sources)} versions of the code; see each cell.json."]
        if len(sources) > 1
        else []
    )
