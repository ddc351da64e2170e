"""The page: one HTML file that needs nothing else, no network, no script."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, resources

from fedprompt.progress import track
from fedprompt.report import page_parts as parts
from fedprompt.report.gallery import Gallery
from fedprompt.report.result_table import CALIBRATION, ResultTable
from fedprompt.report.results import result_tables
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
    gallery: Gallery | str
    remake: str  # the command that makes the report again

    @property
    def headline(self) -> str:
        """A title in a few words: how many methods on which data."""
        methods = {row.method for table in self.tables for row in table.rows}
        places = dict.fromkeys(entry.data_title for table in self.tables for row in table.rows for entry in row.entries)
        what = "method" if len(methods) == 1 else "methods"
        return f"{len(methods)} {what} on {listed(list(places))}" if methods else "Runs without a figure yet"

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
        tables = [table.to_markdown() for table in (*self.tables, *self.calibration)]
        return "\n".join([*lines, "", *tables, "## Again", "", f"    {self.remake}", ""])


def describe(runs: Sequence[Run], gallery: Gallery | str, remake: str) -> Report:
    """Read everything that the tables need."""
    return Report(runs, result_tables(runs), result_tables(runs, CALIBRATION), gallery, remake)


def page(report: Report) -> str:
    """The report as one HTML page; the same runs give the same bytes."""
    numbers = parts.colours(report.tables)
    sections: list[tuple[str, str, Callable[[], str]]] = [
        ("summary", "In short", lambda: parts.summary(report.tables)),
        ("results", "Results", lambda: parts.tables(report.tables)),
        ("curves", "Learning curves", lambda: parts.curves(report.tables, numbers)),
        ("clients", "Each client", lambda: parts.clients(report.tables)),
        ("samples", "Draws at prediction", lambda: parts.samples(report.tables, numbers)),
        ("calibration", "Calibration", lambda: parts.calibration(report.calibration, report.gallery)),
        ("gallery", "One client's images", lambda: parts.gallery(report.gallery)),
        ("partition", "Who has what", lambda: parts.partitions(report.tables)),
        ("settings", "Settings", lambda: parts.settings(report.runs)),
        ("again", "Make it again", lambda: parts.commands(report.runs, report.remake)),
    ]
    written = [(key, title, build()) for key, title, build in track(sections, "Writing the page")]
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
