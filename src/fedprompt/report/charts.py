"""The page's charts, each a function from plain figures to SVG text."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedprompt.report.svg import Axes, drawing, element, stroke_style, text

PALE, DEEP = (233, 241, 248), (18, 74, 120)  # the ends of the heat map's scale: readable on white and on black


@dataclass(frozen=True)
class Line:
    """A line of a chart: the mean over seeds at each place, and the range they span."""

    label: str
    number: int  # decides its colour
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    strong: bool = False


def over_seeds(label: str, number: int, curves: Sequence[Mapping[int, float]], *, strong: bool = False) -> Line | None:
    """The mean and range of several curves, at the places that all of them have.

    >>> over_seeds("a", 0, [{1: 0.0, 2: 1.0}, {2: 3.0}]).mean
    [2.0]
    """
    finite = [{place for place, value in curve.items() if math.isfinite(value)} for curve in curves]
    places = sorted(set.intersection(*finite)) if finite else []
    if not places:
        return None
    values = [[curve[place] for curve in curves] for place in places]
    means = [sum(column) / len(column) for column in values]
    return Line(label, number, places, means, [min(v) for v in values], [max(v) for v in values], strong)


def lines_chart(lines: Sequence[Line], title: str, x_label: str, y_label: str, *, bounded: bool = True) -> str:
    """Lines over rounds or draws, each with the range over seeds as a shade; percentages stay between 0 and 100."""
    low = min(min(line.low) for line in lines)
    high = max(max(line.high) for line in lines)
    pad = 0.06 * (high - low) or (1.0 if bounded else 0.01)
    low, high = low - pad, high + pad
    if bounded:
        low, high = max(low, 0.0), min(high, 100.0)
    axes = Axes((min(line.x[0] for line in lines), max(line.x[-1] for line in lines)), (low, high))
    parts = [axes.frame(title, x_label, y_label)]
    parts += [axes.band(line.x, line.low, line.high, line.number) for line in lines]
    parts += [axes.line(line.x, line.mean, line.number, strong=line.strong) for line in lines]
    ends = ", ".join(f"{line.label} {line.mean[-1]:.2f}" for line in lines)
    return drawing(parts, axes.width, axes.height, f"{title}, {y_label} over {x_label}; at the end: {ends}")


def heat_map(rows: Mapping[str, Mapping[int, float]], label: str) -> str:
    """Accuracy of each client (across) with each method (down), in %; each row's lowest is framed."""
    clients = sorted({client for row in rows.values() for client in row})
    values = [value for row in rows.values() for value in row.values()]
    low, high = min(values), max(values)
    room = min(7.0 * max(map(len, rows)) + 14, 260.0)  # for the rows' names
    side = max(9.0, min(52.0, 720 / len(clients)))
    tall, head = 28.0, 22.0
    parts = [text("client", room - 8, 14, "tick", "end")]
    step = 1 if side >= 18 else 5
    for place, client in enumerate(clients):
        if client % step == 0:
            parts.append(text(str(client), room + (place + 0.5) * side, 14, "tick", "middle"))
    frames = []
    for down, (name, row) in enumerate(rows.items()):
        top = head + down * tall
        parts.append(text(name, room - 8, top + 18, "", "end", most=34))
        for place, client in enumerate(clients):
            if client not in row:
                continue
            share = (row[client] - low) / (high - low) if high > low else 0.5
            left = room + place * side
            hint = element("title", f"client {client}: {row[client]:.1f} %")
            box: dict[str, Any] = {"x": left + 0.5, "y": top + 0.5, "width": side - 1, "height": tall - 1}
            parts.append(element("rect", hint, **box, fill=_shade(share)))
            if side >= 30:
                ink = "#fff" if share > 0.5 else "#10273a"
                parts.append(
                    element(
                        "text",
                        f"{row[client]:.0f}",
                        x=left + side / 2,
                        y=top + 18,
                        text_anchor="middle",
                        style=f"fill:{ink}",
                    )
                )
            if row[client] == min(row.values()):
                frames.append(element("rect", **box, class_="worst"))
    width, height = room + side * len(clients) + 2, head + tall * len(rows) + 2
    return drawing([*parts, *frames], width, height, f"{label}: from {low:.1f} to {high:.1f} %", grows=False)


def reliability(bins: Sequence[tuple[float, float, int]], title: str) -> str:
    """Confidence against accuracy, a disc for each bin as large as it has images; on the diagonal all is well."""
    axes = Axes((0.0, 1.0), (0.0, 1.0), whole_x=False)
    diagonal = f"M{axes.x(0):.1f} {axes.y(0):.1f}L{axes.x(1):.1f} {axes.y(1):.1f}"
    parts = [axes.frame(title, "confidence", "share that is right"), element("path", d=diagonal, class_="diagonal")]
    most = max(count for _, _, count in bins)
    for confidence, accuracy, count in bins:
        hint = element("title", f"{count} images: confidence {confidence:.2f}, right {accuracy:.2f}")
        radius = 3 + 9 * (count / most) ** 0.5
        parts.append(element("circle", hint, cx=axes.x(confidence), cy=axes.y(accuracy), r=radius, class_="disc s0"))
    told = "; ".join(
        f"{count} images at {confidence:.2f}: {accuracy:.2f} right" for confidence, accuracy, count in bins
    )
    return drawing(parts, axes.width, axes.height, f"{title}: {told}")


def probability_bars(found: Sequence[tuple[str, float, Sequence[float], bool]]) -> str:
    """The most probable classes of an image: a bar for the mean, a dot for each draw; the right class is marked."""
    width, tall, figure = 260.0, 22.0, 38.0
    room = min(24 + 6.5 * max(len(name) for name, _, _, _ in found), 92.0)  # for the names
    span = width - room - figure
    parts = []
    for down, (name, mean, draws, right) in enumerate(found):
        top = down * tall
        parts.append(text(("✓ " if right else "") + name, room - 6, top + 15, "", "end", most=14))
        parts.append(element("rect", x=room, y=top + 4, width=span, height=tall - 8, class_="track"))
        parts.append(element("rect", x=room, y=top + 4, width=max(span * mean, 0.5), height=tall - 8, class_="bar"))
        parts.append(text(f"{100 * mean:.0f} %", width, top + 15, "tick", "end"))
        parts += [element("circle", cx=room + span * draw, cy=top + tall / 2, r=2.6, class_="draw") for draw in draws]
    told = ", ".join(f"{name} {100 * mean:.0f} %" for name, mean, _, _ in found)
    return drawing(parts, width, tall * len(found), f"Probabilities: {told}")


def legend(lines: Sequence[Line]) -> str:
    """Names and strokes of the lines, to stand once beside several charts."""
    out = ""
    for line in lines:
        stroke = element("path", d="M0 5H26", **stroke_style(line.number, strong=line.strong))
        key = element("svg", stroke, viewBox="0 0 26 10", class_="key", aria_hidden="true")
        out += f"<li>{key}{html.escape(line.label)}</li>"
    return out


def _shade(share: float) -> str:
    mixed = (round(a + (b - a) * share) for a, b in zip(PALE, DEEP, strict=True))
    return f"rgb({','.join(map(str, mixed))})"
