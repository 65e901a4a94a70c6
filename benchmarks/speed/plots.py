"""The figure of step times against N, D and C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linprobe.reporting.plots import BLUE, GREEN, ORANGE, PURPLE, VERMILION, new_figure

STYLES = {
    "noisy_gd_float32": ("linprobe noisy-gd", BLUE, "o", "-"),
    "plain_matmul_float32": ("plain NumPy, no noise", GREEN, "s", "-"),
    "opacus_ghost": ("Opacus, ghost clipping", VERMILION, "D", "-"),
    "opacus_hooks": ("Opacus, per-example gradients", ORANGE, "^", ""),
    "jax_privacy": ("JAX Privacy", PURPLE, "v", ""),
    "limit_float32": ("the machine's limit", "black", "", "--"),
}
AXES = {"n": "rows N", "d": "features D", "c": "classes C"}


def draw_growth(results: dict[str, Any], path: Path) -> None:
    """Three log-log panels. Contenders timed at many sizes are lines; those timed only for the tables are points."""
    growth = results["growth"]
    title = "Time of one noisy step on random rows, float32"
    cores = results["machine"]["cores"]
    note = "Each panel varies one size. Lines: timed at every size; points: timed for the tables only.\n"
    note += (
        f"Each is the shortest of several rounds on {cores} cores. The limit: reading the rows once, or multiplying."
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_figure(path, (14, 4.8), 1, 3, title=title, note=note, sharey=True) as panels:
        for axes, (axis, label) in zip(panels, AXES.items(), strict=True):
            ticks = set(growth[axis]["values"])
            for name, (text, colour, marker, line) in STYLES.items():
                timed = _tables(results, axis, name)
                timed |= zip(growth[axis]["values"], growth[axis]["seconds"].get(name, ()), strict=False)
                ticks |= timed.keys()
                if timed:
                    sizes, seconds = zip(*sorted(timed.items()), strict=True)
                    axes.plot(sizes, seconds, color=colour, marker=marker, linestyle=line, markersize=5, label=text)
            others = [f"{key.upper()} = {growth['usual'][key]:,}" for key in AXES if key != axis]
            axes.set(xscale="log", yscale="log", xlabel=label, title=", ".join(others))
            axes.set_xticks(list(ticks), [f"{value:,}" for value in ticks], rotation=35, ha="right")
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("seconds per step")
        panels[0].set_xlabel(f"rows N; noisy-gd grows as $N^{{{growth['n']['exponent']:.2f}}}$")
        named = {text: line for axes in panels for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        panels[0].figure.legend(named.values(), named.keys(), loc="outside center right")


def _tables(results: dict[str, Any], axis: str, name: str) -> dict[int, float]:
    """Seconds of a contender by size along `axis`, from tables whose other two sizes are those of the panel."""
    usual = results["growth"]["usual"]
    found = {}
    for key, figures in results.items():
        if not key.startswith("c") or not key[1:].isdigit() or name not in figures:
            continue
        sizes = {"n": figures["n"], "d": results["d"], "c": int(key[1:])}
        if all(sizes[other] == usual[other] for other in AXES if other != axis):
            found[sizes[axis]] = figures[name]
    return found
