"""Write docs/reproduction.md from page.md, the figures of the papers and our measurements, all in this folder.

    python benchmarks/paper_tables/render.py [--check]

With --check nothing is written; the exit status is 1 if the page is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from linprobe.evaluation.comparison_plan import PARAGON, PUBLIC_BASELINE
from linprobe.reporting.comparison import boost, comparison_table, markdown

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction.md"
TEMPLATE = HERE / "page.md"


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder."""
    return dict(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))


def mean(one: dict[str, Any]) -> str:
    """Mean and spread in percent."""
    return f"{100 * one['mean']:.1f}" + ("" if one["std"] is None else f" ± {100 * one['std']:.1f}")


def provenance(name: str) -> str:
    """The command of a table, the seconds it took, and on how many cores if not on two."""
    found = read(name)
    cores = f" on {found['cores']} cores" if "cores" in found else ""
    return f"`{found['command']}`, {found['seconds']:,} second{'s' * (found['seconds'] != 1)}{cores}"


def auc(one: dict[str, Any]) -> str:
    """Mean and spread of the AUC of the attack."""
    return f"{one['attack_auc']:.3f} ± {one['attack_auc_std']:.3f}"


def side_by_side(name: str) -> str:
    """Paper, ours and difference, one row per method and epsilon; dashes where the paper has no figure."""
    paper, ours = read("paper")[name], read(name)["rows"]
    printed = {(row["method"], row["epsilon"]): row["value"] for row in paper["rows"]}
    attacked = any("attack_auc" in one for one in ours)
    rows = []
    for one in sorted(ours, key=lambda one: one["epsilon"] or 0):
        theirs = printed.get((one["method"], one["epsilon"]))
        shown = ("-", "-") if theirs is None else (f"{theirs:g}", f"{100 * one['mean'] - theirs:+.1f}")
        attack = (auc(one),) if attacked else ()
        rows.append((one["method"], of_epsilon(one), shown[0], mean(one), shown[1], *attack))
    header = ("method", "epsilon", "paper", "ours", "difference", *(("attack AUC",) if attacked else ()))
    return f"Paper: {paper['source']}. Ours: {ours[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, rows)


def presets(name: str) -> str:
    """Rows of the paper's own settings: paper, ours and difference, and the defaults on the same rows."""
    printed = {(row["method"], row["epsilon"]): row["value"] for row in read("paper")["adamix-table1"]["rows"]}
    defaults = {(row["method"], row["epsilon"]): mean(row) for row in read("adamix-table1")["rows"]}
    rows, ours = [], read(name)["rows"]
    for one in sorted(ours, key=lambda one: one["epsilon"]):
        kind = one["method"].split(",")[0], one["epsilon"]
        theirs = printed[kind]
        difference = f"{100 * one['mean'] - theirs:+.1f}"
        rows.append((one["method"], of_epsilon(one), f"{theirs:g}", mean(one), difference, defaults[kind]))
    header = ("method", "epsilon", "paper", "the paper's settings, here", "difference", "defaults")
    return f"{ours[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, rows)


def of_epsilon(one: dict[str, Any]) -> str:
    """Epsilon of a row, or a dash."""
    return "-" if one["epsilon"] is None else f"{one['epsilon']:g}"


def plain(name: str) -> str:
    """The table of the comparison."""
    rows = read(name)["rows"]
    runs = max(one["runs"] for one in rows)
    return f"{runs} seeds, {provenance(name)}.\n\n" + markdown(*comparison_table(rows))


def by_part(name: str, part: str, attribute: str = "part") -> str:
    """A row for each method and epsilon, and a column for each part."""
    rows = read(name)["rows"]
    parts = list(dict.fromkeys(one[attribute] for one in rows))
    kinds = list(dict.fromkeys((one["method"], of_epsilon(one)) for one in rows))
    found = {(one["method"], of_epsilon(one), one[attribute]): mean(one) for one in rows}
    cells = [(*kind, *(found[*kind, each] for each in parts)) for kind in kinds]
    header = ("method", "epsilon", *(part.format(each) for each in parts))
    return f"{rows[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, cells)


def parts_of_run(name: str, scale: float, after: str = "") -> str:
    """A row for each method, and a column for the first step and for each fifth of the steps."""
    rows = read(name)["rows"]
    parts = list(dict.fromkeys(one["part"] for one in rows))
    digits = 1 if scale > 1 else 3
    found = {
        (one["method"], one["part"]): f"{scale * one['mean']:.{digits}f} ± {scale * one['std']:.{digits}f}"
        for one in rows
    }
    cells = [(kind, *(found[kind, part] for part in parts)) for kind in dict.fromkeys(key[0] for key in found)]
    header = ("method" + after, "first step", *(f"steps to {part} %" for part in parts[1:]))
    return f"{rows[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, cells)


def by_epsilon(name: str, what: str) -> str:
    """A row for each setting, and a column for each epsilon."""
    rows = read(name)["rows"]
    epsilons = list(dict.fromkeys(of_epsilon(one) for one in rows))
    found = {(one["method"], of_epsilon(one)): mean(one) for one in rows}
    kinds = dict.fromkeys(key[0] for key in found)
    cells = [(kind, *(found.get((kind, each), "") for each in epsilons)) for kind in kinds]
    header = (what, *("no budget" if each == "-" else f"eps {each}" for each in epsilons))
    return f"{rows[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, cells)


