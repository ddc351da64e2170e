"""The page: one HTML file that needs nothing else, no network, no script."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, resources

from fedprompt.progress import track
from fedprompt.report import page_parts as sections
from fedprompt.report.draws import draws_tables
from fedprompt.report.gallery import Gallery
from fedprompt.report.result_table import ACCURACY, CALIBRATION, ResultTable
from fedprompt.report.results import result_tables
from fedprompt.report.sorting import Entry
from fedprompt.report.sources import Part, all_runs
from fedprompt.report.words import in_words, listed
from fedprompt.runs import Run

# Whatever got into the page by mistake could not load or run anything.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Report:
    """What is told: the runs, their tables, and a look at one client's predictions or why there is none."""

    runs: Sequence[Run]
    tables: list[ResultTable]
    calibration: list[ResultTable]
    draws: list[ResultTable]
    gallery: Gallery | str
    remake: str  # the command that makes the report again

    @property
    def headline(self) -> str:
        """A title in a few words: how many methods on which data."""
        entries = [entry for run in self.runs if (entry := Entry(run)).figures]
        count = len({entry.method for entry in entries})
        what = "method" if count == 1 else "methods"
        places = list(dict.fromkeys(entry.data_title for entry in entries))
        return f"{count} {what} on {listed(places)}" if entries else "Runs without a figure yet"

    @property
    def all_tables(self) -> list[ResultTable]:
        return [*self.tables, *self.calibration, *self.draws]

    @property
    def lead(self) -> str:
        """How much the report rests on."""
        seeds = sorted({run.config.seed for run in self.runs})
        finished = sum((run.folder / "summary.json").is_file() for run in self.runs)
        runs = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}"
        state = "all finished" if finished == len(self.runs) else f"{finished} of them finished"
        return f"{runs}, {state}; seed{'s' * (len(seeds) != 1)} {listed([str(seed) for seed in seeds])}."

    def to_markdown(self) -> str:
        """Words and tables as Markdown."""
        lines = [f"# {self.headline}", "", self.lead, ""]
        for table in self.tables:
            lines += [f"- {table.title}, {sentence}" for sentence in in_words(table)]
        tables = [table.to_markdown() for table in self.all_tables]
        return "\n".join([*lines, "", *tables, "## Again", "", f"    {self.remake}", ""])


def describe(parts: Sequence[Part], gallery: Gallery | str, remake: str) -> Report:
    """Read everything that the tables need; those of draws are made of all runs, wherever they were measured."""
    runs = all_runs(parts)
    accuracy, calibration = (
        [table for part in parts if not part.draws for table in result_tables(part.runs, metrics, part.heading)]
        for metrics in (ACCURACY, CALIBRATION)
    )
    return Report(runs, accuracy, calibration, draws_tables(runs), gallery, remake)


def page(report: Report) -> str:
    """The report as one HTML page; the same runs give the same bytes."""
    numbers = sections.colours(report.tables)
    contents: list[tuple[str, str, Callable[[], str]]] = [
        ("summary", "In short", lambda: sections.summary(report.tables)),
        ("results", "Results", lambda: sections.tables(report.tables)),
        ("curves", "Learning curves", lambda: sections.curves(report.tables, numbers)),
        ("clients", "Each client", lambda: sections.clients(report.tables)),
        ("samples", "Draws at prediction", lambda: sections.draws(report.draws)),
        ("calibration", "Calibration", lambda: sections.calibration(report.calibration, report.gallery)),
        ("gallery", "One client's images", lambda: sections.gallery(report.gallery)),
        ("partition", "Who has what", lambda: sections.partitions(report.tables)),
        ("settings", "Settings", lambda: sections.settings(report.runs)),
        ("again", "Make it again", lambda: sections.commands(report.runs, report.remake)),
    ]
    written = [(key, title, build()) for key, title, build in track(contents, "Writing the page")]
    written = [section for section in written if section[2]]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in written[1:])
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{title}</h2>\n{content}</section>\n'
        for key, title, content in written
    )
    style = (resources.files("fedprompt") / "report" / "page.css").read_text("utf-8")
    headline = html.escape(report.headline)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{headline}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{headline}</h1>\n<p class="lead">{html.escape(report.lead)}</p>\n'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav></header>\n<main>\n'
        f"{body}</main>\n<footer><p>Written by fedprompt {metadata.version('fedprompt')}.</p></footer>\n"
        "</body>\n</html>\n"
    )
