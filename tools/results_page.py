"""Set the tables of the pages in results/, and of README.md, from the records: each number is one of a stored cell.

    python tools/results_page.py            # writes the tables, samples.png, and the report in results/report
    python tools/results_page.py --check    # says whether the pages hold what the records give

A table stands between ``<!-- KIND NAME ... -->`` and ``<!-- end -->``; what KIND and the words after it may be is in
``KINDS``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from fedprompt.methods import methods
from fedprompt.report.draws import draws_tables
from fedprompt.report.page import Report, describe
from fedprompt.report.plots import png
from fedprompt.report.published import published
from fedprompt.report.result_table import ACCURACY, CALIBRATION, Cell, Column, Metric, ResultTable, Row
from fedprompt.report.results import result_tables
from fedprompt.report.sources import all_runs, collect
from fedprompt.report.spread import spread
from fedprompt.report.writing import write_report
from fedprompt.runs import Run, load_run
from fedprompt.studies import Cell as StudyCell
from fedprompt.studies.finding import finished
from fedprompt.studies.finding import tables as study_tables

RESULTS = Path(__file__).parent.parent / "results"
REPORT = RESULTS / "report" / "report.html"
REPORTED = ("pacs", "cifar100", "new-clients", "ablation", "samples", "parts", "starts", "heads")
PAGES = (*sorted(RESULTS.glob("*.md")), RESULTS.parent / "README.md")
MARKED = re.compile(r"(<!-- (?!end )(\w+)((?: \S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)


def accuracy(study: str, *on: str) -> str:
    """Average and Worst Local of a study's finished cells."""
    return _markdown(_tables(study, on))


def averages(*studies: str) -> str:
    """The Average alone, of several studies side by side."""
    tables = [table for study in studies for table in _tables(study, (), ACCURACY[:1])]
    heads = ["method", *(f"{_data(table)} {column.setting}" for table in tables for column in table.columns)]
    labels = dict.fromkeys(row.label for table in tables for row in table.rows)
    rows = [
        [label, *(_bold(table.cell(label, column.setting, "average")) for table in tables for column in table.columns)]
        for label in labels
    ]
    return _plain_table(heads, rows)


def lead(study: str, method: str, *on: str) -> str:
    """How far a method is ahead of each other row, in pairs of the same seed."""
    return "\n".join(lead_of(method, table) for table in _tables(study, on))


def calibration(study: str, *on: str) -> str:
    """Negative log-likelihood, Brier score and calibration error of the same cells."""
    return _markdown(_tables(study, on, CALIBRATION))


def samples(*on: str) -> str:
    """Every figure against the draws V: a row for each, one data set after the other."""
    tables = _tables("samples", on)
    heads = ["", *(column.setting for column in tables[0].columns)]
    rows = [
        [
            f"{row.label.partition(', ')[2]}, {table.columns[0].metric.title}",
            *(cell.text if cell else "-" for cell in row.cells),
        ]
        for together in zip(*(table.rows for table in tables), strict=True)
        for table, row in zip(tables, together, strict=True)
    ]
    return _plain_table(heads, rows) + "".join(f"\n- {note}\n" for note in tables[0].notes)


def own_prompts() -> str:
    """Average with prompts made for other images, the share of images whose class that changes, and what it costs."""
    rows = []
    for label, kinds in _by_prompt().items():
        for kind, title in PROMPTS.items():
            average, changed = Cell(kinds[kind]["average"]), Cell(kinds[kind]["changed"])
            lead = "" if kind == "own" else _in_pairs(Cell(kinds["own"]["average"]), average)
            rows.append([f"{label}, {title}", average.text, lead, "" if kind == "own" else f"{changed.mean:.1f} %"])
    return _plain_table(["prompt of", "Average", "lead of its own", "other class"], rows)


PROMPTS = {
    "own": "the image itself",
    "another": "another image of the client",
    "stranger": "an image of another client",
    "mean": "the client's training images, their mean",
}


