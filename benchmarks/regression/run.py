"""The synthetic linear regression of Amid et al. 2022, section 3: cold and warm DP-SGD and exact mirror descent.

    python benchmarks/regression/run.py [--quick] [--json FILE]

For p features, 10,000 private and 1.5 p public records: 40 of the first p/5 features and 80 of the others are 0.05, the
rest 0; theta ~ N(0, I), y ~ N(theta . x, 0.01). Each step uses all rows; (epsilon, delta) = (1, 1e-5). As in the paper,
the learning rate is the best of a grid; here it is chosen on a separate trial. The figure is the mean squared error on
the private records, which are synthetic, over 20 other trials. With 40 and 80 entries in each row, the loss has no
curvature in one direction, so mirror descent needs its ridge.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.calibrate import calibrate
from linprobe.data.rows import ArrayRows
from linprobe.gradients.loss import loss_and_gradient
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS, Problem, Run, Schedule

N_PRIVATE, EPSILON, DELTA, STEPS = 10_000, 1.0, 1e-5, 60
DIMENSIONS = (500, 1000, 2000, 4000, 6000)
SCORE_NOISES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
CLIP_NORM = 0.05
SHARED: dict[str, Any] = {"loss": "squared", "optimizer": "sgd", "weight_decay": 1e-9}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "cold DP-SGD": ("dp-sgd", {"init": "zero"}),
    "warm DP-SGD": ("dp-sgd", {"init": "public"}),
    "mirror descent": ("mirror-descent", {"init": "public", "update": "exact", "ridge": 0.1}),
}


def draw(p: int, trial: int) -> Problem:
    """One data set."""
    rng = np.random.default_rng([p, trial])
    theta = rng.standard_normal(p)

    def rows(n: int) -> ArrayRows:
        x = np.zeros((n, p), dtype=np.float32)
        for row in x:
            row[rng.choice(p // 5, 40, replace=False)] = 0.05
            row[p // 5 + rng.choice(p - p // 5, 80, replace=False)] = 0.05
        y = x @ theta + 0.1 * rng.standard_normal(n)
        return ArrayRows(x, y[:, None].astype(np.float32))

    return Problem(p, 1, private=rows(N_PRIVATE), public=rows(3 * p // 2))


def squared_error(problem: Problem, name: str, score_noise: float) -> float:
    """Mean squared error of one private fit on the private records."""
    method_name, extra = ALGORITHMS[name]
    method = METHODS[method_name]
    budget = calibrate(epsilon=EPSILON, delta=DELTA, n_private=N_PRIVATE, steps=STEPS)
    schedule = Schedule(STEPS, budget.noise_multiplier, budget.nominal_mu)
    options = method.make_options({**SHARED, **extra, "score_noise": score_noise, "clip_norm": CLIP_NORM})
    mechanism = GaussianMechanism(NoiseSource(), lambda event: None)
    fitted = method.fit(problem, options, Run(schedule, mechanism, lambda: None))
    loss = loss_and_gradient(problem.private_rows, fitted.weights, "squared")[0]
    return 2 * loss / N_PRIVATE


def measure(dimensions: tuple[int, ...], trials: int) -> list[dict[str, Any]]:
    """The chosen setting and the errors over trials of each algorithm in each dimension."""
    results = []
    for p in dimensions:
        tuning = draw(p, 2**31)
        chosen = {
            name: min(SCORE_NOISES, key=lambda noise, name=name: squared_error(tuning, name, noise))
            for name in ALGORITHMS
        }
        errors: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
        for trial in range(trials):
            problem = draw(p, trial)
            for name in ALGORITHMS:
                errors[name].append(squared_error(problem, name, chosen[name]))
        for name, found in errors.items():
            mean, spread = statistics.mean(found), statistics.stdev(found)
            setting = {"score_noise": chosen[name], "clip_norm": CLIP_NORM}
            results.append({"p": p, "algorithm": name, "mean": mean, "std": spread, **setting, "errors": found})
            print(f"p {p:>5}  {name:<15} {mean:.5f} +- {spread:.5f}  (s {chosen[name]})", flush=True)
    return results


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two dimensions, three trials")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    trials = 3 if arguments.quick else 20
    results = measure(DIMENSIONS[:2] if arguments.quick else DIMENSIONS, trials)
    if arguments.json:
        document = {"trials": trials, "steps": STEPS, "epsilon": EPSILON, "delta": DELTA, "results": results}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
