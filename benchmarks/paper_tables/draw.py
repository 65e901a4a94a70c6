"""Draw the figures of docs/reproduction.md from the tables in this folder: `python benchmarks/paper_tables/draw.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from linprobe.accounting.figures import rounded_up
from linprobe.evaluation.comparison_plan import PARAGON, PUBLIC_BASELINE
from linprobe.reporting.comparison import (
    DASHES,
    MARKERS,
    MOST_PANELS_A_ROW,
    Setting,
    Summary,
    _apart,
    _aside,
    _epsilons,
    _panels,
    _settings,
    _spread,
    _style,
    _ticks,
    _title,
    accuracy_against_epsilon,
    boost,
)
from linprobe.reporting.plots import GREY, PALETTE, new_figure

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "images"
LEVELS = (PUBLIC_BASELINE, PARAGON)
FLOWERS = "Flowers-102 through MobileNetV2: 6,552 training rows, 102 classes"
SHIFTED = "Flowers-102 through MobileNetV2: 5,532 private and 204 public rows"
PUBLIC_HERE = "Drawn from public images; drawn from private ones, it would be private."
FREE_MARKERS = "x+1234"  # of rows that spend nothing
BOOSTS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # ticks
ENDLESS = 1e6  # height of an error bar without end, in units of its point
KINDS = {
    "same": "of the same file",
    "photographs": "from photographs",
    "grey": "from grey photographs",
    "blurred": "from blurred photographs",
    "edges": "from edges in photographs",
}


def summaries(name: str) -> list[Summary]:
    """The rows of TABLE.json."""
    rows = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return [
        Summary(
            row=one["method"],
            setting=Setting(KINDS.get(one["public"], one["public"]), one["shots"]),
            epsilon=one["epsilon"],
            mean=one["mean"],
            std=one["std"],
            runs=one["runs"],
            balanced_mean=one.get("balanced_mean", one["mean"]),
            balanced_std=one.get("balanced_std"),
            auc=one.get("attack_auc"),
            auc_std=one.get("attack_auc_std"),
        )
        for one in rows
    ]


def per_record(path: Path) -> None:
    """Quantiles of the records' own epsilons, a line for each method."""
    rows: list[dict[str, Any]] = json.loads((HERE / "adamix-figure3.json").read_text(encoding="utf-8"))["rows"]
    levels = [key for key in rows[0] if key.startswith("0.")]
    worst = rows[0]["epsilon"]
    title = f"How much privacy records lose at epsilon {worst:g}\n{FLOWERS}"
    note = "One run per method, 2 public rows per class. Points: quantiles of the records' own epsilons."
    note = f"{note}\n{PUBLIC_HERE}"
    with new_figure(path, (6.8, 4.8), title=title, note=note) as (axes,):
        for place, row in enumerate(rows):
            style = {"color": PALETTE[place], "marker": MARKERS[place], "linestyle": DASHES[place]}
            axes.plot([100 * float(level) for level in levels], [row[level] for level in levels], **style, linewidth=2)
            words = {"textcoords": "offset points", "color": PALETTE[place], "weight": "bold"}
            offset, side = ((-8, 8), "right") if place == 0 else ((8, -14), "left")  # the first is above the others
            axes.annotate(row["method"], (25, row["0.25"]), offset, ha=side, **words)
        axes.axhline(worst, color=GREY, linestyle="--")
        axes.annotate(f"worst case: {worst:g}", (2, worst), (0, 4), textcoords="offset points", color=GREY)
        axes.set(xlabel="share of the records with at most this loss, %", ylabel="epsilon of the record")
        axes.set(xlim=(0, 100), ylim=(0, 1.12 * worst), xticks=[100 * float(level) for level in levels])
        axes.grid(alpha=0.3)


def _boost_points(
    line: Sequence[Summary], errors: Mapping[tuple[str, Setting], float], public: str, paragon: str, aside: float
) -> Iterator[tuple[float, float, float, float]]:
    """Shots moved `aside`, boost, and the lengths of its error bar, of each row that does not reach the `paragon`."""
    for one in line:
        levels = errors[public, one.setting], errors[paragon, one.setting]
        least, middle, most = (
            boost(levels[0], 1 - one.mean - deviations * (one.std or 0.0), levels[1]) for deviations in (-1, 0, 1)
        )
        if one.setting.shots and middle is not None and least is not None and least > 0:
            over = ENDLESS * middle if most is None else most - middle
            yield aside * one.setting.shots, middle, middle - least, over


