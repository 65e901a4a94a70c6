"""Figures say what they show: data and number, what the bars are, and whether they are private."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text

from linprobe.reporting.comparison import Summary, accuracy_against_epsilon
from linprobe.reporting.plots import GREY, INK, PALETTE, accuracy_curves, name_ends, sorted_epsilons

LEVELS = ("only-public", "non-private")
ABOUT = "flowers, 1,234 private rows"


@pytest.fixture(autouse=True)
def _words_in_svg() -> Iterator[None]:
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield


def summary(row: str, shots: int, epsilon: float | None, mean: float) -> Summary:
    return {"method": row, "public": "", "shots": shots, "epsilon": epsilon, "mean": mean, "std": 0.02, "runs": 3}


SUMMARIES = [
    summary(row, shots, epsilon, mean)
    for shots in (1, 2)
    for row, epsilon, mean in [
        ("adamix", 1.0, 0.7),
        ("adamix", 3.0, 0.8),
        ("ngd", 1.0, 0.6),
        ("only-public", None, 0.5),
        ("non-private", None, 0.9),
    ]
]


def test_a_comparison_names_its_data_rows_and_bars(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    accuracy_against_epsilon(path, SUMMARIES, *LEVELS, ABOUT, guessing=0.1)
    text = path.read_text(encoding="utf-8")
    for words in (ABOUT, "3 seeds", "one standard deviation", "adamix", "ngd", "public row"):
        assert words in text
    assert "PRIVATE" not in text


def test_figures_of_private_facts_say_so_and_are_for_their_owner(tmp_path: Path) -> None:
    losses = tmp_path / "losses.svg"
    sorted_epsilons(losses, np.linspace(0.1, 3, 50), 3.0, "adamix on flowers")
    text = losses.read_text(encoding="utf-8")
    assert "PRIVATE" in text
    assert "50 private rows" in text
    assert stat.S_IMODE(losses.stat().st_mode) == 0o600


@pytest.fixture
def panel() -> Iterator[Any]:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(layout="constrained")
    yield axes
    plt.close(figure)


def test_no_two_curves_differ_in_colour_alone(panel: Any) -> None:
    curves = {name: [(1.0, 50.0, 1.0), (3.0, 60.0, 1.0)] for name in "abcde"}
    accuracy_curves(panel, curves, list(curves), {"only-public": 40.0, "non-private": 90.0}, least=10)
    *lines, floor, ceiling = panel.lines
    assert len({line.get_marker() for line in lines}) == len(curves)
    assert floor.get_linestyle() != ceiling.get_linestyle()


def test_accuracy_begins_at_guessing_or_at_the_lowest_point(panel: Any) -> None:
    accuracy_curves(panel, {"a": [(1.0, 50.0, 1.0)]}, ["a"], {}, least=10)
    assert panel.get_ylim()[0] == 10
    accuracy_curves(panel, {"a": [(1.0, 5.0, 1.0)]}, ["a"], {}, least=10)
    assert panel.get_ylim()[0] == 5


def test_names_of_lines_stand_apart_in_the_order_of_their_ends(panel: Any) -> None:
    panel.set_ylim(0, 100)
    heights = {"low": 1.0, "lower": 0.5, "middle": 50.0, "same": 50.0, "top": 100.0}
    name_ends(panel, [(1.0, height, name, INK) for name, height in heights.items()])
    panel.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(words) for words in panel.texts]  # without the line to the end
    assert [words.get_text() for words in panel.texts][:2] == ["lower", "low"]
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))


def test_colours_have_contrast_on_white() -> None:
    for colour in (*PALETTE, INK, GREY):
        shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        luminance = float(np.dot((0.2126, 0.7152, 0.0722), linear))
        assert 1.05 / (luminance + 0.05) >= 4.5, colour
