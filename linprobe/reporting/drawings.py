"""The page's drawings: SVG made with `xml.etree`, which escapes text and attributes.

A drawing is 360 units wide, the width of a phone, so that its text is readable there. Its colours are classes of
`page.css`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

WIDTH, LEFT, RIGHT, TOP = 360, 56, 345, 12
LEAST_RATE = 0.001  # where both logarithmic axes begin
MOST_NAMED = 10  # classes of a confusion matrix with names and numbers; more would overlap at this width
LETTER, TURN = 6.8, 50  # units that a letter takes at most, about; degrees of a name under a narrow cell
LONGEST_SHOWN = 12  # characters of a class name on an axis; the tables have the whole name
PALEST, DARKEST = (
    0.05,
    0.25,
)  # opacity of a cell is the first and a share of the second: a number on it keeps its contrast
Point = tuple[float, float]


def attack_limit_drawing(limit: Callable[[float], float], description: str) -> str:
    """The true-positive rates that a guarantee allows, against guessing; both axes logarithmic from 0.1 % to 100 %.

    Args:
        limit: the largest true-positive rate at a false-positive rate.
        description: the drawing in words, for readers who do not see it.
    """
    bottom = 250
    label = "Members an attacker can find, against records named by mistake"
    svg = _drawing(label, description, height=295)

    def place(fpr: float, tpr: float) -> Point:
        across, up = (1 + math.log10(max(value, LEAST_RATE)) / 3 for value in (fpr, tpr))
        return LEFT + across * (RIGHT - LEFT), bottom - up * (bottom - TOP)

    corner, end = place(LEAST_RATE, LEAST_RATE), place(1, 1)
    curve = [*(place(rate, limit(rate)) for rate in np.geomspace(LEAST_RATE, 1, 91).tolist()[:-1]), end]
    _path(svg, [*curve, corner], "area")
    _path(svg, curve, "curve")
    _path(svg, [corner, end], "guess")
    _path(svg, [(LEFT, TOP), (LEFT, bottom), (RIGHT, bottom)], "axis")
    for rate, words in ((0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (1.0, "100 %")):
        _text(svg, place(rate, 1)[0], bottom + 17, words, "end" if rate == 1 else "middle")
        _text(svg, LEFT - 6, place(LEAST_RATE, rate)[1] + 4, words, "end")
    _axis_names(svg, bottom, "named by mistake (false positives)", "members found")
    for height, kind, words in ((212, "curve", "guarantee’s limit"), (230, "guess", "guessing")):
        _path(svg, [(215, height), (240, height)], kind)
        _text(svg, 247, height + 4, words)
    return _markup(svg)


def histogram_drawing(
    label: str, description: str, last_edge: float, counts: Sequence[int], *, one: str, many: str
) -> str:
    """Bars of equal width from 0 to `last_edge`; counts, of `many`, may be negative because of noise."""
    bottom = 200
    svg = _drawing(label, description, height=245)
    lowest, highest = min(0, *counts), max(1, *counts)
    width = (RIGHT - LEFT) / len(counts)

    def height(count: float) -> float:
        return bottom - (count - lowest) / (highest - lowest) * (bottom - TOP)

    for index, count in enumerate(counts):
        bar = {
            "x": LEFT + index * width + 1,
            "y": min(height(count), height(0)),
            "width": width - 2,
            "height": abs(height(count) - height(0)),
        }
        SubElement(svg, "rect", {name: f"{value:.1f}" for name, value in bar.items()}, **{"class": "mark"})
    _path(svg, [(LEFT, TOP), (LEFT, bottom)], "axis")
    _path(svg, [(LEFT, height(0)), (RIGHT, height(0))], "axis")
    for count in sorted({0, highest, lowest}):
        _text(svg, LEFT - 6, height(count) + 4, f"{count:,}", "end")
    for share in (0, 0.5, 1):
        _text(svg, LEFT + share * (RIGHT - LEFT), bottom + 17, f"{share * last_edge:.3g}", "middle")
    _axis_names(svg, bottom, f"own epsilon of {one}", many)
    return _markup(svg)


def confusion_drawing(label: str, description: str, counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """A square of cells, one for each true (row) and predicted class; the darker, the larger its share of the row.

    Up to `MOST_NAMED` classes have their names on the axes, and every cell its number of rows.
    """
    if len(counts) <= MOST_NAMED:
        return _named_confusion(label, description, counts, names)
    side, n = RIGHT - LEFT, len(counts)
    bottom = TOP + side
    svg = _drawing(label, description, height=bottom + 45)
    cell = side / n
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            if not count:
                continue
            box = {"x": LEFT + column * cell, "y": TOP + row * cell, "width": cell, "height": cell}
            look = {"class": "mark", "fill-opacity": f"{max(0.05, count / sum(line)):.2f}"}
            SubElement(svg, "rect", {name: f"{value:.1f}" for name, value in box.items()}, **look)
    _path(svg, [(LEFT, TOP), (RIGHT, TOP), (RIGHT, bottom), (LEFT, bottom), (LEFT, TOP)], "axis")
    for place in sorted({1, (n + 1) // 2, n}):
        middle = (place - 0.5) * cell
        _text(svg, LEFT - 6, TOP + middle + 4, f"{place}", "end")
        _text(svg, LEFT + middle, bottom + 17, f"{place}", "middle")
    _axis_names(svg, bottom, "predicted class, in label order", "true class")
    return _markup(svg)


def _named_confusion(label: str, description: str, counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """`confusion_drawing` of few classes."""
    shown = [name if len(name) <= LONGEST_SHOWN else f"{name[: LONGEST_SHOWN - 1]}…" for name in names]
    longest = LETTER * max(map(len, shown))
    left = 32 + longest
    side, n = RIGHT - left, len(counts)
    bottom, cell = TOP + side, side / n
    upright = longest < cell - LETTER
    foot = 18 if upright else 14 + longest * math.sin(math.radians(TURN))
    svg = _drawing(label, description, height=round(bottom + foot + 22))
    for row, line in enumerate(counts):
        middle = TOP + (row + 0.5) * cell
        _text(svg, left - 6, middle + 4, shown[row], "end")
        for column, count in enumerate(line):
            box = {"x": left + column * cell, "y": TOP + row * cell, "width": cell, "height": cell}
            opacity = DARKEST * count / sum(line) + PALEST if count else 0
            look = {"class": "cell", "fill-opacity": f"{opacity:.2f}"}
            SubElement(svg, "rect", {name: f"{value:.1f}" for name, value in box.items()}, **look)
            words, room = f"{count:,}", cell - LETTER / 2
            squeezed = (
                {"textLength": f"{room:.1f}", "lengthAdjust": "spacingAndGlyphs"} if LETTER * len(words) > room else {}
            )
            _text(svg, left + (column + 0.5) * cell, middle + 4, words, "middle", **squeezed)
    for column, name in enumerate(shown):
        x, y = left + (column + 0.5) * cell, bottom + 17
        if upright:
            _text(svg, x, y, name, "middle")
        else:
            _text(svg, x + 4, y - 5, name, "end", transform=f"rotate({-TURN} {x + 4:.1f} {y - 5:.1f})")
    _text(svg, (left + RIGHT) / 2, bottom + foot + 16, "predicted class", "middle")
    middle = (TOP + bottom) / 2
    _text(svg, 12, middle, "true class", "middle", transform=f"rotate(-90 12 {middle:.1f})")
    return _markup(svg)


def _markup(svg: Element) -> str:
    """The drawing as markup; quotation marks in text are escaped too, as on the rest of the page."""
    text = tostring(svg, encoding="unicode", short_empty_elements=False)
    return re.sub(r">[^<]*<", lambda found: found[0].replace('"', "&quot;"), text)


def _drawing(label: str, description: str, height: int) -> Element:
    box = {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria-label": f"{label}. {description}"}
    svg = Element("svg", box)
    SubElement(svg, "title").text = label
    SubElement(svg, "desc").text = description
    return svg


def _text(svg: Element, x: float, y: float, words: str, anchor: str = "start", **more: str) -> None:
    SubElement(svg, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}, **more).text = words


def _path(svg: Element, points: Iterable[Point], kind: str) -> None:
    SubElement(svg, "path", {"d": "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), "class": kind})


def _axis_names(svg: Element, bottom: float, across: str, up: str) -> None:
    _text(svg, (LEFT + RIGHT) / 2, bottom + 36, across, "middle")
    middle = (TOP + bottom) / 2
    _text(svg, 12, middle, up, "middle", transform=f"rotate(-90 12 {middle})")
