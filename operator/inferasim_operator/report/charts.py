"""Charts as inline SVG: colours from the page's style, every point a named, focusable element, no script needed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inferasim_operator.report import scale
from inferasim_operator.report.html import CHART_STYLE, Markup, join, tag

WIDTH: Final = 520
HEIGHT: Final = 380
LEFT, RIGHT, TOP, BOTTOM = 62, 504, 16, 334
"""The plot's edges in user units; the page scales the whole."""
_GLYPH_WIDTH: Final = 7.4
"""Mean width of a letter at the labels' size, to keep labels apart."""
_SHAPES: Final = ("circle", "square", "diamond", "triangle", "bar")


@dataclass(frozen=True)
class Point:
    """One point: what it is in words, and where. `spread` are the ends of its interval, per axis."""

    text: str
    x: float
    y: float
    label: str = ""
    """Written beside the point; such points stand out."""
    x_spread: tuple[float, float] | None = None
    y_spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Limit:
    """A line across the plot at a value of x."""

    text: str
    x: float


def scatter(
    *,
    id_: str,
    title: str,
    x_name: str,
    y_name: str,
    points: Sequence[Point],
    limits: Sequence[Limit] = (),
    envelope: Sequence[tuple[float, float]] = (),
    number: Callable[[float], str],
) -> Markup:
    """Points in a plane, x by logarithm; those with a label stand out with their intervals."""
    marked = [point for point in points if point.label]
    spreads = [end for point in marked for end in point.x_spread or ()]
    x = scale.log([*(p.x for p in points), *(limit.x for limit in limits), *spreads], LEFT, RIGHT)
    y = scale.even([*(p.y for p in points), *(end for p in marked for end in p.y_spread or ())], BOTTOM, TOP)
    # Marked points last, so that nothing hides them; in the order that arrow keys walk: by x.
    ordered = sorted(points, key=lambda p: (bool(p.label), p.x, p.y))
    drawn = join(
        _axes(x, y, x_name, y_name, number),
        [_limit(limit, x, [(x(p.x), y(p.y)) for p in points]) for limit in limits],
        _envelope(envelope, x, y),
        [_spread(point, x, y) for point in marked],
        [_mark(point, x, y, at, marked) for at, point in enumerate(ordered)],
        _labels(marked, x, y),
    )
    described = (
        f"{title}. {x_name} across, {y_name} upwards; {len(points)} points. Arrow keys walk from point to point."
    )
    svg = tag(
        "svg",
        drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="group",
        aria_label=described,
        class_="chart",
        data_readout=f"{id_}-readout",
    )
    hint = "Point at or focus a mark to read it; the tables below hold every figure."
    readout = tag("output", hint, id=f"{id_}-readout", class_="readout", aria_live="polite")
    return tag("figure", tag("figcaption", title), svg, readout)


def standalone(figure: Markup) -> str:
    """The chart of a figure as an SVG file of its own: with its style, without what only a page can do."""
    inner = figure[figure.index("<svg ") : figure.index("</svg>") + len("</svg>")]
    head, body = inner.split(">", 1)
    head = re.sub(r' (data-readout|class)="[^"]*"', "", head).replace(' role="group"', ' role="img"')
    body = re.sub(r' (tabindex="-?\d+"|data-point|role="img")', "", body)
    style = CHART_STYLE.replace(".chart ", "") + "svg { background: var(--ground); }\n"
    size = f'width="{WIDTH * 3 // 2}" height="{HEIGHT * 3 // 2}"'
    return f'{head} xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{body}\n'


def _axes(x: scale.Scale, y: scale.Scale, x_name: str, y_name: str, number: Callable[[float], str]) -> Markup:
    grid = [tag("line", x1=LEFT, x2=RIGHT, y1=y(v), y2=y(v), class_="grid") for v in y.ticks()]
    grid += [tag("line", x1=x(v), x2=x(v), y1=TOP, y2=BOTTOM, class_="grid") for v in x.ticks()]
    names = [_text(number(v), LEFT - 6, y(v) + 4.5, "end") for v in y.ticks()]
    names += [_text(number(v), x(v), BOTTOM + 18, "middle") for v in x.ticks()]
    names.append(_text(x_name, (LEFT + RIGHT) / 2, BOTTOM + 38, "middle", "axis"))
    middle = (TOP + BOTTOM) / 2
    names.append(_text(y_name, 13, middle, "middle", "axis", turn=f"rotate(-90 13 {middle:g})"))
    return tag("g", grid, names, aria_hidden="true")


