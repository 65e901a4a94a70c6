"""Draw the picture of the front page from committed figures: `python docs/draw_accuracy.py`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

from linprobe.reporting.plots import new_figure

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "accuracy" / "results.json"
PICTURE = DOCS / "images" / "accuracy.png"
PANELS = {
    "digits": "Handwritten digits, 1,368 private rows, 10 classes",
    "flowers102": "Flowers-102, 6,348 private rows, 102 classes",
}
BLUE, VERMILION = "#0072B2", "#D55E00"  # of the palette of Okabe and Ito


def main() -> None:
    """Accuracy against epsilon for AdaMix with 2 public rows per class, between its floor and its ceiling."""
    results = [row for row in json.loads(RESULTS.read_text(encoding="utf-8"))["results"] if row["shots"] == 2]
    with new_figure(PICTURE, (9.6, 3.9), 1, 2, sharey=True) as panels:
        for axes, (data, title) in zip(panels, PANELS.items(), strict=True):
            found = {(row["row"], row["epsilon"]): row["accuracies"] for row in results if row["data"] == data}
            epsilons = sorted(epsilon for row, epsilon in found if row == "adamix")
            figures = [found["adamix", epsilon] for epsilon in epsilons]
            means, spreads = [100 * mean(one) for one in figures], [100 * stdev(one) for one in figures]
            axes.errorbar(epsilons, means, spreads, color=BLUE, marker="o", capsize=3, linewidth=2)
            axes.annotate(
                "AdaMix", (epsilons[2], means[2]), (8, -14), textcoords="offset points", color=BLUE, weight="bold"
            )
            for row, words in (("non-private", "without privacy"), ("only-public", "public rows alone, epsilon 0")):
                level = 100 * mean(found[row, None])
                axes.axhline(level, color="#333333" if row == "non-private" else VERMILION, linestyle="--", linewidth=1)
                axes.annotate(
                    words, (epsilons[-1], level), (0, 4), textcoords="offset points", ha="right", size="small"
                )
            axes.set(xscale="log", xlabel="epsilon (less is more private)", title=title, ylim=(40, 102))
            axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("test accuracy, %")
        panels[0].figure.supxlabel(
            f"2 public rows per class. Mean and standard deviation (bars) over {len(figures[0])} seeds; delta 0.00001.",
            fontsize="small",
        )


if __name__ == "__main__":
    main()
