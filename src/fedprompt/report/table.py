"""A small table for notebooks and terminals: rows of plain values."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Table(Sequence[dict[str, Any]]):
    """Rows with the same columns; prints itself as text, shows itself as HTML in notebooks.

    >>> Table([{"round": 1, "average": 0.5}, {"round": 2, "average": 0.75}])
    round  average
        1      0.5
        2     0.75
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        self.rows = [{name: row.get(name) for name in self.columns} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        """A row by number, rows by slice, or a column by name."""
        if isinstance(index, str):
            return [row[index] for row in self.rows]
        return self.rows[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        lines = [self.columns, *([_text(row[name]) for name in self.columns] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in self.columns) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_csv(self) -> str:
        """The table as CSV text."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
