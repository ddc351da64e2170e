"""Set the tables of results/README.md from the records beside it, so that each number there is one of a stored cell.

    python tools/results_page.py            # writes the tables, and samples.png
    python tools/results_page.py --check    # says whether the page holds what the records give

A table stands between ``<!-- KIND NAME ... -->`` and ``<!-- end -->``; what KIND and the words after it may be is in
``KINDS``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from fedprompt.methods import methods
from fedprompt.report.plots import png
from fedprompt.report.published import published
from fedprompt.report.result_table import ACCURACY, CALIBRATION, Metric, ResultTable, Row
from fedprompt.report.results import result_tables
from fedprompt.report.sources import collect
from fedprompt.runs import Run
from fedprompt.studies.finding import finished, samples_tables

RESULTS = Path(__file__).parent.parent / "results"
MARKED = re.compile(r"(<!-- (?!end )(\w+)((?: \S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)


def accuracy(study: str, *on: str) -> str:
    """Average and Worst Local of a study's finished cells."""
    return _markdown(result_tables(finished(study, "cpu", on, out=RESULTS)))


def calibration(study: str, *on: str) -> str:
    """Negative log-likelihood, Brier score and calibration error of the same cells."""
    return _markdown(result_tables(finished(study, "cpu", on, out=RESULTS), CALIBRATION))


def samples(*on: str) -> str:
    """Every figure against the draws V."""
    return _markdown(samples_tables(finished("samples", "cpu", on, out=RESULTS)))


def tuning(data: str) -> str:
    """All trials of each method on a data set, on validation images, the best first."""
    tables = result_tables(trials(data))
    return _markdown([replace(table, rows=tuple(_best_first(table.rows))) for table in tables])


def paper(data: str, *columns: str) -> str:
    """What the paper reports on another data set, where ours is not one of its own."""
    lines = ["| method | " + " | ".join(f"{c} {m.title}" for c in columns for m in ACCURACY) + " |"]
    lines.append("|---|" + "---:|" * len(columns) * len(ACCURACY))
    for method in sorted(methods().values(), key=lambda one: one.rank):
        found = [published(data, column, method.title, metric.key) for column in columns for metric in ACCURACY]
        if any(value is not None for value in found):
            lines.append(f"| {method.title} | " + " | ".join("" if v is None else f"{v:.2f}" for v in found) + " |")
    return "\n".join(lines) + "\n"


KINDS: dict[str, Callable[..., str]] = {kind.__name__: kind for kind in (accuracy, calibration, samples, tuning, paper)}


def trials(data: str) -> list[Run]:
    """The records of a data set's trials."""
    return [run for run in collect([str(RESULTS / "cells")]) if _is_trial(run) and run.config.data.name == data]


def _best_first(rows: Sequence[Row]) -> list[Row]:
    """Each method's rows by their first figure, the methods in their order."""
    order = list(dict.fromkeys(row.method for row in rows))
    return sorted(rows, key=lambda row: (order.index(row.method), -row.cells[0].mean if row.cells[0] else 0.0))


def _is_trial(run: Run) -> bool:
    return run.config.evaluation.split == "validation"


def _markdown(tables: list[ResultTable]) -> str:
    return "\n".join(table.to_markdown() for table in tables)


def rendered(page: str) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(lambda found: found[1] + "\n" + KINDS[found[2]](*found[3].split()) + "\n" + found[4], page)


def samples_picture(runs: list[Run]) -> Figure:
    """Accuracy and calibration against the draws V, with the spread over seeds."""
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    tables = {table.columns[0].metric.key: table for table in samples_tables(runs)}
    shown: list[Metric] = [metric for metric in (*ACCURACY, *CALIBRATION) if metric.key != "brier"]
    for axes, metric in zip(figure.subplots(1, len(shown)), shown, strict=True):
        table = tables[metric.key]
        counts = [int(column.setting.removeprefix("V=")) for column in table.columns]
        for row in table.rows:
            cells = [cell for cell in row.cells if cell is not None]
            axes.errorbar(
                counts,
                [cell.mean for cell in cells],
                yerr=[cell.std or 0.0 for cell in cells],
                marker="o",
                capsize=2,
                label=row.label.partition(", ")[2],
            )
        axes.set(title=metric.title, xlabel="draws V", xticks=counts)
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is another")
    check = parser.parse_args().check
    path = RESULTS / "README.md"
    before = path.read_text("utf-8")
    after = rendered(before)
    if check:
        sys.exit(
            None if before == after else "results/README.md is not what the records give: run this without --check."
        )
    path.write_text(after, "utf-8")
    if runs := finished("samples", "cpu", out=RESULTS):
        (RESULTS / "samples.png").write_bytes(png(samples_picture(runs)))


if __name__ == "__main__":
    main()
