"""Plots with matplotlib, which is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.calibrate import GOOD_ENOUGH, PlanRow
from linprobe.accounting.figures import rounded_up
from linprobe.atomic_files import replace_when_complete
from linprobe.errors import UsageError

FORMATS = (".png", ".svg")
# Okabe and Ito's colours, which people with any colour vision tell apart; the yellow is too light for lines
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
GREY, ALARM = "#595959", "#A00000"
NOTE = {"fontsize": "small", "color": GREY}


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

    drawn, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **grid)
    if title or private:
        drawn.suptitle(f"\n{title}" if private else title, fontsize="large")
    if note:
        drawn.supxlabel(note, **NOTE)
    if private:
        words = {"ha": "center", "va": "center", "color": "white", "weight": "bold", "fontsize": "small"}
        box = {"facecolor": ALARM, "edgecolor": ALARM, "boxstyle": "square,pad=0.2"}
        place = 1 - 0.13 / size[1]  # in the first line of the title, which is empty
        drawn.text(0.5, place, "PRIVATE: computed from private records; do not publish", bbox=box, **words)
    try:
        yield list(axes.flat)
        with replace_when_complete(path, private=private) as stream:
            drawn.savefig(stream, format=form, dpi=150)
    finally:
        plt.close(drawn)


def sorted_epsilons(path: Path, epsilons: NDArray[np.float64], epsilon: float, about: str, units: str = "rows") -> None:
    """The sorted curve of epsilon_i below the worst case (the AdaMix paper's figure 3) of a run; mode 0600.

    `about` names the run and its data, `units` what the run protects; the title adds their number.
    """
    title = f"Privacy loss of each of {epsilons.size:,} private {units}\n{about}"
    with new_figure(path, (6.4, 4.6), private=True, title=title) as (axes,):
        axes.plot(np.arange(1, epsilons.size + 1), np.sort(epsilons), color=BLUE, linewidth=2)
        axes.axhline(epsilon, color=VERMILION, linestyle="--")
        middle, half = max(1, epsilons.size // 2), float(np.median(epsilons))
        axes.plot(middle, half, "o", color=BLUE)
        label = {"textcoords": "offset points", "color": BLUE}
        right = half < 0.8 * epsilon
        place = {"xytext": (8, -12), "ha": "left"} if right else {"xytext": (0, -18), "ha": "center"}
        axes.annotate(f"half lose at most {rounded_up(half, 3)}", (middle, half), **label, **place)
        words = f"worst case: epsilon {rounded_up(epsilon)}"
        axes.annotate(words, (1, epsilon), (4, 4), textcoords="offset points", color=VERMILION)
        axes.set(xlabel=f"private {units}, sorted by their loss", ylabel="epsilon of each")
        axes.set_ylim(0, 1.15 * epsilon)
        axes.set_xlim(1, max(2, epsilons.size))
        axes.grid(alpha=0.3)


def noise_against_rate(path: Path, rows: Sequence[PlanRow], recommended: PlanRow, title: str) -> None:
    """The noise each sampling rate needs, per step (Dörmann et al. 2021, figure 2) and per epoch. Not private.

    Left: sigma and the square-root law through the largest rate, on logarithmic axes. Right: sigma / sqrt(q).
    """
    rates = np.array([row.sampling_rate for row in rows])
    multipliers = np.array([row.noise_multiplier for row in rows])
    per_epoch = np.array([row.noise_per_epoch for row in rows])
    with new_figure(path, (9.6, 4), 1, 2) as (left, right):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        law = f"{per_epoch[-1]:.3g} √q"
        left.loglog(rates, per_epoch[-1] * np.sqrt(rates), color=GREY, linestyle="--", label=law)
        left.loglog(rates, multipliers, color=BLUE, marker="o", label="needed")
        left.set(ylabel="noise multiplier σ", title="noise per step")
        right.semilogx(rates, per_epoch, color=BLUE, marker="o")
        right.set(ylabel="σ / √q, in clip norms", title="noise per epoch")
        limit = GOOD_ENOUGH * per_epoch.min()
        right.axhline(limit, color=GREY, linestyle="--", label=f"{100 * (GOOD_ENOUGH - 1):.0f} % above the least")
        right.set_ylim(0.9 * per_epoch.min(), 1.1 * max(limit, per_epoch.max()))
        chosen = {"color": VERMILION, "linestyle": "none", "marker": "D", "markersize": 9}
        label = f"recommended: q = {recommended.sampling_rate:g}, σ = {recommended.noise_multiplier:.4g}"
        left.plot(recommended.sampling_rate, recommended.noise_multiplier, **chosen)
        right.plot(recommended.sampling_rate, recommended.noise_per_epoch, label=label, **chosen)
        for axes, place in ((left, "upper left"), (right, "upper right")):
            axes.set_xlabel("sampling rate q")
            axes.grid(alpha=0.3)
            axes.legend(loc=place)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())
        left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        left.figure.suptitle(title)
