"""Processor seconds of a pass over a Poisson sample, in units of q times a pass over all rows in the same process.

    python benchmarks/speed/sampled.py [--quick] [--classes 10 100] [--json FILE]

A pass computes the clipped sum of one step, without noise, on rows of D = 2,048 features. A contender takes passes in a
row, each over its own sample, as a run does: 1/q of them, or one that reads all rows. Each round times all contenders,
and the least user plus system time of each counts, so that other work on the machine matters little. `per record` also
computes the loss of every record, which reads all rows whatever the sample is. `translated`, `origin` and `scale` are
the passes of dpsgd-f, dope-sgd and adadps, on float16 rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from timing import machine

from linprobe.data.blocks import STORAGE, aligned_empty, narrowed, normalise_rows
from linprobe.data.rows import ArrayRows, Rows
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.geometry import PLAIN, Geometry, Origin, Scale
from linprobe.parallel.threads import blas_held_to_one_thread

D, CLIP = 2048, 0.5
ROWS = {10: 40_000, 100: 40_000, 1000: 40_000}
RATES = (0.05, 0.15, 0.5)
Masks = dict[float, list[NDArray[np.bool_]]]
Passes = list[Callable[[], object]]


def used() -> tuple[float, float]:
    """User and system seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def passes(rows: Rows, weights: NDArray[np.float64], masks: Masks, geometry: Geometry) -> dict[str, Passes]:
    """A pass over all rows and, for each rate, one over each sample, and one over the first with per-record losses."""

    def over(blocks: Rows, per_record: bool) -> Callable[[], object]:
        return lambda: clipped_sum(blocks, weights, CLIP, geometry=geometry, per_record=per_record)

    found = {"all rows": [over(rows, True)]}
    for rate, samples in masks.items():
        found[f"q={rate:g}"] = [over(rows.sample(mask, rate, observed=False), False) for mask in samples]
        found[f"q={rate:g} per record"] = [over(rows.sample(samples[0], rate, observed=True), True)]
    return found


def measure(contenders: dict[str, Passes], masks: Masks, rounds: int) -> dict[str, Any]:
    """Least seconds of a pass, its share of system time, and its multiple of the sampled share of a full pass."""
    least, total = dict.fromkeys(contenders, float("inf")), {name: np.zeros(2) for name in contenders}
    with blas_held_to_one_thread():  # as during a run
        for _ in range(rounds):
            for name, calls in contenders.items():
                before = np.array(used())
                for call in calls:
                    call()
                spent = (np.array(used()) - before) / len(calls)
                total[name] += spent
                least[name] = min(least[name], float(spent.sum()))
    shares = {"all rows": 1.0}
    for rate, samples in masks.items():
        shares |= {f"q={rate:g}": float(np.mean(samples)), f"q={rate:g} per record": float(samples[0].mean())}
    return {
        name: {
            "seconds": seconds,
            "over_q": seconds / least["all rows"] / shares[name],
            "system_share": float(total[name][1] / total[name].sum()),
        }
        for name, seconds in least.items()
    }


def main() -> None:
    """Measure, print a line for each shape, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of fifteen")
    parser.add_argument("--classes", type=int, nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds, rng = 3 if arguments.quick else 15, np.random.default_rng(0)
    results: dict[str, Any] = {}
    sizes = {n_classes: ROWS[n_classes] for n_classes in arguments.classes}
    wide = normalise_rows(rng.standard_normal((max(sizes.values()), D), dtype=np.float32))
    for n_classes, n in sizes.items():
        y, weights = rng.integers(0, n_classes, n), rng.standard_normal((D, n_classes))
        masks = {rate: [rng.random(n) < rate for _ in range(round(1 / rate))] for rate in RATES}

        cases: dict[str, tuple[Rows, NDArray[np.float64], Geometry]] = {}
        for precision, storage in STORAGE.items():
            x = aligned_empty((n, D), storage)
            x[:] = narrowed(wide[:n], precision)
            rows = ArrayRows(x, y)
            cases[precision] = (rows, weights, PLAIN)
        if n_classes == 10:
            moved = rows.translated(0.01 * rng.standard_normal(D), 0.5)
            cases["translated"] = (moved, np.concatenate([weights, weights[:1]]), PLAIN)
            cases["origin"] = (rows, weights, Origin(0.002 * rng.standard_normal(weights.shape)))
            cases["scale"] = (rows, weights, Scale(np.exp(0.3 * rng.standard_normal(weights.shape))))
        for label, (given, its_weights, geometry) in cases.items():
            found = measure(passes(given, its_weights, masks, geometry), masks, rounds)
            results[f"c{n_classes} {label}"] = found
            figures = ", ".join(f"{name} {figure['over_q']:.2f}" for name, figure in found.items())
            print(f"C = {n_classes:<5} {label:<11} {found['all rows']['seconds']:.4f} s; {figures}", flush=True)
    if arguments.json:
        document = {
            "rows": sizes,
            "d": D,
            "rounds": rounds,
            "load": os.getloadavg()[1],
            "results": results,
            "machine": machine(),
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
