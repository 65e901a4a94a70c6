"""Where a step of adamix with a gradient subspace spends its time: `python benchmarks/speed/subspace.py [--json FILE]`.

2,500 private rows, 2,048 features, 1,000 classes, P = 500. Processor seconds of one thread, the least of several
rounds, beside those of the products of a noisy-gd step on the same rows; multiply-adds follow from the shapes, 0 where
they do not. BLAS is held to one thread, as during a run, so that eigenvectors do not depend on the number of threads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.methods._directions import top_left_subspace
from linprobe.parallel.threads import blas_held_to_one_thread

N, D, C, P = 2_500, 2_048, 1_000, 500
ROUNDS = 5


def seconds(work: Callable[[], Any]) -> float:
    """Processor seconds of this thread, the least of `ROUNDS`."""
    found = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        work()
        found.append(time.thread_time() - started)
    return min(found)


def main() -> None:
    """Print a line for each part, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    g = np.random.default_rng(0)
    x, weights = (g.standard_normal(shape, dtype=np.float32) for shape in ((N, D), (D, C)))
    residuals = g.standard_normal((N, C), dtype=np.float32)
    gradient = g.standard_normal((D, C))
    gradient -= gradient.mean(axis=1, keepdims=True)  # its columns add up to zero
    with blas_held_to_one_thread():
        squares, subspace = gradient.T @ gradient, top_left_subspace(gradient, P, C - 1)
        assert subspace is not None
        basis = subspace.coordinates(np.eye(D)).T.astype(np.float32)
        parts: dict[str, tuple[float, Callable[[], Any]]] = {
            "scores and sum of the rows, float32": (2 * N * D * C, lambda: (x @ weights, x.T @ residuals)),
            "coordinates of the rows, float32": (N * D * P, lambda: x @ basis),
            "subspace, float64": (0, lambda: top_left_subspace(gradient, P, C - 1)),
            "of it: products of all columns": (D * C * C / 2, lambda: gradient.T @ gradient),
            "of it: eigenvectors of them": (0, lambda: np.linalg.eigh(squares)),
            "sum into the subspace, float64": (D * C * P, lambda: subspace.coordinates(gradient)),
            "release out of it, float64": (D * C * P, lambda: subspace.embed(gradient[:P])),
        }
        results = {name: {"multiply_adds": float(n), "seconds": seconds(work)} for name, (n, work) in parts.items()}
    for name, found in results.items():
        print(f"{name:<38} {found['multiply_adds']:.2g} multiply-adds  {found['seconds']:.3f} s", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"n": N, "d": D, "c": C, "p": P, "parts": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
