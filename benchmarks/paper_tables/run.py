"""The tables and figures of the papers on given feature files, one command per table.

    python benchmarks/paper_tables/run.py adamix-table1 flowers.h5 [--seeds 5] [--work DIR]
    python benchmarks/paper_tables/run.py dpsgdf-table1 fashion.h5
    python benchmarks/paper_tables/run.py domain-shift private.h5 --public same.h5 --public other.h5
    python benchmarks/paper_tables/run.py accounting

Writes TABLE.json into this folder. `docs/draw_figures.py` then draws the figures into docs/images, and `render.py`
writes docs/reproduction.md, with paper and measurement side by side. Runs stay in DIR, so an interrupted table can
resume. Benchmarks treat all rows as public.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.calibrate import releases_cost
from linprobe.cli._terminal import TerminalProgress
from linprobe.evaluation.compare import compare_methods
from linprobe.evaluation.comparison_plan import MethodRow
from linprobe.options.requests import CompareRequest
from linprobe.runs import run_folder

HERE = Path(__file__).parent
SAMPLED = {"per_record": False}  # these tables have no per-record figures


def rows(*names: str, **settings: Any) -> list[MethodRow]:
    """Methods by name, all with the same settings."""
    return [MethodRow(name, name, dict(settings)) for name in names]


def ensembles(method: str) -> list[MethodRow]:
    """One method with each way to combine its iterates into a model."""
    kinds = [("last", None), *((kind, size) for kind in ("average", "ema", "vote") for size in (5, 20, 100))]
    return [
        MethodRow(
            f"{method}, {kind}" + ("" if size is None else f" of {size}"),
            method,
            {**SAMPLED, "output": kind} | ({} if size is None else {"ensemble": size}),
        )
        for kind, size in kinds
    ]


@dataclass(frozen=True)
class Table:
    """Runs of a table."""

    methods: list[MethodRow]
    epsilons: tuple[float, ...]
    seeds: int = 5
    shots: tuple[int, ...] = (2,)
    attack: bool = False


ADAMIX = rows("fully-private", "ppgd", "ngd", "noisy-gd", "adamix")
TABLES = {
    "adamix-table1": Table(ADAMIX, (1, 3), attack=True),
    "adamix-figure1": Table(ADAMIX, (0.5, 1, 2, 4, 8), seeds=3),
    "adamix-figure2": Table(rows("noisy-gd", "adamix"), (1, 3), seeds=3, shots=(1, 2, 4, 8, 16)),
    "dope-table3": Table(rows("dp-sgd", "mirror-descent", "adadps", "dope-sgd", **SAMPLED), (2, 4, 6), seeds=3),
    "dope-figure4": Table(ensembles("dp-sgd"), (2,), seeds=3),
    # settings chosen on the test rows, as in the paper
    "dpsgdf-table1": Table(
        [
            MethodRow("dp-sgd", "dp-sgd", {**SAMPLED, "steps": 400, "clip_norm": 0.1, "score_noise": 2.5}),
            MethodRow("dpsgd-f", "dpsgd-f", {**SAMPLED, "steps": 400}),
        ],
        (1, 2),
        seeds=3,
        shots=(),
    ),
    "domain-shift": Table(rows("noisy-gd", "adamix"), (1, 3), seeds=3, shots=()),
}
CURVES = rows("fully-private", "noisy-gd", "adamix")
CURVES_EPSILON = 3.0


def compared(name: str, features: Path, public: list[Path], seeds: int | None, work: Path) -> dict[str, Any]:
    """Run one comparison; return its summary."""
    table = TABLES[name]
    request = CompareRequest(
        methods=table.methods,
        epsilons=table.epsilons,
        out=work / name,
        features=features,
        seeds=seeds or table.seeds,
        shots=table.shots,
        public=public,
        attack=table.attack,
    )
    with TerminalProgress() as progress:
        found = compare_methods(request, progress)
    summary = found["summary"]
    for one in summary:
        kind = ("method", "public", "shots", "epsilon")
        alike = [each for each in found.get("attacks", ()) if all(each[key] == one[key] for key in kind)]
        if alike:
            found_aucs = [each["attack_auc"] for each in alike]
            one["attack_auc"] = statistics.fmean(found_aucs)
            one["attack_auc_std"] = statistics.stdev(found_aucs) if len(found_aucs) > 1 else None
    return {"rows": summary, "n_private": found["runs"][0]["n_private"], "n_public": found["runs"][0]["n_public"]}


def curves(features: Path, work: Path) -> dict[str, Any]:
    """Quantiles of the per-record epsilons of one run per method (figure 3 of the AdaMix paper)."""
    request = CompareRequest(
        methods=CURVES,
        epsilons=(CURVES_EPSILON,),
        out=work / "adamix-figure3",
        features=features,
        seeds=1,
        shots=(2,),
        baselines=False,
    )
    with TerminalProgress() as progress:
        found = compare_methods(request, progress)
    result = []
    for run in found["runs"]:
        trained = run_folder.read_run(run["run"])
        epsilon, delta = trained.manifest.bound
        epsilons = trained.per_record.losses.epsilon(delta, epsilon)
        quantiles = {f"{level:g}": float(np.quantile(epsilons, level)) for level in (0.05, 0.25, 0.5, 0.75, 0.95)}
        mean, largest = float(epsilons.mean()), float(epsilons.max())
        result.append({"method": run["method"], "epsilon": CURVES_EPSILON, "mean": mean, "max": largest, **quantiles})
    return {"rows": result}


def accounting() -> dict[str, Any]:
    """Epsilons of the papers, recomputed from the sampling rate, noise and steps that they report."""
    printed = json.loads((HERE / "paper.json").read_text(encoding="utf-8"))["accounting"]["rows"]
    found = []
    for row in printed:
        costs = releases_cost(row["q"], row["sigma"], row["steps"], row["delta"])
        found.append({**row, "pld": costs["pld"], "rdp": costs["rdp"]})
    return {"rows": found}


def main() -> None:
    """Run one table and write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=(*TABLES, "adamix-figure3", "accounting"))
    parser.add_argument("features", nargs="?", type=Path)
    parser.add_argument("--public", action="append", type=Path, default=[])
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--work", type=Path, default=Path("paper_tables"))
    asked = parser.parse_args()
    if asked.table == "accounting":
        found = accounting()
    elif asked.features is None:
        parser.error(f"{asked.table} needs a feature file")
    elif asked.table == "adamix-figure3":
        found = curves(asked.features, asked.work)
    else:
        found = compared(asked.table, asked.features, asked.public, asked.seeds, asked.work)
    text = json.dumps({"table": asked.table, **found}, indent=1)
    (HERE / f"{asked.table}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