def boost_against_shots(path: Path, summaries: Sequence[Summary], public: str, paragon: str, about: str) -> Path:
    """Performance boost over public rows alone against public shots per class (the AdaMix paper's figure 2).

    One panel per epsilon and public file. Boosts of rows that reach the row `paragon` are infinite, and left out. The
    scale is logarithmic, as a boost is a ratio. An error bar that reaches the paragon runs off the top.
    """
    errors = {(one.row, one.setting): 1 - one.mean for one in summaries if one.epsilon is None}
    spending = [
        one
        for one in summaries
        if one.epsilon is not None and {(public, one.setting), (paragon, one.setting)} <= errors.keys()
    ]

    panels_of = list(dict.fromkeys((one.epsilon, one.setting.public) for one in spending))
    styles = _style(list(dict.fromkeys(one.row for one in spending)))
    note = _spread(spending, "boost at the mean accuracy")
    note = note.replace("bars:", "bars: boost at the mean plus and less") + _apart(styles)
    note += (
        f"\nBoost: ({paragon} - {public}) / ({paragon} - method), in accuracy; none where a method reaches {paragon}."
    )
    drawn: list[float] = [1.0]
    title = f"How much private rows add to public ones\n{about}"
    with _panels(path, len(panels_of), title=title, note=note) as panels:
        for axes, (epsilon, name) in zip(panels, panels_of, strict=True):
            for place, (row, style) in enumerate(styles.items()):
                line = [one for one in spending if (one.row, one.epsilon, one.setting.public) == (row, epsilon, name)]
                points = sorted(_boost_points(line, errors, public, paragon, _aside(place, len(styles))))
                shots, middles, below, above = zip(*points, strict=True) if points else ((), (), (), ())
                axes.errorbar(shots, middles, yerr=(below, above), capsize=3, **style)
                drawn += [*middles, *(middle - bar for middle, bar in zip(middles, below, strict=True))]
            axes.axhline(1, color=GREY, linestyle=":", label="public rows alone")
            axes.set(xscale="log", yscale="log")
            _ticks(axes.xaxis, sorted({one.setting.shots for one in spending if one.setting.shots is not None}))
            words = f"epsilon {rounded_up(epsilon)}" + (f", public rows: {name}" if name else "")
            axes.set(xlabel="public rows per class, on a logarithmic scale", title=words)
            axes.grid(alpha=0.3)
        for left in panels[::MOST_PANELS_A_ROW]:
            left.set_ylabel("performance boost, 1 = no gain")
        least, most = 0.8 * min(drawn), 1.6 * max(drawn)
        _ticks(panels[0].yaxis, [one for one in BOOSTS if least <= one <= most])
        panels[0].set_ylim(least, most)
    return path


def accuracy_against_attack(path: Path, summaries: Sequence[Summary], about: str) -> Path:
    """Test accuracy against the AUC of the threshold membership attack, a point for each row and epsilon.

    The marker shows the row, and its size the epsilon. Rows that spend nothing are black.
    """
    settings = _settings(summaries)
    styles = _style(list(dict.fromkeys(summary.row for summary in summaries if summary.epsilon is not None)))
    free = dict.fromkeys(summary.row for summary in summaries if summary.epsilon is None)
    for place, row in enumerate(free):
        styles[row] = {"color": "black", "marker": FREE_MARKERS[place % len(FREE_MARKERS)], "label": row}
    epsilons = _epsilons(summaries)
    sizes = {epsilon: 5 + 4 * place / max(1, len(epsilons) - 1) for place, epsilon in enumerate(epsilons)}
    scale = ", ".join(rounded_up(epsilon) for epsilon in epsilons)
    bars = _spread(summaries).replace("standard deviation.", "standard deviation" + _bars(summaries))
    note = f"{bars}\nSmall to large markers: epsilon {scale}. {PUBLIC_HERE}"
    title = f"Accuracy against what an attack finds\n{about}"
    with _panels(path, len(settings), title=title, note=note) as panels:
        for axes, setting in zip(panels, settings, strict=True):
            for one in summaries:
                if one.setting != setting or one.auc is None:
                    continue
                style = {**styles[one.row], "linestyle": "none", "capsize": 2, "elinewidth": 1}
                style |= {"fillstyle": "none", "markeredgewidth": 1.6, "capthick": 1}  # no point hides another
                if one.epsilon is not None:
                    style["markersize"] = sizes[one.epsilon]
                y, bar = 100 * one.mean, None if one.std is None else 100 * one.std
                axes.errorbar(one.auc, y, xerr=one.auc_std, yerr=bar, **style)
            axes.axvline(0.5, color=GREY, linestyle="--", label="guessing")
            axes.set(xlabel="AUC of the membership attack (0.5 is guessing)", title=_title(setting))
            axes.grid(alpha=0.3)
        for left in panels[::MOST_PANELS_A_ROW]:
            left.set_ylabel("test accuracy, %")
    return path


def _bars(summaries: Sequence[Summary]) -> str:
    """Which axes have error bars."""
    kept = any(one.auc_std is not None for one in summaries)
    return "." if kept else " of the accuracy; the deviation of the AUC was not kept."


FIGURES: dict[str, Callable[[Path], object]] = {
    "adamix-table1": lambda path: accuracy_against_attack(path, summaries("adamix-table1"), FLOWERS),
    "adamix-figure1": lambda path: accuracy_against_epsilon(path, summaries("adamix-figure1"), *LEVELS, FLOWERS),
    "adamix-figure2": lambda path: boost_against_shots(path, summaries("adamix-figure2"), *LEVELS, FLOWERS),
    "adamix-figure3": per_record,
    "domain-shift": lambda path: accuracy_against_epsilon(path, summaries("domain-shift"), *LEVELS, SHIFTED),
}


def main() -> None:
    """Draw all of them."""
    for name, draw in FIGURES.items():
        draw(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
