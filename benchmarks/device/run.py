"""Limits of one GPU, seconds of a step and of its noise on it: N = 200,000 rows, D = 2,048 features.

    python benchmarks/device/run.py [--quick] [--json FILE]

`limit_*` is the least time of a step: the larger of one read of the rows at the measured bandwidth and the step's
4 N D C flops at the measured rate of matrix products. `share_*` is `limit_*` over the time of a step of the method: the
mean of `STEPS` steps, with per-record contributions, noise and update. `sum_*` is the clipped sum alone. `noise_*` is
one draw of D x C normals, with words computed on the `device` or copied from the `host`; kernel launches are included.
Best of several rounds. Without a GPU nothing is measured or written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linprobe.data.blocks import narrowed, normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.gpu import DeviceRows, GpuBackend, check_device
from linprobe.mechanisms import gpu_noise
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.gpu_noise import DeviceNoise
from linprobe.mechanisms.noise import PoissonSampler
from linprobe.methods import METHODS, Method, Problem, Run, Schedule
from linprobe.options import SAMPLING_RATE

N, D, STEPS = 200_000, 2048, 5
N_CLASSES = (10, 100, 1000)
METHODS_TIMED = {"noisy-gd": {"init": "zero"}, "adamix": {"init": "zero"}, "dp-sgd": {"init": "zero"}}
SIDE, COPIED, NORMALS = 8192, 1 << 31, 1 << 24


def best(step: Callable[[], object], rounds: int) -> float:
    """Shortest wall time of `step` with a synchronisation, seconds, after two warm-up rounds."""
    times = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[2:])


def machine_limits(device: torch.device, rounds: int) -> dict[str, float]:
    """Bytes per second that a copy in device memory reads and writes, and flops per second of matrix products."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = {"copy_bytes_per_second": 2 * COPIED / best(partial(target.copy_, source), rounds)}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a = torch.randn(SIDE, SIDE, device=device).to(dtype)
        b, product = a.T.contiguous(), torch.empty_like(a)
        seconds = best(partial(torch.matmul, a, b, out=product), rounds)
        found[f"{name}_flops_per_second"] = 2 * SIDE**3 / seconds
    return found


def noise(device: torch.device, rounds: int) -> dict[str, float]:
    """Normals per second of one long draw, and seconds of the draw of a step."""
    source, words = DeviceNoise(device), gpu_noise.HOST_BLOCKS
    long_draw = partial(source.add_noise, torch.zeros(NORMALS, dtype=torch.float64, device=device), 1.0)
    found = {"normals_per_second": NORMALS / best(long_draw, rounds)}
    for name, blocks in (("device", 0), ("host", NORMALS)):
        gpu_noise.HOST_BLOCKS = blocks
        for n_classes in N_CLASSES:
            value = torch.zeros((D, n_classes), dtype=torch.float64, device=device)
            found[f"noise_c{n_classes}_{name}"] = best(partial(source.add_noise, value, 1.0), rounds)
    gpu_noise.HOST_BLOCKS = words
    return found


def steps(device: torch.device, rounds: int) -> dict[str, float]:
    """Seconds of a step of noisy-gd and adamix, on float32 and bfloat16 rows."""
    g = np.random.default_rng(0)
    x = normalise_rows(g.standard_normal((N, D), dtype=np.float32))
    found = {}
    for precision in ("float32", "bfloat16"):
        narrow = narrowed(x, precision)
        for n_classes in N_CLASSES:
            rows = DeviceRows(ArrayRows(narrow, g.integers(0, n_classes, N)), device)
            public = DeviceRows(ArrayRows(narrow[: 2 * n_classes], np.arange(2 * n_classes) % n_classes), device)
            problem = Problem(D, n_classes, private=rows, public=public)
            weights = torch.zeros((D, n_classes), dtype=torch.float64, device=device)
            total = partial(clipped_sum, rows, weights, 1.0, backend=GpuBackend(device))  # type: ignore[arg-type]
            found[f"sum_c{n_classes}_{precision}"] = best(total, rounds)
            for name, given in METHODS_TIMED.items():
                method = METHODS[name]
                options = method.make_options(given)

                def fit(method: Method = method, options: Any = options, problem: Problem = problem) -> None:
                    source = DeviceNoise(device)
                    mechanism = GaussianMechanism(source, lambda event: None)
                    rate = SAMPLING_RATE if method.samples else 1.0
                    schedule = Schedule(STEPS, 10.0, STEPS**0.5 / 10, rate)
                    sampler = PoissonSampler(source, rate)
                    run = Run(schedule, mechanism, lambda: None, sampler, backend=GpuBackend(device))
                    method.fit(problem, options, run)

                found[f"{name}_c{n_classes}_{precision}"] = best(fit, rounds) / STEPS
            del rows, public, problem
    return found


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 20")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch finds no GPU here; nothing was measured or written", file=sys.stderr)
        return
    rounds = 3 if arguments.quick else 20
    device = check_device("cuda")
    limits = machine_limits(device, rounds)
    least = {
        f"limit_c{n_classes}_{name}": max(
            size * N * D / limits["copy_bytes_per_second"], 4 * N * D * n_classes / limits[f"{name}_flops_per_second"]
        )
        for n_classes in N_CLASSES
        for name, size in (("float32", 4), ("bfloat16", 2))
    }
    taken = steps(device, rounds)
    shares = {f"share_{name}": least[f"limit_{name.split('_', 1)[1]}"] / seconds for name, seconds in taken.items()}
    figures = {**limits, **least, **taken, **noise(device, rounds)}
    for name, figure in figures.items():
        print(f"{name:<28} {figure:.4g}" if name.endswith("per_second") else f"{name:<28} {1e3 * figure:9.3f} ms")
    for name, share in shares.items():
        print(f"{name:<28} {share:9.2f}")
    machine = {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__, "n": N, "d": D}
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine, **figures, **shares}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
