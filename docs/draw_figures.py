"""Draw the figures of the pages in docs/ from committed results.

    python docs/draw_figures.py            # all of them, into docs/images/
    python docs/draw_figures.py accuracy   # only these

`images/sources.json` has the SHA-256 of each figure and of the results it shows; a test compares both with the files.
`images/plan.png` is not among them: the command on its page draws it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from linprobe.evaluation.comparison_plan import PARAGON, PUBLIC_BASELINE
from linprobe.methods import choose
from linprobe.reporting.comparison import accuracy_against_epsilon, boost
from linprobe.reporting.plots import (
    COLUMN,
    INK,
    MARKERS,
    PALETTE,
    SMALL,
    Curve,
    End,
    accuracy_curves,
    name_ends,
    name_level,
    new_figure,
    ticks_at,
)

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SOURCES = IMAGES / "sources.json"
ACCURACY = ROOT / "benchmarks" / "accuracy" / "results.json"
HELD_OUT = ROOT / "benchmarks" / "accuracy" / "held_out.json"
RARE = ("abalone-19", "page-blocks", "shuttle")
OURS = ((2, "adamix"), (0, "noisy-gd"))  # public rows per class, and the default method
REGRESSION = ROOT / "benchmarks" / "regression" / "results.json"
TABLES = ROOT / "benchmarks" / "paper_tables"
TITLES = {
    "digits": "digits: 8 x 8 pixels, 1,388 rows, 10 classes",
    "rare": "rare: synthetic, 4,500 rows, 2 classes, one of 4 %",
    "flowers102": "flowers102: MobileNetV2, 6,552 rows, 102 classes",
    "classes-100": "classes-100: synthetic, 10,000 rows, 100 classes",
    "offset-10": "offset-10: synthetic, 40,000 rows, 10 classes",
    "fashion-pixels": "fashion-pixels: 60,000 rows, 10 classes",
    "fashion-scattering": "fashion-scattering: 60,000 rows, 10 classes",
}
CLASSES = {"digits": 10, "rare": 2, "flowers102": 102, "classes-100": 100}  # others: 10
ANSWERS = {"rare": "balanced"}  # figures that count; others: accuracies
RIVAL = "prototypes"
FLOWERS = "Flowers-102 through MobileNetV2: 6,552 training rows, 102 classes"
LEAST_FLOWERS = 1 / 102
KINDS = {
    "same": "rows of the same file",
    "photographs": "photographs",
    "grey": "grey photographs",
    "blurred": "blurred photographs",
    "edges": "edges in photographs",
}
PUBLIC_HERE = "Drawn from public images; drawn from private ones, it would be private."
OF_EPSILON = {1: "white", 3: None}  # faces of the markers of points at two epsilons


@cache
def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of results."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return document["results"] if "results" in document else document["rows"]


def evidence(data: str, shots: int) -> tuple[dict[str, Curve], dict[str, float]]:
    """Percent of every method by epsilon, and of the rows that spend nothing."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    levels = {}
    for row in rows_of(ACCURACY):
        if (row["data"], row["shots"]) == (data, shots):
            figures = row[ANSWERS.get(data, "accuracies")]
            if row["epsilon"] is None:
                levels[row["row"]] = 100 * mean(figures)
            else:
                curves.setdefault(row["row"], []).append((row["epsilon"], 100 * mean(figures), 100 * stdev(figures)))
    return curves, {name: levels[name] for name in (PUBLIC_BASELINE, PARAGON) if name in levels}


def _evidence_panel(axes: Any, data: str, shots: int, shown: Sequence[str], *, others: bool = True) -> list[End]:
    """A panel of a data set. Returns: ends of its lines, for `name_ends`."""
    curves, levels = evidence(data, shots)
    if not others:
        curves = {name: curves[name] for name in shown}
    axes.set_title(f"{shots} public rows per class" if shots else "no public rows")
    ends = accuracy_curves(axes, curves, shown, levels, least=100 / CLASSES.get(data, 10))
    axes.set_xlabel("epsilon, logarithmic; less is more private")
    return ends