def _by_prompt() -> dict[str, dict[str, dict[str, dict[int, float]]]]:
    """What tools/own_prompts.py has measured, by data set, column and start, kind of prompt, figure and seed, in %."""
    figures: dict[str, dict[str, dict[str, dict[int, float]]]] = {}
    for name, measured in json.loads((RESULTS / "own-prompts.json").read_text("utf-8")).items():
        cell = StudyCell(load_run(RESULTS / "cells" / name).config)
        start = cell.config.resolved()["methods"]["pfedbayespt"]["prompt_start"]
        label = f"{cell.title.rpartition(', seed')[0].partition(', ')[2]} from {start}"
        for kind, found in measured["prompts"].items():
            for key, value in found.items():
                kinds = figures.setdefault(label, {}).setdefault(kind, {})
                kinds.setdefault(key, {})[cell.config.seed] = 100 * value
    return figures


def prompt_starts() -> str:
    """What tools/prompt_starts.py has measured of prompts before training."""
    rows = []
    for start, found in json.loads((RESULTS / "prompt-starts.json").read_text("utf-8")).items():
        ranges = (f"{min(found[key]):.2g} to {max(found[key]):.2g}" for key in ("different", "rms"))
        rows.append([f"`{start}`", f"{found['cosine']:.2f}", *ranges])
    heads = ["start", "cosine of the feature with and without", "different tokens of ten, by layer", "rms, by layer"]
    return _plain_table(heads, rows)


def tuning(data: str, *wanted: str) -> str:
    """All trials of each method on a data set, on validation images, the best first.

    ``wanted`` are settings such as ``data.validation=0.7``: trials that have another value are left out.
    """
    pairs = [pair.split("=") for pair in wanted]
    chosen = [run for run in trials(data) if all(_setting(run, key) == value for key, value in pairs)]
    return _markdown([_few_words(_best_first(_with_means(table))) for table in result_tables(chosen)])


def paper(data: str, *columns: str) -> str:
    """What the paper reports on another data set, where ours is not one of its own."""
    return _published(data, columns, ACCURACY)


def paper_new_clients(data: str, *columns: str) -> str:
    """The same of clients that join after training, for whom the paper has the Average alone."""
    return _published(data, columns, ACCURACY[:1], new_clients=True)


KINDS: dict[str, Callable[..., str]] = {
    kind.__name__: kind
    for kind in (
        accuracy,
        averages,
        lead,
        calibration,
        samples,
        own_prompts,
        prompt_starts,
        tuning,
        paper,
        paper_new_clients,
    )
}


def trials(data: str) -> list[Run]:
    """The records of a data set's trials."""
    return [
        run for run in all_runs(collect([str(RESULTS / "cells")])) if _is_trial(run) and run.config.data.name == data
    ]


def lead_of(method: str, table: ResultTable) -> str:
    """One row for each other row of the table: what the method has more, in the table's own columns."""
    own = [row for row in table.rows if row.method == method]
    if len(own) != 1:
        sys.exit(f"{table.title!r} has {len(own)} rows of {method}; a lead is that of one.")
    heads = [f"{own[0].label} against", *(f"{column.setting} {column.metric.title}" for column in table.columns)]
    rows = [
        [row.label, *(_in_pairs(one, other) for one, other in zip(own[0].cells, row.cells, strict=True))]
        for row in table.rows
        if row is not own[0]
    ]
    return _plain_table(heads, rows)


def _in_pairs(one: Cell | None, other: Cell | None) -> str:
    """The mean of one minus the other over the seeds that both have, its standard error, and the seeds won."""
    if one is None or other is None:
        return "-"
    gaps = [one.by_seed[seed] - other.by_seed[seed] for seed in one.by_seed if seed in other.by_seed]
    apart = spread(gaps)
    if apart is None:
        return "".join(f"{gap:+.2f}" for gap in gaps) or "-"
    won = sum(gap > 0 for gap in gaps)
    return f"{statistics.fmean(gaps):+.2f} ± {apart / math.sqrt(len(gaps)):.2f} ({won} of {len(gaps)})"


def _with_means(table: ResultTable) -> ResultTable:
    """In front, the means over the columns, by which settings are chosen; behind them each column's Average."""
    if len(table.settings) == 1:
        return table
    columns = tuple(Column("mean", metric) for metric in ACCURACY)
    columns += tuple(Column(setting, ACCURACY[0]) for setting in table.settings)
    rows = []
    for row in table.rows:
        figures = {
            metric: [cell for column, cell in zip(table.columns, row.cells, strict=True) if column.metric == metric]
            for metric in ACCURACY
        }
        means = tuple(_mean_of([cell for cell in cells if cell]) if all(cells) else None for cells in figures.values())
        rows.append(replace(row, cells=(*means, *figures[ACCURACY[0]])))
    return replace(table, columns=columns, rows=tuple(rows))


