"""One style of plots with matplotlib, which is imported when the first one is drawn.

Plots are as wide as a column of text, with text of at least 8 points. Lines are named at their ends, and marker or
dashes tell them apart as well as colour does. Colours have a contrast of 4.5:1 or more on white.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.calibrate import GOOD_ENOUGH, PlanRow
from linprobe.accounting.figures import rounded_down, rounded_up
from linprobe.atomic_files import replace_when_complete
from linprobe.errors import UsageError

FORMATS = (".png", ".svg")
COLUMN = 7.2  # inches: the width of a column of text
SMALL = 8  # points, the least
# the hues of Okabe and Ito, which people with any colour vision tell apart, darkened
BLUE, VERMILION, GREEN, PURPLE, OCHRE = "#0072B2", "#B84A00", "#007A5A", "#9C4A7C", "#8A6100"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, OCHRE)
MARKERS = "osD^v"
DASHES = ("--", ":")  # of levels: a floor, and a ceiling or the only one
INK, GREY, PALE, ALARM = "#1C2733", "#595959", "#B5BCC4", "#A00000"
NOTE = {"fontsize": SMALL, "color": GREY}
STYLE: dict[Any, Any] = {
    "font.size": SMALL + 1,
    "figure.titlesize": SMALL + 2,
    "axes.titlesize": SMALL + 1,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}
End = tuple[float, float, str, str]  # of a line: x, y, name, colour
Curve = Sequence[tuple[float, float, float]]  # epsilon, mean and standard deviation in percent


def check_format(path: Path) -> str:
    """The format that the suffix of `path` names; UsageError unless .png or .svg."""
    if path.suffix not in FORMATS:
        raise UsageError(f"plot file {path} ends in {path.suffix!r}; allowed: {', '.join(FORMATS)}")
    return path.suffix[1:]


@contextmanager
def new_figure(
    path: Path,
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    *,
    title: str = "",
    note: str = "",
    private: bool = False,
    **grid: Any,
) -> Iterator[list[Any]]:
    """Axes of a new figure, row by row. `size` is (width, height) in inches. Saved to `path` if the block succeeds.

    `note` stands below the axes. A `private` figure says so in the picture, and its file has mode 0600.
    """
    form = check_format(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context(STYLE):
        drawn, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **grid)
        if title or private:
            drawn.suptitle(f"\n{title}" if private else title)
        if note:
            drawn.supxlabel(note, **NOTE)
        if private:
            words = {"ha": "center", "va": "center", "color": "white", "weight": "bold", "fontsize": SMALL}
            box = {"facecolor": ALARM, "edgecolor": ALARM, "boxstyle": "square,pad=0.2"}
            place = 1 - 0.13 / size[1]  # in the first line of the title, which is empty
            drawn.text(0.5, place, "PRIVATE: computed from private records; do not publish", bbox=box, **words)
        try:
            yield list(axes.flat)
            with replace_when_complete(path, private=private) as stream:
                drawn.savefig(stream, format=form, dpi=150)
        finally:
            plt.close(drawn)


def ticks_at(axis: Any, values: Sequence[float], named: Sequence[float] | None = None) -> None:
    """Ticks at `values`, without names but for those in `named`; None for all."""
    axis.set_ticks(values, [f"{value:,g}" if named is None or value in named else "" for value in values])
    axis.set_ticks([], minor=True)


def _apart(values: Sequence[float], parts: int) -> list[float]:
    """Those of sorted `values` that are more than a part of a logarithmic axis after the last one chosen."""
    least, chosen = np.log(values[-1] / values[0]) / parts, list(values[:1])
    for value in values[1:]:
        if np.log(value / chosen[-1]) > least:
            chosen.append(value)
    return chosen


def name_ends(axes: Any, ends: Sequence[End]) -> None:
    """Write names right of the axes, whose limits are set, each beside its line's end, moved only to stay apart."""
    from scipy.optimize import isotonic_regression

    if not ends:
        return
    axes.figure.draw_without_rendering()  # so that the height of the axes is known
    apart = 1.3 * SMALL * axes.figure.dpi / 72 / axes.get_window_extent().height
    ends = sorted(ends, key=lambda end: end[1])
    heights = [axes.transAxes.inverted().transform(axes.transData.transform(end[:2]))[1] for end in ends]
    steps = apart * np.arange(len(ends))
    places = np.maximum(isotonic_regression(heights - steps).x, 0) + steps
    for (x, y, name, colour), height, place in zip(ends, heights, places, strict=True):
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.7, "relpos": (0, 0.5), "shrinkB": 2}
        axes.annotate(
            name,
            (x, y),
            (1.04, place),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontsize=SMALL,
            arrowprops=line if abs(place - height) > apart / 4 else None,
            annotation_clip=False,
        )


