"""Draw growth.png, step times against N, D and C, from results.json: `python benchmarks/speed/plots.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from linprobe.reporting.plots import BLUE, COLUMN, GREEN, INK, OCHRE, PURPLE, VERMILION, name_ends, new_figure

HERE = Path(__file__).parent
STYLES = {
    "noisy_gd_float32": ("linprobe noisy-gd", BLUE, "o", "-"),
    "plain_matmul_float32": ("NumPy, no noise", GREEN, "s", "-"),
    "opacus_ghost": ("Opacus, ghost", VERMILION, "D", "-"),
    "opacus_hooks": ("Opacus, per example", OCHRE, "^", ""),
    "jax_privacy": ("JAX Privacy", PURPLE, "v", ""),
    "limit_float32": ("machine's limit", INK, "", "--"),
}
AXES = {"n": "rows N", "d": "features D", "c": "classes C"}


def draw_growth(results: dict[str, Any], path: Path) -> None:
    """Three log-log panels. Contenders timed at many sizes are lines; those timed only for the tables are points."""
    growth = results["growth"]
    title = f"Time of one noisy step on random rows, float32; noisy-gd grows as N^{growth['n']['exponent']:.2f}"
    cores = results["machine"]["cores"]
    note = "Each panel varies one size. Lines: timed at every size; points: timed for the tables only.\n"
    note += (
        f"Each is the shortest of several rounds on {cores} cores. The limit: reading the rows once, or multiplying."
    )
    with new_figure(path, (COLUMN, 4.2), 1, 3, title=title, note=note, sharey=True) as panels:
        for axes, (axis, label) in zip(panels, AXES.items(), strict=True):
            values, ends = growth[axis]["values"], []
            for name, (text, colour, marker, line) in STYLES.items():
                timed = _tables(results, axis, name)
                timed |= zip(values, growth[axis]["seconds"].get(name, ()), strict=False)
                if timed:
                    sizes, seconds = zip(*sorted(timed.items()), strict=True)
                    axes.plot(sizes, seconds, color=colour, marker=marker, linestyle=line)
                    ends.append((sizes[-1], seconds[-1], text, colour))
            others = [f"{key.upper()} = {growth['usual'][key]:,}" for key in AXES if key != axis]
            axes.set(xscale="log", yscale="log", xlabel=label, title=", ".join(others))
            axes.set_xticks(values[::2], [f"{value:,}" for value in values[::2]])
            axes.set_xticks([], minor=True)
        panels[0].set_ylabel("seconds per step")
        name_ends(panels[-1], ends)


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


if __name__ == "__main__":
    draw_growth(json.loads((HERE / "results.json").read_text(encoding="utf-8")), HERE / "growth.png")