def _mean_of(cells: Sequence[Cell]) -> Cell:
    """The mean over several columns, seed by seed."""
    seeds = [seed for seed in cells[0].by_seed if all(seed in cell.by_seed for cell in cells)]
    return Cell({seed: statistics.fmean(cell.by_seed[seed] for cell in cells) for seed in seeds})


def _best_first(table: ResultTable) -> ResultTable:
    """Each method's rows by their first figure, the methods in their order."""
    order = list(dict.fromkeys(row.method for row in table.rows))

    def place(row: Row) -> tuple[int, float]:
        return order.index(row.method), -row.cells[0].mean if row.cells[0] else 0.0

    return replace(table, rows=tuple(sorted(table.rows, key=place)))


def _few_words(table: ResultTable) -> ResultTable:
    """Without the names of all rows that have more seeds: a spread stands beside the figures of those."""
    return replace(table, notes=tuple(note for note in table.notes if not note.startswith("Seeds differ")))


def _tables(study: str, on: Sequence[str], metrics: Sequence[Metric] = ACCURACY) -> list[ResultTable]:
    return study_tables(study, finished(study, "cpu", on, out=RESULTS), metrics)


def _data(table: ResultTable) -> str:
    return table.rows[0].entries[0].data_title


def _bold(cell: Cell | None) -> str:
    return "-" if cell is None else f"**{cell.text}**" if cell.best else cell.text


def _setting(run: Run, key: str) -> str:
    value = run.config.resolved()
    for part in key.split("."):
        value = value[part]
    return str(value)


def _is_trial(run: Run) -> bool:
    return run.config.evaluation.split == "validation"


def _markdown(tables: list[ResultTable]) -> str:
    return "\n".join(table.to_markdown() for table in tables)


def _published(data: str, columns: Sequence[str], metrics: Sequence[Metric], *, new_clients: bool = False) -> str:
    rows = []
    for method in sorted(methods().values(), key=lambda one: one.rank):
        found = [
            published(data, column, method.title, metric.key, new_clients=new_clients)
            for column in columns
            for metric in metrics
        ]
        if any(value is not None for value in found):
            rows.append([method.title, *("" if value is None else f"{value:.2f}" for value in found)])
    if not rows:
        sys.exit(f"The paper reports nothing on {data} at {', '.join(columns)}.")
    return _plain_table(["method", *(f"{column} {metric.title}" for column in columns for metric in metrics)], rows)


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of texts: a name, and figures set to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rendered(page: str) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(lambda found: found[1] + "\n" + KINDS[found[2]](*found[3].split()) + "\n" + found[4], page)


def told() -> Report:
    """The report about all studies, as the command in it makes it; records have no tensors, so it shows no images."""
    command = f"fedprompt report {' '.join(REPORTED)} --studies results --no-gallery -o {REPORT.name}"
    return describe(collect(REPORTED, Path(RESULTS.name)), "", command)


def samples_picture(runs: list[Run]) -> Figure:
    """Accuracy and calibration against the draws V, with the spread over seeds."""
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    tables = {table.columns[0].metric.key: table for table in draws_tables(runs)}
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
        axes.set(title=metric.title + " (%)" * (metric.scale != 1), xlabel="draws V", xticks=counts)
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is another")
    check = parser.parse_args().check
    os.chdir(RESULTS.parent)  # the report names folders as somebody in the repository would
    for path in PAGES:
        before = path.read_text("utf-8")
        after = rendered(before)
        if check and before != after:
            sys.exit(f"{path.relative_to(RESULTS.parent)} is not what the records give: run this without --check.")
        if not check:
            path.write_text(after, "utf-8")
    beside = REPORT.with_suffix(".md")
    if check and beside.read_text("utf-8") != told().to_markdown():
        sys.exit(f"{beside.relative_to(RESULTS.parent)} is not what the records give: run this without --check.")
    if check:
        return
    shutil.rmtree(REPORT.parent, ignore_errors=True)
    write_report(told(), REPORT)
    if runs := finished("samples", "cpu", out=RESULTS):
        (RESULTS / "samples.png").write_bytes(png(samples_picture(runs)))


if __name__ == "__main__":
    main()