def _limit(limit: Limit, x: scale.Scale, marks: Sequence[tuple[float, float]]) -> Markup:
    """The line, and its name at the end of it that has fewer marks."""
    at, length = x(limit.x), len(limit.text) * _GLYPH_WIDTH

    def crowd(top: float, bottom: float) -> int:
        return sum(at - 20 <= mx <= at + 4 and top <= my <= bottom for mx, my in marks)

    is_low = crowd(BOTTOM - length, BOTTOM) <= crowd(TOP, TOP + length)
    end, anchor = (BOTTOM - 5, "start") if is_low else (TOP + 5, "end")
    line = tag("line", x1=at, x2=at, y1=TOP, y2=BOTTOM, class_="limit")
    text = _text(limit.text, at - 4, end, anchor, "limit-name", turn=f"rotate(-90 {at - 4:g} {end})")
    return tag("g", line, text)


def _envelope(steps: Sequence[tuple[float, float]], x: scale.Scale, y: scale.Scale) -> Markup | None:
    if len(steps) < 2:
        return None
    path = " ".join(f"{'L' if at else 'M'}{x(px):g} {y(py):g}" for at, (px, py) in enumerate(steps))
    return tag("path", d=path, class_="envelope", aria_hidden="true")


def _spread(point: Point, x: scale.Scale, y: scale.Scale) -> Markup:
    lines = []
    if point.x_spread:
        low, high = point.x_spread
        lines.append(tag("line", x1=x(low), x2=x(high), y1=y(point.y), y2=y(point.y)))
    if point.y_spread:
        low, high = point.y_spread
        lines.append(tag("line", x1=x(point.x), x2=x(point.x), y1=y(low), y2=y(high)))
    return tag("g", lines, class_="spread", aria_hidden="true")


def _mark(point: Point, x: scale.Scale, y: scale.Scale, at: int, marked: Sequence[Point]) -> Markup:
    px, py = x(point.x), y(point.y)
    kind = marked.index(point) % len(_SHAPES) if point.label else 0
    shape = _shape(_SHAPES[kind], px, py, 6.5 if point.label else 3.4)
    return tag(
        "g",
        tag("title", point.text),
        shape,
        class_="point chosen" if point.label else "point",
        role="img",
        aria_label=point.text,
        # One stop for the tab key; the arrow keys move it.
        tabindex=0 if at == 0 else -1,
        data_point=True,
    )


