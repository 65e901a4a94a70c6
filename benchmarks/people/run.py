"""People with several rows: accuracy at equal epsilon against group privacy, and the cost of a step.

    python benchmarks/people/run.py accuracy FILE.npz --json benchmarks/people/accuracy.json [--rows 10]
    python benchmarks/people/run.py cost --json benchmarks/people/cost.json

`FILE.npz` holds X_train, y_train, X_test, y_test and class_names. Its training rows are dealt to people with k rows
each: at random, or so that the rows of a person have one class where possible. Each setting is trained three ways, all
at the same epsilon and delta for a person:

    owner   `--unit owner`: the gradients of a person are summed and clipped
    group   rows are protected, with k times the noise, so that k rows together cost epsilon
    one     one row of each person is used, and rows are protected

`cost` times a noisy step at `SHAPES`: of single rows, and of people with 1, 3, 10, 20, 50, 200 and on average 3 rows.
Use OMP_NUM_THREADS=1 for one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.figures import epsilon_of, largest_mu
from linprobe.data.blocks import Precision, narrowed, normalise_rows
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import by_owner
from linprobe.data.rows import ArrayRows, Rows
from linprobe.errors import Silent
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.mechanisms.noise import NoiseSource
from linprobe.options.requests import TrainRequest
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.training.train import train_run

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
from timing import machine

DELTA = 1e-5
ROWS = (1, 3, 10)
SHAPES = ((6144, 1280, 102), (6144, 1280, 10), (6144, 2048, 10), (20480, 512, 10))
PRECISIONS: tuple[Precision, ...] = ("float32", "float16")
RATE = 0.1
ROUNDS, STEPS = 10, 2


def dealt(y: np.ndarray, k: int, how: str, seed: int) -> np.ndarray:
    """The person of each row: k rows each, at random or of one class where possible."""
    order = np.random.default_rng(seed).permutation(len(y))
    if how == "class":
        order = order[np.argsort(y[order], kind="stable")]
    owners = np.empty(len(y), dtype=np.int64)
    owners[order] = np.arange(len(y)) // k
    return owners


def trained(data: Any, epsilon: float, k: int, how: str, way: str, seed: int) -> float:
    """Test accuracy of one run whose people have epsilon."""
    owners = dealt(data["y_train"], k, how, seed)
    order = by_owner(owners)
    if way == "one":
        _, order = np.unique(owners, return_index=True)
    if way == "group":
        epsilon = epsilon_of(largest_mu(epsilon, DELTA) / k, DELTA)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.h5"
        with FeatureWriter(file, Description(class_names=tuple(data["class_names"].tolist()))) as writer:
            names = [f"p{owner}" for owner in owners[order]]
            for group, rows, people in (("train", order, names), ("test", slice(None), None)):
                x, y = data[f"X_{group}"][rows], data[f"y_{group}"][rows]
                ids = [f"{group}/{row}" for row in range(len(y))]
                writer.write_group(group, len(y), x.shape[1], [x], y, ids, owners=people)
        request = TrainRequest(
            method="noisy-gd",
            features=file,
            epsilon=epsilon,
            delta=DELTA,
            unit="owner" if way == "owner" else "record",
            per_record=False,
            out=file.with_name("run"),
            book=file.with_name("book"),
        )
        return float(train_run(request, Silent())["test_accuracy"])


def accuracies(path: Path, epsilons: list[float], seeds: int, rows: list[int]) -> list[dict[str, Any]]:
    """One object for each setting: mean and standard deviation of the test accuracy over the seeds.

    `rows` are numbers of rows a person.
    """
    with np.load(path) as archive:
        data = dict(archive)
    settings = [
        (k, how, way)
        for k in rows
        for how in (("random",) if k == 1 else ("random", "class"))
        for way in (("owner", "group") if k == 1 else ("owner", "group", "one"))
    ]
    results = []
    for epsilon in epsilons:
        for k, how, way in settings:
            found = [trained(data, epsilon, k, how, way, seed) for seed in range(seeds)]
            results.append(
                {
                    "file": path.name,
                    "epsilon": epsilon,
                    "rows_a_person": k,
                    "rows_dealt": how,
                    "way": way,
                    "accuracy": float(np.mean(found)),
                    "std": float(np.std(found, ddof=1)),
                    "accuracies": found,
                }
            )
            print(epsilon, k, how, way, np.round(found, 4), flush=True)
    return results


def costs() -> list[dict[str, Any]]:
    """One object for each setting: seconds of a noisy step of rows, and those of people relative to it.

    Settings are a shape, a storage type, and a sampling rate, below 1 with and without losses of each person.
    """
    settings = [(shape, precision, 1.0, True) for shape in SHAPES for precision in PRECISIONS]
    settings += [(shape, "float32", RATE, observed) for shape in SHAPES[:2] for observed in (True, False)]
    results = []
    for shape, precision, rate, observed in settings:
        n, n_features, n_classes = shape
        g = np.random.default_rng(0)
        x = narrowed(normalise_rows(g.normal(size=(n, n_features)).astype(np.float32)), precision)
        rows = ArrayRows(x, g.integers(0, n_classes, n))
        weights, source = g.normal(size=(n_features, n_classes)), NoiseSource()
        about_3 = np.bincount(g.integers(0, n // 3, n))
        people = {str(k): np.r_[np.arange(0, n, k), n] for k in (1, 3, 10, 20, 50, 200)}
        people["3 on average"] = np.concatenate([[0], np.cumsum(about_3[about_3 > 0])])

        def step(chosen: Rows, weights: Any = weights, source: Any = source, per_record: bool = observed) -> Any:
            return source.add_noise(clipped_sum(chosen, weights, 0.5, per_record=per_record).value, 5.0)

        chosen: dict[str, Any] = {"rows": rows} | {k: rows.of_people(bounds) for k, bounds in people.items()}
        if rate < 1:
            chosen = {k: one.sample(g.random(one.n_rows) < rate, rate, observed=observed) for k, one in chosen.items()}
        with blas_held_to_one_thread():
            cpu, wall = fastest({k: partial(step, one) for k, one in chosen.items()})
        result: dict[str, Any] = {"shape": list(shape), "precision": precision, "rate": rate, "per_person": observed}
        for name, seconds in (("cpu", cpu), ("wall", wall)):
            result[f"{name}_seconds"] = seconds["rows"]
            result[f"{name}_relative"] = {k: seconds[k] / seconds["rows"] for k in people}
        results.append(result)
        print(result, flush=True)
    return results


def fastest(steps: Mapping[str, Callable[[], object]]) -> tuple[dict[str, float], dict[str, float]]:
    """Shortest processor time and shortest wall time of each step, in seconds, of `ROUNDS` rounds.

    Each round takes every step `STEPS` times, so that a slow minute affects all of them. The first round is not
    counted: it computes what is kept from step to step.
    """
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    wall: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS + 1):
        for name, step in steps.items():
            for _ in range(STEPS if number else 1):
                start, used = time.perf_counter(), time.process_time()
                step()
                if number:
                    cpu[name].append(time.process_time() - used)
                    wall[name].append(time.perf_counter() - start)
    return {name: min(times) for name, times in cpu.items()}, {name: min(times) for name, times in wall.items()}


def main() -> None:
    """Parse the command line, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("accuracy", "cost"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows a person")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    if given.study == "accuracy" and given.file is None:
        parser.error("accuracy needs a file")
    found = costs() if given.study == "cost" else accuracies(given.file, given.epsilons, given.seeds, given.rows)
    given.json.write_text(json.dumps({"machine": machine(), "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
