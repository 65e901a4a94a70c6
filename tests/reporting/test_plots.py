"""Figures say what they show: data and number, what the bars are, and whether they are private."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from linprobe.reporting.comparison import Setting, Summary, accuracy_against_epsilon
from linprobe.reporting.plots import sorted_epsilons

LEVELS = ("only-public", "non-private")
ABOUT = "flowers, 1,234 private rows"


@pytest.fixture(autouse=True)
def _words_in_svg() -> Iterator[None]:
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield


def summary(row: str, shots: int, epsilon: float | None, mean: float) -> Summary:
    return Summary(row, Setting("", shots), epsilon, mean, 0.02, 3, mean, 0.02, auc=0.52, auc_std=0.01)


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
    accuracy_against_epsilon(path, SUMMARIES, *LEVELS, ABOUT)
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


def test_no_two_rows_differ_in_colour_alone(tmp_path: Path) -> None:
    from linprobe.reporting.comparison import MARKERS, _style

    styles = _style([str(row) for row in range(len(MARKERS))])
    assert len({style["marker"] for style in styles.values()}) == len(MARKERS)
