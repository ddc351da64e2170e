"""The report's files: the page, and beside it the tables as Markdown, CSV and pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import disk_error, write_atomically
from fedprompt.report.page import Report, page
from fedprompt.report.plots import png
from fedprompt.report.table_picture import table_picture


def check_name(path: Path) -> None:
    """The page's name decides the others, so it must be one of a page."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"The report is a page, so -o must end in .html, and {str(path)!r} does not.")


def write_report(report: Report, path: Path, *, force: bool = False) -> list[Path]:
    """Write the page and what goes beside it, and say where; files that exist get a neighbour with a number."""
    check_name(path)
    contents = _contents(report, path.suffix)
    stem = path.stem if force else _free_stem(path, contents)
    written = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for ending, content in contents.items():
            written.append(path.with_name(stem + ending))
            write_atomically(written[-1], content)
    except OSError as error:
        raise disk_error(error, path.parent) from None
    return written


def _contents(report: Report, suffix: str) -> dict[str, bytes]:
    """The bytes of each file, under what follows the stem in its name."""
    found = {suffix: page(report).encode(), ".md": report.to_markdown().encode()}
    for table in report.all_tables:
        if not table.rows:
            continue
        name, number = f"-{table.name}", 1
        while f"{name}.csv" in found:  # two folders of images may have nearly the same name
            number += 1
            name = f"-{table.name}-{number}"
        found |= {f"{name}.csv": table.to_csv().encode(), f"{name}.png": png(table_picture(table))}
    return found


def _free_stem(path: Path, contents: Mapping[str, bytes]) -> str:
    """The wanted stem, or with a number the first under which no file of the report exists yet."""
    stem, number = path.stem, 1
    while any(path.with_name(stem + ending).exists() for ending in contents):
        number += 1
        stem = f"{re.sub(r'-$', '', path.stem)}-{number}"
    return stem