def attacks(name: str) -> str:
    """Accuracy and AUC of the attack by epsilon, with the rows of table 1 for the same methods and the baselines."""
    ours = read(name)["rows"]
    methods = {PUBLIC_BASELINE, PARAGON, *(one["method"] for one in ours)}
    rows = ours + [one for one in read("adamix-table1")["rows"] if one["method"] in methods]
    cells = [
        (one["method"], of_epsilon(one), mean(one), auc(one))
        for one in sorted(rows, key=lambda one: (one["epsilon"] is None, one["epsilon"] or 0))
    ]
    header = ("method", "epsilon", "accuracy", "attack AUC")
    return f"{ours[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, cells)


def boosts(name: str) -> str:
    """Boost and accuracy by shots and epsilon; non-private training on all rows is from table 1."""
    rows = read(name)["rows"]
    paragon = next(one["mean"] for one in read("adamix-table1")["rows"] if one["method"] == PARAGON)
    public = {one["shots"]: one for one in rows if one["method"] == PUBLIC_BASELINE}
    kinds = dict.fromkeys((one["method"], one["epsilon"]) for one in rows if one["epsilon"])
    found = {(one["method"], one["epsilon"], one["shots"]): one for one in rows}
    cells = [(PUBLIC_BASELINE, "-", *(f"1 ({mean(one)})" for one in public.values()))]
    for kind in kinds:
        values = [boost(1 - public[k]["mean"], 1 - found[*kind, k]["mean"], 1 - paragon) for k in public]
        shown = ("-" if value is None else f"{value:.2f}" for value in values)
        accuracies = (mean(found[*kind, k]) for k in public)
        pairs = zip(shown, accuracies, strict=True)
        cells.append((kind[0], f"{kind[1]:g}", *(f"{value} ({accuracy})" for value, accuracy in pairs)))
    header = ("method", "epsilon", *(f"{k} shot{'s' * (k > 1)}" for k in public))
    return f"{rows[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, cells)


def curves(name: str) -> str:
    """Mean, largest and quantiles of per-record epsilons."""
    rows = read(name)["rows"]
    keys = [key for key in rows[0] if key not in ("method", "epsilon", "runs")]
    cells = [(one["method"], *(f"{one[key]['mean']:.3f} ± {one[key]['std']:.3f}" for key in keys)) for one in rows]
    header = ("method", *({"mean": "mean", "max": "largest"}.get(key, f"quantile {key}") for key in keys))
    return f"{rows[0]['runs']} seeds, {provenance(name)}.\n\n" + markdown(header, cells)


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
    return f"Paper: {read('paper')[name]['source']}. Ours: {provenance(name)}.\n\n" + figures(header, rows)


def concentration(name: str) -> str:
    """Distances of unit rows, ours below the paper's."""
    paper = read("paper")[name]
    header = ("rows", "diameter", "largest distance from the mean", "mean distance from the mean")
    cells = [(f"{row['data']}, paper", row["diameter"], row["largest"], row["mean"]) for row in paper["rows"]]
    cells += [
        (row["data"], *(f"{row[key]:.2f}" for key in ("diameter", "largest", "mean"))) for row in read(name)["rows"]
    ]
    return f"Paper: {paper['source']}. Ours: {provenance(name)}.\n\n" + figures(header, cells)


def scattering(name: str) -> str:
    """The paper's figure beside the defaults of methods that need no public rows."""
    paper, rows = read("paper")[name], read(name)["rows"]
    cells = [
        (one["method"], f"{paper['value']:g}", mean(one), f"{100 * one['mean'] - paper['value']:+.1f}") for one in rows
    ]
    header = ("method", "paper, dp-sgd", "ours", "difference")
    ours = f"{rows[0]['runs']} seeds, {provenance(name)}"
    return f"Paper: {paper['source']}, epsilon 3. Ours: {ours}.\n\n" + markdown(header, cells)


def figures(header: tuple[str, ...], rows: Iterable[Sequence[Any]]) -> str:
    """A table of numbers with four digits."""
    shown = [tuple(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows]
    return markdown(header, shown)


BODIES: dict[str, Callable[[str], str]] = {
    "dpsgdf-table1": side_by_side,
    "dpsgdf-table2": concentration,
    "dpsgdf-theorem3": partial(by_part, part="mu {}"),
    "scattering": scattering,
    "dp-transfer": plain,
    "adamix-table1": side_by_side,
    "adamix-preset": presets,
    "adamix-figure1": plain,
    "adamix-figure2": boosts,
    "adamix-figure3": curves,
    "adamix-figure2-left": partial(by_part, part="{} a class"),
    "adamix-figure4": partial(by_epsilon, what="start"),
    "adamix-figure7": partial(by_epsilon, what="quantile"),
    "adamix-figure8": partial(by_epsilon, what="method and noise multiplier"),
    "adamix-attack": attacks,
    "dope-table1": partial(by_epsilon, what="method"),
    "dope-algorithm1": partial(by_epsilon, what="method"),
    "dope-table4": partial(by_part, part="{} a class"),
    "dope-table5": partial(by_epsilon, what="generated rows"),
    "dope-augmentation": partial(by_part, part="{}"),
    "adamix-figure6": partial(parts_of_run, scale=100, after=" %"),
    "dope-figure2": partial(parts_of_run, scale=1),
    "dope-table3": side_by_side,
    "dope-figure4": plain,
    "domain-shift": plain,
    "large-rates-table2": accounting,
    "large-rates": partial(by_epsilon, what="sampling rate"),
    "accounting": accounting,
    "convergence": partial(by_epsilon, what="method"),
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
