"""Draw the figures of docs/reproduction.md from the tables in this folder: `python benchmarks/paper_tables/draw.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from linprobe.evaluation.comparison_plan import PARAGON, PUBLIC_BASELINE
from linprobe.metrics.comparison import Setting, Summary
from linprobe.reporting.comparison import (
    DASHES,
    MARKERS,
    PUBLIC_HERE,
    accuracy_against_attack,
    accuracy_against_epsilon,
    boost_against_shots,
)
from linprobe.reporting.plots import GREY, PALETTE, new_figure

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "images"
LEVELS = (PUBLIC_BASELINE, PARAGON)
FLOWERS = "Flowers-102 through MobileNetV2: 6,552 training rows, 102 classes"
SHIFTED = "Flowers-102 through MobileNetV2: 5,532 private and 204 public rows"
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


FIGURES: dict[str, Callable[[Path], object]] = {
    "adamix-table1": lambda path: accuracy_against_attack(path, summaries("adamix-table1"), FLOWERS, private=False),
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