def name_level(axes: Any, y: float, name: str, *, above: bool, right: bool = False) -> None:
    axes.axhline(y, color=INK, linestyle="--", linewidth=1)
    axes.annotate(
        name,
        (0.98 if right else 0.02, y),
        (0, 2 if above else -2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom" if above else "top",
        fontsize=SMALL,
    )


def accuracy_curves(
    axes: Any, curves: Mapping[str, Curve], shown: Sequence[str], levels: Mapping[str, float], *, least: float
) -> list[End]:
    """Accuracy against epsilon: the `shown` curves with shaded spread before all others in grey, and levels as lines.

    The axis of accuracy begins at `least`, or at the lowest point below it. Returns: ends of lines, for `name_ends`.
    """
    epsilons = sorted({point[0] for curve in curves.values() for point in curve})
    for name in (name for name in curves if name not in shown):  # in the order of the data: the same bytes every time
        points = sorted(curves[name])
        axes.plot([point[0] for point in points], [point[1] for point in points], color=PALE, linewidth=0.9, zorder=1)
    ends = []
    for place, name in enumerate(shown):
        at, means, spread = (np.array(values) for values in zip(*sorted(curves[name]), strict=True))
        colour = PALETTE[place % len(PALETTE)]
        axes.fill_between(at, means - spread, means + spread, color=colour, alpha=0.25, linewidth=0, zorder=2)
        axes.plot(at, means, color=colour, marker=MARKERS[place % len(MARKERS)], zorder=3)
        ends.append((at[-1], means[-1], name, colour))
    lowest = min((point[1] for curve in curves.values() for point in curve), default=least)
    axes.set(xscale="log", ylim=(min(least, lowest), 102))
    ticks_at(axes.xaxis, epsilons, _apart(epsilons, 12))
    for place, (name, level) in enumerate(levels.items()):
        axes.axhline(level, color=INK, linestyle=DASHES[place - len(levels)], linewidth=1)
        ends.append((axes.get_xlim()[1], level, name, INK))
    return ends


def sorted_epsilons(path: Path, epsilons: NDArray[np.float64], epsilon: float, about: str, units: str = "rows") -> None:
    """The sorted curve of epsilon_i below the worst case (the AdaMix paper's figure 3) of a run; mode 0600."""
    title = f"Privacy loss of each of {epsilons.size:,} private {units}\n{about}"
    with new_figure(path, (COLUMN, 4.4), private=True, title=title) as (axes,):
        axes.plot(np.arange(1, epsilons.size + 1), np.sort(epsilons), color=BLUE)
        axes.set_ylim(0, 1.15 * epsilon)
        axes.set_xlim(1, max(2, epsilons.size))
        name_level(axes, epsilon, f"worst case: epsilon {rounded_up(epsilon)}", above=True)
        middle, half = max(1, epsilons.size // 2), float(np.median(epsilons))
        axes.plot(middle, half, "o", color=BLUE)
        right = half < 0.8 * epsilon
        place = {"xytext": (8, -12), "ha": "left"} if right else {"xytext": (0, -18), "ha": "center"}
        words = f"half lose at most {rounded_up(half, 3)}"
        axes.annotate(words, (middle, half), textcoords="offset points", color=BLUE, **place)
        axes.set(xlabel=f"private {units}, sorted by their loss", ylabel="epsilon of each")


def noise_against_rate(path: Path, rows: Sequence[PlanRow], recommended: PlanRow, title: str) -> None:
    """The noise of an epoch at each sampling rate, sigma / sqrt(q), and sigma (Dörmann et al. 2021, figure 2)."""
    with new_figure(path, (COLUMN, 3.6), title=title) as (axes,):
        rates, noise = zip(*((row.sampling_rate, row.noise_per_epoch) for row in rows), strict=True)
        axes.plot(rates, noise, color=BLUE, marker="o")
        axes.set(
            xscale="log", ylim=(0, 1.25 * max(noise)), xlabel="sampling rate q, and the noise multiplier σ it needs"
        )
        axes.set_ylabel("noise per epoch σ / √q, in clip norms")
        shown = _apart(rates, 14)
        named = [row for row in rows if row.sampling_rate in shown]
        labels = [f"{row.sampling_rate:g}\nσ {rounded_down(row.noise_multiplier, 4)}" for row in named]
        axes.xaxis.set_ticks([row.sampling_rate for row in named], labels)
        axes.xaxis.set_ticks([], minor=True)
        limit = f"{100 * (GOOD_ENOUGH - 1):.0f} % above the least"
        name_level(axes, GOOD_ENOUGH * min(noise), limit, above=False)
        place = (recommended.sampling_rate, recommended.noise_per_epoch)
        axes.plot(*place, color=VERMILION, marker="D", markersize=8)
        axes.annotate(
            f"recommended:\nq {recommended.sampling_rate:g}",
            place,
            (0, -10),
            textcoords="offset points",
            ha="center",
            va="top",
            color=VERMILION,
        )