def evidence_figure(data: str, path: Path) -> None:
    """The default method and `RIVAL` among all others, with public rows and without."""
    cells = [shots for shots in (2, 0) if evidence(data, shots)[0]]
    seeds = len(next(row for row in rows_of(ACCURACY) if row["data"] == data)["accuracies"])
    note = f"Points: mean over {seeds} seeds; shaded: one standard deviation. Grey: every other method, one line each."
    note += "\nThe axis begins at the accuracy of guessing, or at the lowest point."
    size = (COLUMN, 3.5)
    with new_figure(path, size, 1, len(cells), title=TITLES[data], note=note, sharey=True) as panels:
        ends, bottoms = [], []
        for axes, shots in zip(panels, cells, strict=True):
            default = choose(public=shots > 0, text=False).method
            ends.append(_evidence_panel(axes, data, shots, (default, RIVAL)))
            bottoms.append(axes.get_ylim()[0])
        panels[0].set(ylim=(min(bottoms), 102), ylabel=f"{'balanced' if data in ANSWERS else 'test'} accuracy, %")
        for axes, names in zip(panels, ends, strict=True):
            name_ends(axes, names)


def held_out_figure(path: Path) -> None:
    """A panel for each data set that no default was chosen on: the two default methods between their levels."""
    names = list(dict.fromkeys(row["data"] for row in rows_of(HELD_OUT)))
    note = "Circles: adamix with 2 public rows per class; squares: noisy-gd without; mean over 3 seeds; shaded: one "
    note += (
        "standard deviation.\nDashed: only-public; dotted: non-private. Balanced accuracy where a class is rare (*)."
    )
    title, n_rows = "Test accuracy in percent against epsilon, logarithmic", -(-len(names) // 4)
    with new_figure(path, (COLUMN, 1.5 * n_rows + 0.6), n_rows, 4, title=title, note=note) as panels:
        for axes, data in zip(panels, names, strict=False):
            curves: dict[str, Curve] = {}
            levels = {}
            for row in (row for row in rows_of(HELD_OUT) if row["data"] == data):
                figures = [100 * figure for figure in row["balanced" if data in RARE else "accuracies"]]
                if row["epsilon"] is not None and (row["shots"], row["row"]) in OURS:
                    point = (row["epsilon"], mean(figures), stdev(figures))
                    curves.setdefault(row["row"], []).append(point)
                elif row["epsilon"] is None and row["shots"]:
                    levels[row["row"]] = mean(figures)
            accuracy_curves(axes, curves, [row for _, row in OURS if row in curves], levels, least=0)
            axes.set(title=f"{data} *" if data in RARE else data, ylim=(0, 102))
            ticks_at(axes.xaxis, (0.05, 0.25, 1, 8))
        for axes in panels[len(names) :]:
            axes.set_visible(False)


def front_page(path: Path) -> None:
    """AdaMix with 2 public rows per class, between its floor and its ceiling."""
    note = (
        "AdaMix with 2 public rows per class. Points: mean over 5 seeds; shaded: one standard deviation; delta 0.00001."
    )
    with new_figure(path, (COLUMN, 3.4), 1, 2, note=note, sharey=True) as panels:
        ends = []
        for axes, data in zip(panels, ("digits", "flowers102"), strict=True):
            ends.append(_evidence_panel(axes, data, 2, ("adamix",), others=False))
            axes.set(title=TITLES[data], ylim=(0, 102))
        panels[0].set_ylabel("test accuracy, %")
        for axes, names in zip(panels, ends, strict=True):
            name_ends(axes, names)


def adamix_figure_1(path: Path) -> None:
    """Test accuracy against epsilon, a panel for each method."""
    found = rows_of(TABLES / "adamix-figure1.json")
    accuracy_against_epsilon(path, found, PUBLIC_BASELINE, PARAGON, FLOWERS, guessing=LEAST_FLOWERS)


def boosts(name: str) -> dict[tuple[str, float], list[tuple[int, float, float, float | None]]]:
    """Of each method and epsilon: shots, boost at the mean, and at the mean less and plus one standard deviation.

    A boost is left out where it is infinite; its upper end is None where only that is.
    """
    found = rows_of(TABLES / f"{name}.json")
    paragon = next(1 - one["mean"] for one in rows_of(TABLES / "adamix-table1.json") if one["method"] == PARAGON)
    public = {one["shots"]: 1 - one["mean"] for one in found if one["method"] == PUBLIC_BASELINE}
    lines: dict[tuple[str, float], list[tuple[int, float, float, float | None]]] = {}
    for one in found:
        if one["epsilon"] is None or one["shots"] is None:
            continue
        ends = (boost(public[one["shots"]], 1 - one["mean"] - way * (one["std"] or 0.0), paragon) for way in (-1, 0, 1))
        low, middle, high = ends
        if middle is not None and low is not None:
            lines.setdefault((one["method"], one["epsilon"]), []).append((one["shots"], middle, low, high))
    return {key: sorted(line) for key, line in lines.items()}


def adamix_figure_2(path: Path) -> None:
    """Performance boost over public rows alone against public shots, a panel for each method."""
    lines = boosts("adamix-figure2")
    methods, epsilons = (list(dict.fromkeys(key[place] for key in lines)) for place in (0, 1))
    note = "Points: boost at the mean accuracy over 3 seeds; shaded: at the mean plus and less one standard deviation."
    note += "\nBoost: (non-private - only-public) / (non-private - method), in accuracy; logarithmic."
    title = f"How much private rows add to public ones\n{FLOWERS.replace('6,552', '6,549')}"
    with new_figure(path, (COLUMN, 3.9), 1, len(methods), title=title, note=note, sharey=True) as panels:
        for axes, method in zip(panels, methods, strict=True):
            axes.set(xscale="log", yscale="log", ylim=(0.5, 6.5), title=method, xlabel="public rows per class")
            ends = []
            for place, epsilon in enumerate(epsilons):
                shots, middle, low, high = zip(*lines[method, epsilon], strict=True)
                top = [6.5 if one is None else one for one in high]
                axes.fill_between(shots, low, top, color=PALETTE[place], alpha=0.25, linewidth=0)
                axes.plot(shots, middle, color=PALETTE[place], marker=MARKERS[place])
                ends.append((shots[-1], middle[-1], f"epsilon {epsilon:g}", PALETTE[place]))
            ticks_at(axes.xaxis, shots)
            ticks_at(axes.yaxis, (0.5, 1, 2, 5))
            name_level(axes, 1, "no gain", above=False)
            name_ends(axes, ends)
        panels[0].set_ylabel("performance boost")


def _lines(axes: Any, found: Sequence[tuple[str, float, dict[str, Any]]], *, shaded: bool = True) -> list[End]:
    """Lines of accuracy, from (name, x, row), with the spread if `shaded`. Returns: their ends, for `name_ends`."""
    ends = []
    for place, name in enumerate(dict.fromkeys(one[0] for one in found)):
        mine = [one[1:] for one in found if one[0] == name]
        at, means = [x for x, _ in mine], [100 * row["mean"] for _, row in mine]
        spread = [100 * (row["std"] or 0.0) for _, row in mine]
        low, high = ([m + way * s for m, s in zip(means, spread, strict=True)] for way in (-1, 1))
        if shaded:
            axes.fill_between(at, low, [min(one, 100) for one in high], color=PALETTE[place], alpha=0.2, linewidth=0)
        style = {"marker": MARKERS[place], "linestyle": ("-", "--", "-.", ":")[place]}
        axes.plot(at, means, color=PALETTE[place], **style)
        ends.append((at[-1], means[-1], name, PALETTE[place]))
    axes.set_xscale("log")
    ticks_at(axes.xaxis, sorted({one[1] for one in found}))
    return ends


def large_rates(path: Path) -> None:
    """Accuracy against the sampling rate, a line for each epsilon."""
    rows = rows_of(TABLES / "large-rates.json")
    found = [(f"epsilon {row['epsilon']:g}", float(row["method"]), row) for row in rows]
    note = (
        f"dp-sgd, 60 epochs at every rate. Points: mean over {rows[0]['runs']} seeds; shaded: one standard deviation."
    )
    title = f"The sampling rate at equal epsilon\n{TITLES['digits']}"
    with new_figure(path, (COLUMN, 3.4), title=title, note=note) as (axes,):
        ends = _lines(axes, sorted(found, key=lambda one: (-one[2]["epsilon"], one[1])))
        axes.set(ylim=(40, 100), ylabel="test accuracy, %", xlabel="sampling rate q, logarithmic; steps: 60 / q")
        name_ends(axes, ends)


def convergence(path: Path) -> None:
    """Accuracy against epsilon without public rows, from guessing to the accuracy without privacy."""
    rows = rows_of(TABLES / "convergence.json")
    ceiling = next(100 * row["mean"] for row in rows if row["epsilon"] is None)
    found = [(row["method"], float(row["epsilon"]), row) for row in rows if row["epsilon"] is not None]
    note = f"No public rows. Points: mean over {rows[0]['runs']} seeds; shaded: one standard deviation."
    title = f"Accuracy follows epsilon\n{TITLES['digits']}"
    with new_figure(path, (COLUMN, 3.4), title=title, note=note) as (axes,):
        ends = _lines(axes, found)
        axes.set(ylim=(0, 106), ylabel="test accuracy, %", xlabel="epsilon, logarithmic; less is more private")
        name_level(axes, ceiling, PARAGON, above=True)
        name_level(axes, 10, "guessing", right=True, above=False)
        name_ends(axes, ends)


def public_against_private(path: Path) -> None:
    """Accuracy against the rows per class, if they are public and if they are private."""
    rows = rows_of(TABLES / "adamix-figure2-left.json")
    note = f"Points: mean over {rows[0]['runs']} choices of rows; shaded: one standard deviation."
    found = [
        ("public" if row["epsilon"] is None else f"private, epsilon {row['epsilon']:g}", float(row["part"]), row)
        for row in sorted(rows, key=lambda row: -(row["epsilon"] or 100))
    ]
    title = f"What a row is worth if it is public, and if it is private\n{TITLES['digits']}"
    with new_figure(path, (COLUMN, 3.6), title=title, note=note) as (axes,):
        ends = _lines(axes, found)
        axes.set(ylim=(0, 102), ylabel="test accuracy, %", xlabel="training rows per class, logarithmic")
        name_level(axes, 10, "guessing", right=True, above=False)
        name_ends(axes, ends)


def theorem_3(path: Path) -> None:
    """Accuracy on two clouds against their distance from the origin, a line for each method."""
    rows = rows_of(TABLES / "dpsgdf-theorem3.json")
    note = f"Points: mean over {rows[0]['runs']} seeds. Most single runs are right on all rows, or on half of them."
    title = "Two classes far from the origin, 2 apart: 1,000 rows, epsilon 1"
    with new_figure(path, (COLUMN, 3.6), title=title, note=note) as (axes,):
        ends = _lines(axes, [(row["method"], float(row["part"]), row) for row in rows], shaded=False)
        axes.set(ylim=(40, 102), ylabel="test accuracy, %", xlabel="distance mu from the origin, logarithmic")
        name_level(axes, 50, "guessing", above=False)
        name_ends(axes, ends)


def adamix_figure_3(path: Path) -> None:
    """Quantiles of the records' own epsilons, a line for each method."""
    rows = rows_of(TABLES / "adamix-figure3.json")
    levels = [key for key in rows[0] if key.startswith("0.")]
    worst = rows[0]["epsilon"]
    title = f"How much privacy records lose at epsilon {worst:g}\n{FLOWERS}"
    note = "2 public rows per class. Points: quantiles of the records' own epsilons, mean over "
    note += f"{rows[0]['runs']} runs.\n{PUBLIC_HERE}"
    with new_figure(path, (COLUMN, 4.2), title=title, note=note) as (axes,):
        for place, row in enumerate(rows):
            style = {"color": PALETTE[place], "marker": MARKERS[place], "linestyle": ("-", "--", "-.")[place]}
            axes.plot([100 * float(level) for level in levels], [row[level]["mean"] for level in levels], **style)
            offset, side = ((-8, 8), "right") if place == 0 else ((8, -14), "left")  # the first is above the others
            words = {"textcoords": "offset points", "color": PALETTE[place], "ha": side}
            axes.annotate(row["method"], (25, row["0.25"]["mean"]), offset, **words)
        axes.set(xlabel="share of the records with at most this loss, %", ylabel="epsilon of the record")
        axes.set(xlim=(0, 100), ylim=(0, 1.12 * worst))
        name_level(axes, worst, f"worst case: {worst:g}", above=True)
        ticks_at(axes.xaxis, [100 * float(level) for level in levels])


def _dots(axes: Any, place: float, points: Sequence[tuple[float, float, float]], kind: int, *, named: bool) -> None:
    """A line with its points at epsilon 1, open, and 3, full: epsilon, figure, standard deviation."""
    colour = PALETTE[kind]
    axes.plot([point[1] for point in points], [place] * len(points), color=colour, linewidth=1)
    for epsilon, figure, spread in points:
        style = {"color": colour, "marker": MARKERS[kind], "markerfacecolor": OF_EPSILON[int(epsilon)] or colour}
        axes.errorbar(figure, place, xerr=spread, capsize=2.5, elinewidth=1, **style)
        if named:
            _say(axes, f"epsilon {epsilon:g}", (figure, place), colour)


def _say(axes: Any, words: str, point: tuple[float, float], colour: str, aside: tuple[int, int] = (0, 5)) -> None:
    """Words above a point, or right of it."""
    side = {"ha": "left", "va": "center"} if aside[0] else {"ha": "center", "va": "bottom"}
    axes.annotate(words, point, aside, textcoords="offset points", color=colour, fontsize=SMALL, **side)


def adamix_table_1(path: Path) -> None:
    """Accuracy and attack AUC, a line for each method, with a point for each epsilon."""
    found = rows_of(TABLES / "adamix-table1.json")
    methods = sorted(
        dict.fromkeys(one["method"] for one in found), key=lambda row: (row == PARAGON, row != PUBLIC_BASELINE)
    )
    title = f"Accuracy, and what an attack finds\n{FLOWERS}"
    note = "2 public rows per class. Mean over 5 seeds; bars: one standard deviation. "
    note += "AUC: 0.5 is guessing, 1 finds every record."
    note += f"\n{PUBLIC_HERE}"
    with new_figure(path, (COLUMN, 3.8), 1, 2, title=title, note=note, sharey=True) as (left, right):
        for place, method in enumerate(methods):
            mine = [one for one in found if one["method"] == method]
            accuracies = [(one["epsilon"], 100 * one["mean"], 100 * (one["std"] or 0.0)) for one in mine]
            for axes, figures in (
                (left, accuracies),
                (right, [(one["epsilon"], one["attack_auc"], one["attack_auc_std"]) for one in mine]),
            ):
                if mine[0]["epsilon"] is None:
                    ((_, figure, spread),) = figures
                    axes.errorbar(figure, place, xerr=spread, capsize=2.5, elinewidth=1, color=INK, marker="D")
                else:
                    _dots(axes, place, sorted(figures), 0, named=place == 1 and axes is left)
        left.set(xlim=(0, 100), xlabel="test accuracy, %", ylim=(len(methods) - 0.5, -0.5))
        left.set_yticks(range(len(methods)), methods, fontsize=SMALL + 1)
        right.set(xlim=(0.45, 1), xlabel="AUC of the membership attack")
        right.axvline(0.5, color=INK, linestyle="--", linewidth=1)
        _say(right, "guessing", (0.5, 0), INK, (12, 0))


def domain_shift(path: Path) -> None:
    """One panel: for each kind of public rows, the accuracy of two methods at two epsilons between its two levels."""
    found = rows_of(TABLES / "domain-shift.json")
    methods = list(dict.fromkeys(one["method"] for one in found if one["epsilon"] is not None))
    title = "What public rows of another distribution are worth\n"
    title += "Flowers-102 through MobileNetV2: 5,532 private and 204 public rows"
    note = "Mean over 3 seeds; bars: one standard deviation."
    with new_figure(path, (COLUMN, 4.2), title=title, note=note) as (axes,):
        for place, kind in enumerate(KINDS):
            mine = [one for one in found if one["public"] == kind]
            for one in mine:
                if one["epsilon"] is None:
                    dashes = "--" if one["method"] == PUBLIC_BASELINE else ":"
                    axes.plot([100 * one["mean"]] * 2, [place - 0.38, place + 0.38], color=INK, linestyle=dashes)
                    if place == 0:
                        _say(axes, one["method"], (100 * one["mean"], -0.38), INK)
            for number, method in enumerate(methods):
                points = [
                    (one["epsilon"], 100 * one["mean"], 100 * (one["std"] or 0.0))
                    for one in mine
                    if one["method"] == method
                ]
                height = place + 0.4 * (number - (len(methods) - 1) / 2)
                _dots(axes, height, sorted(points), number, named=place == number == 0)
                if place == len(KINDS) - 1:
                    _say(axes, method, (max(points)[1], height), PALETTE[number], (8, 0))
        axes.set(xlim=(0, 100), xlabel="test accuracy, %", ylabel="public rows", ylim=(len(KINDS) - 0.5, -0.8))
        axes.set_yticks(range(len(KINDS)), [*KINDS.values()], fontsize=SMALL + 1)


def regression(path: Path) -> None:
    """Mean squared error against the number of features with two standard errors, and the noise floor of y."""
    document = json.loads(REGRESSION.read_text(encoding="utf-8"))
    trials, lines = document["trials"], {}
    for row in document["results"]:
        lines.setdefault(row["algorithm"], []).append((row["p"], row["mean"], 2 * row["std"] / sqrt(trials)))
    title = f"Regression on synthetic data at epsilon {document['epsilon']:g}\n10,000 private and 1.5 p public records"
    note = f"Points: mean over {trials} trials; bars: two standard errors. Both axes are logarithmic."
    with new_figure(path, (COLUMN, 4.2), title=title, note=note) as (axes,):
        axes.set(xscale="log", yscale="log", ylim=(0.008, 0.3), xlabel="features p")
        axes.set_ylabel("mean squared error of predictions")
        ends = []
        for place, (name, line) in enumerate(lines.items()):
            sizes, means, bars = zip(*sorted(line), strict=True)
            axes.errorbar(sizes, means, yerr=bars, marker=MARKERS[place], color=PALETTE[place], capsize=3)
            ends.append((sizes[-1], means[-1], name, PALETTE[place]))
        ticks_at(axes.xaxis, sizes)
        ticks_at(axes.yaxis, (0.01, 0.02, 0.05, 0.1, 0.2))
        name_level(axes, 0.01, "noise of y: no method can do better", right=True, above=False)
        name_ends(axes, ends)


FIGURES: dict[str, tuple[Callable[[Path], object], Path]] = {
    "accuracy": (front_page, ACCURACY),
    **{f"evidence-{data}": (partial(evidence_figure, data), ACCURACY) for data in TITLES},
    "held-out": (held_out_figure, HELD_OUT),
    "adamix-table1": (adamix_table_1, TABLES / "adamix-table1.json"),
    "adamix-figure1": (adamix_figure_1, TABLES / "adamix-figure1.json"),
    "adamix-figure2": (adamix_figure_2, TABLES / "adamix-figure2.json"),
    "adamix-figure3": (adamix_figure_3, TABLES / "adamix-figure3.json"),
    "adamix-figure2-left": (public_against_private, TABLES / "adamix-figure2-left.json"),
    "convergence": (convergence, TABLES / "convergence.json"),
    "large-rates": (large_rates, TABLES / "large-rates.json"),
    "dpsgdf-theorem3": (theorem_3, TABLES / "dpsgdf-theorem3.json"),
    "domain-shift": (domain_shift, TABLES / "domain-shift.json"),
    "regression": (regression, REGRESSION),
}


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Draw, and note what was drawn from what."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *FIGURES], metavar="NAME", help="only these")
    names = parser.parse_args().names or [*FIGURES]
    noted = json.loads(SOURCES.read_text(encoding="utf-8")) if SOURCES.is_file() else {}
    for name in names:
        draw, source = FIGURES[name]
        picture = IMAGES / f"{name}.png"
        draw(picture)
        noted[name] = {"picture": digest(picture), "results": {source.relative_to(ROOT).as_posix(): digest(source)}}
    kept = {name: noted[name] for name in FIGURES if name in noted}
    SOURCES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
