"""A table as a picture, for slides and messages."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from fedprompt.report.result_table import MISSING, ResultTable

_INK, _SOFT, _RULE = "#1d2730", "#5b6772", "#cfd4d8"
_LINE, _LETTER = 0.30, 0.085  # inches: the height of a line, the width of a letter


def table_picture(table: ResultTable) -> Figure:
    """Rows and columns as on the page: the best in bold, the paper's figure small below ours."""
    heads = [[column.setting, column.metric.title] for column in table.columns]
    cells = [
        [(cell.text, cell.paper_text, cell.best) if cell else (MISSING, "", False) for cell in row.cells]
        for row in table.rows
    ]
    papers = any(below for line in cells for _, below, _ in line)
    tall = _LINE * (1.75 if papers else 1.1)
    first = _LETTER * max(len(row.label) for row in table.rows) + 0.35
    widths = [
        _LETTER
        * max([*map(len, head), *(len(line[i][0]) for line in cells), *(0.85 * len(line[i][1]) for line in cells)])
        + 0.3
        for i, head in enumerate(heads)
    ]
    width = max(first + sum(widths) + 0.3, _LETTER * len(table.title) * 1.25 + 0.4)
    height = 0.55 + 2 * _LINE + tall * len(table.rows) + 0.2
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")

    def write(x: float, y: float, text: str, **style: Any) -> None:
        plain: dict[str, Any] = {"color": _INK, "fontsize": 10, "parse_math": False}
        axes.text(x, y, text, va="center", **(plain | style))

    def rule(y: float) -> None:
        axes.plot([0.15, width - 0.15], [y, y], color=_RULE, linewidth=0.8)

    write(0.15, 0.3, table.title, fontsize=12, fontweight="bold")
    top = 0.55 + 2 * _LINE
    rights = [first + sum(widths[: i + 1]) for i in range(len(widths))]
    for i, (setting, metric) in enumerate(heads):
        if i == 0 or heads[i - 1][0] != setting:
            last = max(j for j, head in enumerate(heads) if head[0] == setting)
            middle = (rights[i] - widths[i] + rights[last]) / 2 + 0.1
            write(middle, 0.55 + _LINE / 2, setting, ha="center", color=_SOFT)
        write(rights[i], 0.55 + 1.5 * _LINE, metric, ha="right", color=_SOFT)
    rule(top)
    for down, (row, line) in enumerate(zip(table.rows, cells, strict=True)):
        middle = top + (down + 0.5) * tall
        write(0.15, middle, row.label)
        for right, (text, below, best) in zip(rights, line, strict=True):
            lift = 0.09 if below else 0.0
            write(right, middle - lift, text, ha="right", fontweight="bold" if best else "normal")
            if below:
                write(right, middle + 0.11, below, ha="right", fontsize=7.5, color=_SOFT)
        rule(top + (down + 1) * tall)
    return figure
