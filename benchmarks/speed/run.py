"""Seconds of one noisy full-batch step on N = 50,000 rows of 2,048 float32 features, against peers and limits.

    python benchmarks/speed/run.py [--quick] [--json FILE]

All contenders read the same array in the same process, best of several rounds. `limit_float32` is the larger of
one read of the rows at the measured bandwidth and the step's 4 N D C flops at the measured matrix-product rate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from linprobe.mechanisms.entropy import NoiseSource
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.methods import METHODS, Problem, Run, Schedule
from linprobe.probe import clipped_sum
from linprobe.rows import ArrayRows, normalise_rows

N, D, CLIP, SIGMA = 50_000, 2048, 0.5, 10.0


def best(step: Callable[[], object], rounds: int) -> float:
    """Shortest wall time of `step`, seconds, after one warm-up."""
    step()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times)


def opacus_ghost(x: np.ndarray, y: np.ndarray, n_classes: int) -> Callable[[], object]:
    """One DP-SGD step over all rows with Opacus' ghost clipping of a linear layer."""
    import torch
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    torch.set_num_threads(os.cpu_count() or 1)
    layer = torch.nn.Linear(D, n_classes, bias=False)
    model = GradSampleModuleFastGradientClipping(layer, max_grad_norm=CLIP, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=SIGMA, max_grad_norm=CLIP, expected_batch_size=N
    )
    loss = DPLossFastGradientClipping(model, optimizer, torch.nn.CrossEntropyLoss())
    rows, labels = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(rows), labels).backward()
        optimizer.step()

    return step


def limits(x: np.ndarray, rounds: int) -> tuple[float, float]:
    """Read bandwidth (bytes/s) of the rows and float32 matrix-product rate (flops/s), both cores."""
    ones = np.ones(D, dtype=np.float32)
    read = x.nbytes / best(lambda: x @ ones, rounds)
    a = x[:4096]
    b = np.ascontiguousarray(a[:2048])
    product = 2 * 4096 * 2048 * 2048 / best(lambda: a @ b, rounds)
    return read, product


def machine() -> str:
    """The processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def measure(n_classes: int, x: np.ndarray, rounds: int) -> dict[str, float]:
    """Seconds a step of each contender at `n_classes`."""
    g = np.random.default_rng(n_classes)
    y = g.integers(0, n_classes, N)
    weights = g.normal(size=(D, n_classes)) * 0.1
    rows = ArrayRows(x, y)
    mechanism = GaussianMechanism(NoiseSource(), lambda event: None)

    def noisy_gd() -> None:
        mechanism.release(clipped_sum(rows, weights, CLIP), SIGMA, purpose="gradient")

    public = ArrayRows(x[: 2 * n_classes], np.arange(2 * n_classes) % n_classes)
    problem = Problem(D, n_classes, private=rows, public=public)
    options = METHODS["adamix"].make_options({"init": "zero"})

    def adamix() -> None:
        run = Run(Schedule(1, SIGMA, 1 / SIGMA), mechanism, lambda: None)
        METHODS["adamix"].fit(problem, options, run)

    read, product = limits(x, rounds)
    return {
        "noisy_gd_float32": best(noisy_gd, rounds),
        "adamix_float32": best(adamix, rounds),
        "opacus_ghost": best(opacus_ghost(x, y, n_classes), rounds),
        "limit_float32": max(x.nbytes / read, 4 * N * D * n_classes / product),
    }


def main() -> None:
    """Measure, print the ratios, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 7")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else 7
    x = normalise_rows(np.random.default_rng(0).standard_normal((N, D), dtype=np.float32))
    results: dict[str, object] = {"n": N, "d": D, "cpus": os.cpu_count(), "machine": machine()}
    for n_classes in (10, 100):
        figures = measure(n_classes, x, rounds)
        results[f"c{n_classes}"] = figures
        for name, seconds in figures.items():
            print(f"C={n_classes:<4} {name:<18} {seconds:7.3f} s   {seconds / figures['opacus_ghost']:.2f} x Opacus")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
