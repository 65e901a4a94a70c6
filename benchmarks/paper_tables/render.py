"""Write docs/reproduction.md from page.md, the figures of the papers and our measurements, all in this folder.

    python benchmarks/paper_tables/render.py [--check]

With --check nothing is written; the exit status is 1 if the page is out of date.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from linprobe.reporting.comparison import comparison_table, markdown

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction.md"
TEMPLATE = HERE / "page.md"


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder."""
    return dict(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))


def mean(one: dict[str, Any]) -> str:
    """Mean and spread in percent."""
    return f"{100 * one['mean']:.1f}" + ("" if one["std"] is None else f" ± {100 * one['std']:.1f}")


def side_by_side(name: str) -> str:
    """Paper, ours and difference, one row per method and epsilon; dashes where the paper has no figure."""
    paper, ours = read("paper")[name], read(name)["rows"]
    printed = {(row["method"], row["epsilon"]): row["value"] for row in paper["rows"]}
    attacked = any("attack_auc" in one for one in ours)
    rows = []
    for one in sorted(ours, key=lambda one: one["epsilon"] or 0):
        theirs = printed.get((one["method"], one["epsilon"]))
        shown = ("-", "-") if theirs is None else (f"{theirs:g}", f"{100 * one['mean'] - theirs:+.1f}")
        epsilon = "-" if one["epsilon"] is None else f"{one['epsilon']:g}"
        attack = (f"{one['attack_auc']:.3f}",) if attacked else ()
        rows.append((one["method"], epsilon, shown[0], mean(one), shown[1], *attack))
    header = ("method", "epsilon", "paper", "ours", "difference", *(("attack AUC",) if attacked else ()))
    return f"Paper: {paper['source']}. Ours: {ours[0]['runs']} seeds.\n\n" + markdown(header, rows)


def plain(name: str) -> str:
    """The table of the comparison."""
    rows = read(name)["rows"]
    return f"{max(one['runs'] for one in rows)} seeds.\n\n" + markdown(*comparison_table(rows, "**{}**"))


def boosts(name: str) -> str:
    """Boost by shots and epsilon."""
    rows = [one for one in read(name)["rows"] if one["boost"] is not None]
    shots = sorted({one["shots"] for one in rows})
    kinds = list(dict.fromkeys((one["method"], one["epsilon"]) for one in rows))
    found = {(one["method"], one["epsilon"], one["shots"]): f"{one['boost']:.2f}" for one in rows}
    cells = [(method, f"{epsilon:g}", *(found[method, epsilon, k] for k in shots)) for method, epsilon in kinds]
    return markdown(("method", "epsilon", *(f"{k} shot{'s' * (k > 1)}" for k in shots)), cells)


def curves(name: str) -> str:
    """Mean, largest and quantiles of per-record epsilons."""
    rows = read(name)["rows"]
    levels = [key for key in rows[0] if key not in ("method", "epsilon", "mean", "max")]
    return figures(
        ("method", "mean", *(f"quantile {level}" for level in levels), "largest"),
        [(one["method"], one["mean"], *(one[level] for level in levels), one["max"]) for one in rows],
    )


def accounting(name: str) -> str:
    """Printed and recomputed epsilon."""
    keys = ("dataset", "q", "sigma", "steps", "delta", "epsilon", "rdp", "pld")
    rows = [[*(row[key] for key in keys), f"{row['rdp'] - row['epsilon']:+.2g}"] for row in read(name)["rows"]]
    header = (
        "data",
        "sampling rate",
        "noise multiplier",
        "steps",
        "delta",
        "paper",
        "Renyi",
        "PLD",
        "Renyi less paper",
    )
    return f"Paper: {read('paper')[name]['source']}.\n\n" + figures(header, rows)


def measured(data: str, methods: tuple[str, ...], epsilons: tuple[float, ...]) -> dict[tuple[str, float], list[float]]:
    """Accuracies of runs on the defaults without public rows, from `benchmarks/accuracy/results.json`."""
    path = HERE.parent / "accuracy" / "results.json"
    found = json.loads(path.read_text(encoding="utf-8"))["results"]
    kept = [row for row in found if (row["data"], row["shots"]) == (data, 0)]
    wanted = [row for row in kept if row["row"] in methods and row["epsilon"] in epsilons]
    return {(row["row"], row["epsilon"]): row["accuracies"] for row in wanted}


def percent(accuracies: list[float]) -> str:
    """Mean and spread in percent."""
    return f"{100 * statistics.mean(accuracies):.1f} ± {100 * statistics.stdev(accuracies):.1f}"


def scattering(name: str) -> str:
    """The paper's figure beside the defaults of methods that need no public rows."""
    paper = read("paper")[name]
    found = measured("fashion-scattering", ("noisy-gd", "dp-sgd", "dpsgd-f"), (3.0,))
    rows = [
        (method, f"{paper['value']:g}", percent(runs), f"{100 * statistics.mean(runs) - paper['value']:+.1f}")
        for (method, _), runs in found.items()
    ]
    seeds = len(next(iter(found.values())))
    header = ("method", "paper, dp-sgd", "ours", "difference")
    return f"Paper: {paper['source']}, epsilon 3. Ours: {seeds} seeds.\n\n" + markdown(header, rows)


def transfer(_: str) -> str:
    """Methods of dp_transfer beside descent."""
    methods, epsilons = ("noisy-gd", "dp-fc", "dp-ls"), (0.5, 1.0, 3.0, 8.0)
    found = measured("fashion-pixels", methods, epsilons)
    rows = [(method, *(percent(found[method, epsilon]) for epsilon in epsilons)) for method in methods]
    return markdown(("method", *(f"eps {epsilon:g}" for epsilon in epsilons)), rows)


def figures(header: tuple[str, ...], rows: Iterable[Sequence[Any]]) -> str:
    """A table of numbers with four digits."""
    shown = [tuple(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows]
    return markdown(header, shown)


BODIES = {
    "dpsgdf-table1": side_by_side,
    "scattering": scattering,
    "dp-transfer": transfer,
    "adamix-table1": side_by_side,
    "adamix-figure1": plain,
    "adamix-figure2": boosts,
    "adamix-figure3": curves,
    "dope-table3": side_by_side,
    "dope-figure4": plain,
    "domain-shift": plain,
    "accounting": accounting,
}


def page() -> str:
    """The template with each `{TABLE}` replaced."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, body in BODIES.items():
        text = text.replace(f"{{{name}}}", body(name).rstrip("\n"))
    return text


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
