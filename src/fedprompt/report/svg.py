"""Small drawings for the page: SVG text whose colours come from the page's style, so that they follow dark mode."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

SERIES = 8  # colours that the style knows; more lines begin again with other dashes
DASHES = ("", "7 4", "2 4", "10 4 2 4")


def element(name: str, content: str = "", **attributes: object) -> str:
    """One element; attributes ending in an underscore lose it, other underscores become hyphens.

    >>> element("text", "a", x=1.50001, class_="tick", text_anchor="end")
    '<text x="1.5" class="tick" text-anchor="end">a</text>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_number(value))}"'
        for key, value in attributes.items()
        if value not in (None, "")
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def drawing(parts: Iterable[str], width: float, height: float, label: str, *, grows: bool = True) -> str:
    """A picture that shrinks with the page, and grows if it may; ``label`` is read out in its place."""
    size = f"0 0 {_number(width)} {_number(height)}"
    title = element("title", html.escape(label))
    most = "" if grows else f"max-width:{_number(width)}px"
    return element("svg", title + "".join(parts), viewBox=size, role="img", aria_label=label, style=most)


def text(content: str, x: float, y: float, class_: str = "", anchor: str = "", most: int = 0) -> str:
    """A line of text; one longer than ``most`` is cut, and shown in full when pointed at."""
    shown = content if not most or len(content) <= most else content[: most - 1] + "…"
    hint = element("title", html.escape(content)) if shown != content else ""
    return element("text", html.escape(shown) + hint, x=x, y=y, class_=class_, text_anchor=anchor)


def stroke_style(number: int, *, strong: bool = False) -> dict[str, str]:
    """Class and dashes of a line, by its number: colour alone should not tell lines apart."""
    if strong:
        return {"class_": f"line s{number % SERIES} strong"}
    return {"class_": f"line s{number % SERIES}", "stroke_dasharray": DASHES[number // 2 % len(DASHES)]}


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Round numbers between two values, about ``most`` of them at the most.

    >>> ticks(0, 100), ticks(1, 6, whole=True)
    ([0, 20, 40, 60, 80, 100], [1, 2, 3, 4, 5, 6])
    """
    rough = (high - low) / max(most - 1, 1) or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.75)
    step = max(1.0, float(round(step))) if whole else step
    first = math.ceil(low / step - 1e-9)
    values = (number * step for number in range(first, math.floor(high / step + 1e-9) + 1))
    return [round(value) if value == round(value) else round(value, 10) for value in values]


class Axes:
    """The frame of a plot: from data to places on the drawing, with grid, ticks and labels."""

    width, height = 440.0, 270.0
    left, right, top, bottom = 54.0, 12.0, 26.0, 38.0

    def __init__(self, x: tuple[float, float], y: tuple[float, float], *, whole_x: bool = True) -> None:
        self.x_range = x if x[0] < x[1] else (x[0] - 0.5, x[0] + 0.5)
        self.y_range = y if y[0] < y[1] else (y[0] - 0.5, y[0] + 0.5)
        self.whole_x = whole_x

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def frame(self, title: str, x_label: str, y_label: str) -> str:
        """Grid, ticks and labels."""
        parts = [text(title, self.left, 15, "title")]
        for value in ticks(*self.y_range):
            place = self.y(value)
            parts.append(
                element("path", d=f"M{self.left:g} {_number(place)}H{self.width - self.right:g}", class_="grid")
            )
            parts.append(text(f"{value:g}", self.left - 6, place + 4, "tick", "end"))
        for value in ticks(*self.x_range, 8, whole=self.whole_x):
            parts.append(text(f"{value:g}", self.x(value), self.height - self.bottom + 16, "tick", "middle"))
        middle = (self.left + self.width - self.right) / 2
        parts.append(text(x_label, middle, self.height - 4, "tick", "middle"))
        parts.append(
            element(
                "text",
                html.escape(y_label),
                class_="tick",
                transform="translate(11 130) rotate(-90)",
                text_anchor="middle",
            )
        )
        return "".join(parts)

    def line(self, xs: Sequence[float], ys: Sequence[float], number: int, *, strong: bool = False) -> str:
        """A line through points; the points are marked where there are few."""
        places = [(self.x(x), self.y(y)) for x, y in zip(xs, ys, strict=True)]
        drawn = element(
            "path",
            d="M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in places),
            **stroke_style(number, strong=strong),
        )
        if len(places) > 15:
            return drawn
        dots = (element("circle", cx=x, cy=y, r=2.6, class_=f"dot s{number % SERIES}") for x, y in places)
        return drawn + "".join(dots)

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], number: int) -> str:
        """The area between two lines."""
        there = [f"{_number(self.x(x))} {_number(self.y(y))}" for x, y in zip(xs, high, strict=True)]
        back = [f"{_number(self.x(x))} {_number(self.y(y))}" for x, y in zip(xs, low, strict=True)]
        return element("path", d="M" + "L".join(there + back[::-1]) + "Z", class_=f"band s{number % SERIES}")


def _number(value: object) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
