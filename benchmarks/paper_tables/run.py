"""The tables and figures of the papers on given feature files, one command per table.

    python benchmarks/paper_tables/run.py adamix-table1 flowers102.h5 [--seeds 5] [--work DIR]
    python benchmarks/paper_tables/run.py dpsgdf-table1 fashion-pixels.h5
    python benchmarks/paper_tables/run.py domain-shift private.h5 --public same.h5 --public other.h5
    python benchmarks/paper_tables/run.py accounting

Writes TABLE.json into this folder, with the command, its seconds and cores, the digests of the rows, and the settings
that decide its numbers (`tables.py`). `docs/draw_figures.py` then draws the figures into docs/images, and `render.py`
writes docs/reproduction.md, with paper and measurement side by side. Runs stay in DIR, so an interrupted table can
resume; its seconds add up. Benchmarks treat all rows as public.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from gradients import FIGURES, figure_rows
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from tables import CURVES, DATA, TABLES, Table, arrays, dataset_of, fitted, settings_of

from linprobe.accounting.calibrate import releases_cost
from linprobe.cli._terminal import TerminalProgress
from linprobe.data.blocks import ArraySource
from linprobe.data.dataset import open_features
from linprobe.evaluation.compare import compare_methods
from linprobe.evaluation.comparison_plan import PARAGON, PUBLIC_BASELINE, MethodRow
from linprobe.methods import METHODS
from linprobe.options.requests import AccountRequest, CompareRequest
from linprobe.runs import run_folder
from linprobe.runs.figures import class_scores, probabilities
from linprobe.training.execute import Trained

HERE = Path(__file__).parent
KIND = ("method", "public", "shots", "epsilon")
CONCENTRATION, OUTERMOST = "dpsgdf-table2", 500
ACCOUNTING = ("accounting", "large-rates-table2")


def compared(table: Table, out: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Run a comparison on a feature file; return what `compare_methods` returns."""
    request = CompareRequest(
        methods=table.methods,
        epsilons=table.epsilons,
        out=out,
        features=asked.features,
        seeds=asked.seeds or table.seeds,
        public_shots=table.shots,
        public=asked.public,
        attack=table.attack,
        baselines=table.baselines,
        jobs=asked.jobs,
    )
    with TerminalProgress() as progress:
        return compare_methods(request, progress)


