"""What is there of a study: its cells, the finished ones, and their tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprompt.errors import UserError
from fedprompt.report.result_table import ACCURACY, CALIBRATION, Column, Metric, ResultTable, Row
from fedprompt.report.result_table import Cell as Figure
from fedprompt.report.results import result_tables
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


def tables(name: str | Path, runs: Sequence[Run]) -> list[ResultTable]:
    """A study's tables from the runs that are there."""
    return samples_tables(runs) if read_study(name).samples else result_tables(runs)


def samples_tables(runs: Sequence[Run]) -> list[ResultTable]:
    """Figures against the number of prompt draws: a table for each metric, from the samples.json of the runs."""
    measured = [(run, read_json(run.folder / "samples.json")) for run in runs]
    counts = sorted({row["samples"] for _, content in measured for row in content["rows"]})
    return [_by_samples(measured, metric, counts) for metric in (*ACCURACY, *CALIBRATION) if measured]


def _by_samples(measured: Sequence[tuple[Run, dict[str, Any]]], metric: Metric, counts: Sequence[int]) -> ResultTable:
    values: dict[tuple[str, str], dict[int, dict[int, float]]] = {}  # by label and method, draws, seed
    for run, content in measured:
        cell = Cell(run.config)
        label = cell.title.rpartition(", seed")[0]
        for row in content["rows"]:
            figures = values.setdefault((label, run.config.method), {}).setdefault(row["samples"], {})
            figures[run.config.seed] = metric.scale * row[metric.key]
    rows = tuple(
        Row(
            label,
            method,
            tuple(Figure(by_count[count], metric.decimals) if count in by_count else None for count in counts),
        )
        for (label, method), by_count in values.items()
    )
    columns = tuple(Column(f"V={count}", metric) for count in counts)
    rounds = sorted({content["round"] for _, content in measured})
    note = f"After round {' or '.join(map(str, rounds))}; the first V of {counts[-1]} prompt draws, averaged."
    return ResultTable(f"{metric.title} against the draws V", f"samples-{metric.key}", columns, rows, (note,))


def code_notes(runs: Sequence[Run]) -> list[str]:
    """A sentence if the runs were made by more than one version of the code."""
    sources = {json.dumps(read_json(run.folder / "cell.json")["code"].get("source")) for run in runs}
    return (
        [f"These cells were made by {len(sources)} versions of the code; see each cell.json."]
        if len(sources) > 1
        else []
    )