def _shape(kind: str, x: float, y: float, size: float) -> Markup:
    if kind == "circle":
        return tag("circle", cx=x, cy=y, r=size)
    if kind == "square":
        return tag("rect", x=x - size, y=y - size, width=2 * size, height=2 * size)
    if kind == "bar":
        return tag("rect", x=x - size / 3, y=y - 1.6 * size, width=2 * size / 3, height=3.2 * size)
    big = size * 1.35
    corners = [(x, y - big), (x + big, y), (x, y + big), (x - big, y)]
    if kind == "triangle":
        corners = [(x, y - big), (x + big, y + size), (x - big, y + size)]
    return tag("polygon", points=" ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in corners))


Box = tuple[float, float, float, float]


def _labels(marked: Sequence[Point], x: scale.Scale, y: scale.Scale) -> list[Markup]:
    """A name beside each marked point, on the side where it covers least of what is there already."""
    taken: list[Box] = [(x(p.x) - 9, y(p.y) - 9, x(p.x) + 9, y(p.y) + 9) for p in marked]
    found = []
    for point in sorted(marked, key=lambda p: (p.x, p.y)):
        px, py, width = x(point.x), y(point.y), len(point.label) * _GLYPH_WIDTH
        places: list[tuple[float, float, str, Box]] = [
            (px + 12, py - 8, "start", (px + 12, py - 20, px + 12 + width, py - 4)),
            (px - 12, py - 8, "end", (px - 12 - width, py - 20, px - 12, py - 4)),
            (px + 12, py + 18, "start", (px + 12, py + 6, px + 12 + width, py + 22)),
            (px - 12, py + 18, "end", (px - 12 - width, py + 6, px - 12, py + 22)),
            (px, py - 16, "middle", (px - width / 2, py - 28, px + width / 2, py - 12)),
            (px, py + 28, "middle", (px - width / 2, py + 16, px + width / 2, py + 32)),
        ]
        tx, ty, anchor, box = min(places, key=lambda place: _cost(place[3], taken))
        taken.append(box)
        found.append(_text(point.label, tx, ty, anchor, "label"))
    return found


def _cost(box: Box, taken: Iterable[Box]) -> float:
    left, top, right, bottom = box
    outside = max(LEFT - left, 0) + max(right - WIDTH, 0) + max(TOP - top, 0) + max(bottom - BOTTOM, 0)
    covered = sum(
        max(min(right, other[2]) - max(left, other[0]), 0) * max(min(bottom, other[3]) - max(top, other[1]), 0)
        for other in taken
    )
    return covered + 100 * outside


def _text(text: str, x: float, y: float, anchor: str, kind: str = "tick", *, turn: str | None = None) -> Markup:
    return tag("text", text, x=round(x, 1), y=round(y, 1), text_anchor=anchor, class_=kind, transform=turn)


ROW_HEIGHT: Final = 34
ROW_LEFT: Final = 92
MOST_LATENCY_TICKS: Final = 6
"""With their unit, more of them run into one another."""


def ranges(
    *, id_: str, title: str, rows: Sequence[tuple[str, Mapping[str, float]]], number: Callable[[float], str]
) -> Markup:
    """A row per name with its marks (mean, p99, …) on one logarithmic axis. Rows without marks are left out."""
    kept = [(name, marks) for name, marks in rows if marks]
    height = ROW_HEIGHT * len(kept) + 40
    x = scale.log([value for _, marks in kept for value in marks.values()], ROW_LEFT, WIDTH - 16)
    base = height - 30
    ticks = x.ticks()
    if len(ticks) > MOST_LATENCY_TICKS:
        ticks = [value for value in ticks if math.log10(value).is_integer()]
    drawn = [tag("line", x1=x(v), x2=x(v), y1=4, y2=base, class_="grid", aria_hidden="true") for v in ticks]
    drawn += [_text(number(v), x(v), base + 18, "middle") for v in ticks]
    at = 0
    for row, (name, marks) in enumerate(kept):
        middle = row * ROW_HEIGHT + ROW_HEIGHT / 2 + 4
        values = list(marks.values())
        drawn.append(_text(name, ROW_LEFT - 10, middle + 4.5, "end", "axis"))
        drawn.append(tag("line", x1=x(min(values)), x2=x(max(values)), y1=middle, y2=middle, class_="bar"))
        for kind, (word, value) in enumerate(marks.items()):
            text = f"{name}, {word}: {number(value)}"
            shape = _shape(_SHAPES[kind % len(_SHAPES)], x(value), middle, 5.5 if kind == 0 else 4.0)
            drawn.append(
                tag(
                    "g",
                    tag("title", text),
                    shape,
                    class_="point chosen" if kind == 0 else "point strong",
                    role="img",
                    aria_label=text,
                    tabindex=0 if at == 0 else -1,
                    data_point=True,
                )
            )
            at += 1
    svg = tag(
        "svg",
        drawn,
        viewBox=f"0 0 {WIDTH} {height}",
        role="group",
        aria_label=f"{title}. Arrow keys walk from mark to mark.",
        class_="chart",
        data_readout=f"{id_}-readout",
    )
    words = max((list(marks) for _, marks in kept), key=len, default=[])
    marks_told = ", ".join(f"{_SHAPES[at % len(_SHAPES)]} = {word}" for at, word in enumerate(words))
    readout = tag("output", f"Marks: {marks_told}.", id=f"{id_}-readout", class_="readout", aria_live="polite")
    return tag("figure", tag("figcaption", title), svg, readout)


def shares(*, title: str, parts: Sequence[tuple[str, float]], number: Callable[[float], str]) -> Markup:
    """One bar cut into named parts, the largest first, with its legend beside it."""
    kept = sorted(((name, value) for name, value in parts if value > 0), key=lambda part: -part[1])
    total = sum(value for _, value in kept)
    left, drawn = 0.0, []
    for at, (name, value) in enumerate(kept):
        width = value / total * WIDTH
        text = f"{name}: {number(value)}, {value / total:.0%}"
        box = tag("rect", x=round(left, 2), y=0, width=round(width, 2), height=26, class_=f"part part-{at % 8}")
        drawn.append(tag("g", tag("title", text), box))
        left += width
    svg = tag("svg", drawn, viewBox=f"0 0 {WIDTH} 26", class_="chart", role="img", aria_label=title)
    legend = tag(
        "ul",
        [
            tag(
                "li",
                tag(
                    "svg",
                    tag("rect", x=0, y=0, width=12, height=12, class_=f"part part-{at % 8}"),
                    viewBox="0 0 12 12",
                    class_="swatch",
                    aria_hidden="true",
                ),
                f"{name} ",
                tag("b", number(value)),
                f" ({value / total:.0%})",
            )
            for at, (name, value) in enumerate(kept)
        ],
        class_="legend",
    )
    return tag("figure", tag("figcaption", title), svg, legend)