def summary_of(table: Table, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a comparison, with the AUC of the attack if there was one."""
    summary: list[dict[str, Any]] = found["summary"]
    for one in summary:
        alike = [each for each in found.get("attacks", ()) if all(each[key] == one[key] for key in KIND)]
        if alike:
            found_aucs = [each["attack_auc"] for each in alike]
            one["attack_auc"] = statistics.fmean(found_aucs)
            one["attack_auc_std"] = statistics.stdev(found_aucs) if len(found_aucs) > 1 else None
    return summary


def in_memory(table: Table) -> list[dict[str, Any]]:
    """Mean and spread of test accuracy, and of the AUC of the attack, over the seeds of `table.drawn`."""
    assert table.drawn is not None
    found: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    baselines = [MethodRow(name, name) for name in (PUBLIC_BASELINE, PARAGON)] if table.baselines else []
    for seed in range(table.seeds):
        for drawn in table.drawn(seed):
            for row in (*table.methods, *baselines):
                dataset = dataset_of(row, drawn.private, drawn.public, DATA[table.data], drawn.text_weights)
                for epsilon in table.epsilons if METHODS[row.method].spends else (None,):
                    trained = fitted(row, epsilon, dataset)
                    losses, right = zip(*(scored(trained, rows) for rows in (drawn.private, drawn.test)), strict=True)
                    auc = roc_auc_score(np.repeat([0, 1], [len(one) for one in losses]), np.concatenate(losses))
                    found.setdefault((drawn.part, row.name, epsilon), []).append((right[1], auc))
    return [
        {"part": part, "method": method, "epsilon": epsilon, "runs": len(values)}
        | _spread("", [value for value, _ in values])
        | (_spread("attack_auc", [auc for _, auc in values]) if table.attack else {})
        for (part, method, epsilon), values in found.items()
    ]


def scored(trained: Trained, rows: ArraySource) -> tuple[NDArray[np.float64], float]:
    """The loss of each row, and the accuracy; a vote has as loss how few voters are right."""
    x, y = arrays(rows)
    scores = class_scores(x, trained.weights, trained.bias)
    chances = probabilities(scores, trained.weights)[np.arange(len(y)), y]
    return -np.log(np.maximum(chances, 1e-300)), float(np.mean(scores.argmax(axis=1) == y))


def _spread(name: str, values: list[float]) -> dict[str, float]:
    """Mean and standard deviation, under the keys of `name`."""
    mean, std = (name, f"{name}_std") if name else ("mean", "std")
    return {mean: statistics.fmean(values), std: statistics.stdev(values)}


def concentration(files: list[Path]) -> dict[str, Any]:
    """Distances of unit rows (table 2 of the DPSGD-F paper); the diameter is a lower bound, from the outermost rows."""
    result, data = [], []
    for path in files:
        with open_features(path) as opened:
            x = opened.rows("train", slice(None)).astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        away = np.linalg.norm(x - x.mean(axis=0), axis=1)
        outermost = x[np.argsort(away)[-OUTERMOST:]]
        squared = 2 - 2 * float((outermost @ x.T).min())
        result.append(
            {
                "data": path.stem,
                "rows": len(x),
                "diameter": squared**0.5,
                "largest": float(away.max()),
                "mean": float(away.mean(dtype=np.float64)),
            }
        )
        data += rows_digests(path)
    return {"data": data, "rows": result}


def quantiles(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Quantiles of the per-record epsilons (figure 3 of the AdaMix paper), mean and spread over runs."""
    kinds: dict[tuple[str, float], list[dict[str, float]]] = {}
    for run in found["runs"]:
        trained = run_folder.read_run(run["run"])
        epsilon, delta = trained.manifest.bound
        epsilons = trained.per_record.losses.epsilon(delta, epsilon)
        levels = {f"{level:g}": float(np.quantile(epsilons, level)) for level in (0.05, 0.25, 0.5, 0.75, 0.95)}
        figures = {"mean": float(epsilons.mean()), **levels, "max": float(epsilons.max())}
        kinds.setdefault((run["method"], run["epsilon"]), []).append(figures)
    return [
        {"method": method, "epsilon": epsilon, "runs": len(runs)}
        | {key: _spread("", [one[key] for one in runs]) for key in runs[0]}
        for (method, epsilon), runs in kinds.items()
    ]


def accounting(name: str) -> dict[str, Any]:
    """Epsilons of a paper, recomputed from the sampling rate, noise and steps that it reports or implies."""
    printed = json.loads((HERE / "paper.json").read_text(encoding="utf-8"))[name]["rows"]
    found = []
    for row in printed:
        request = AccountRequest(
            sampling_rate=row["q"], noise_multiplier=row["sigma"], n_steps=row["steps"], delta=row["delta"]
        )
        costs = releases_cost(request)
        found.append({**row, "pld": costs["pld"], "rdp": costs["rdp"]})
    return {"rows": found}


def rows_digests(features: Path) -> list[str]:
    """The start of the digests of the training and test rows of a file."""
    with open_features(features) as opened:
        return [opened.digest(group)[:16] for group in ("train", "test")]


def measured(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """A table of `TABLES`, with the digests of its rows."""
    table, folder = TABLES[name], asked.work / name
    if name in FIGURES:
        return {"settings": settings_of(name), "rows": figure_rows(name, table)}
    if table.drawn is not None:
        return {"settings": settings_of(name), "rows": in_memory(table)}
    folder.mkdir(parents=True, exist_ok=True)
    found = compared(table, folder, asked)
    return {
        "data": rows_digests(asked.features),
        "settings": settings_of(name),
        "n_private": found["runs"][0]["n_private"],
        "n_public": found["runs"][0]["n_public"],
        "rows": quantiles(found) if name in CURVES else summary_of(table, found),
    }


def main() -> None:
    """Run one table and write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=(*TABLES, *ACCOUNTING, CONCENTRATION))
    parser.add_argument("features", nargs="*", type=Path)
    parser.add_argument("--public", action="append", type=Path, default=[])
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, help="processes; default: one for each core")
    parser.add_argument("--work", type=Path, default=Path("paper_tables"))
    asked = parser.parse_args()
    name, began = asked.table, time.perf_counter()
    os.environ["XDG_STATE_HOME"] = str(asked.work.absolute() / name)  # rows private in one table are public in another
    files, words = asked.features, ["python benchmarks/paper_tables/run.py", name]
    words += [path.name for path in files]
    command = " --public ".join([" ".join(words), *(path.name for path in asked.public)])
    asked.features = files[0] if files else None
    if name in ACCOUNTING:
        found = accounting(name)
    elif name == CONCENTRATION:
        found = concentration(files)
    elif asked.features is None and TABLES[name].drawn is None:
        parser.error(f"{name} needs a feature file")
    else:
        found = measured(name, asked)
    clock = asked.work / name / "seconds"
    before = float(clock.read_text()) if clock.is_file() else 0.0
    seconds = before + time.perf_counter() - began
    if clock.parent.is_dir():
        clock.write_text(f"{seconds}")
    cores = len(os.sched_getaffinity(0))
    text = json.dumps({"table": name, "command": command, "seconds": round(seconds), "cores": cores, **found}, indent=1)
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
