"""Several labels a row: AUROC, average precision and accuracy of labels on the digits of scikit-learn.

    python benchmarks/labels/run.py --json benchmarks/labels/results.json

Two tasks: `properties` has five labels that 40 to 50 % of the rows have each; `digits` has ten labels, one for each
digit, so that a label has 10 % of the rows. A seed divides the 1,797 images into 1,300 private, 70 public and 427 test
rows. Methods are on their defaults.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from linprobe.data.blocks import ArraySource
from linprobe.data.dataset import Dataset
from linprobe.methods import METHODS
from linprobe.runs.figures import label_figures
from linprobe.training.execute import execute
from linprobe.training.plan import Settings, plan_run

DELTA = 1e-5
EPSILONS = (1.0, 3.0)
PROPERTIES = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "above 4": (5, 6, 7, 8, 9),
    "has a loop": (0, 6, 8, 9),
    "multiple of 3": (0, 3, 6, 9),
}
TASKS = {"properties": PROPERTIES, "digits": {str(digit): (digit,) for digit in range(10)}}
RUNS = (("noisy-gd", False), ("dp-sgd", False), ("noisy-gd", True), ("adamix", True), ("dp-sgd", True))
BASELINES = (("only-public", True), ("non-private", True))
FIGURES = ("macro_auroc", "macro_average_precision", "label_accuracy", "commonest_accuracy")


def measured(task: str, method: str, public: bool, epsilon: float | None, seed: int) -> list[float]:
    """The figures of one run, in the order of `FIGURES`."""
    digits = load_digits()
    names = TASKS[task]
    y = np.stack([np.isin(digits.target, having) for having in names.values()], axis=1).astype(np.uint8)
    order = np.random.default_rng(seed).permutation(len(y))
    private, shown, test = np.split(order, (1300, 1370))
    known = ArraySource(digits.data[shown], y[shown]) if public else None
    budget = {} if epsilon is None else {"epsilon": epsilon, "delta": DELTA, "per_record": False}
    dataset = Dataset(ArraySource(digits.data[private], y[private]), len(names), known, several_labels=True)
    probe = execute(plan_run(Settings.of_given(METHODS[method], budget), dataset), dataset)
    found = label_figures(ArraySource(digits.data[test], y[test]), probe.weights, probe.bias, list(names))
    return [found[name] for name in FIGURES]


def main() -> None:
    """Parse the command line, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    plans = [(*run, epsilon) for epsilon in EPSILONS for run in RUNS] + [(*run, None) for run in BASELINES]
    for task in TASKS:
        for method, public, epsilon in plans:
            runs = [measured(task, method, public, epsilon, seed) for seed in range(given.seeds)]
            columns = np.array(runs).T
            figures = {
                name: {"mean": float(column.mean()), "std": float(column.std(ddof=1))}
                for name, column in zip(FIGURES, columns, strict=True)
            }
            results.append({"task": task, "method": method, "public": public, "epsilon": epsilon, **figures})
            private = "" if METHODS[method].private else ", not private"
            print(task, method, "public rows" if public else "no public rows", epsilon, private, figures["macro_auroc"])
    given.json.write_text(json.dumps({"delta": DELTA, "seeds": given.seeds, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
