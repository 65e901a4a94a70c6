"""Estimates for a billion rows: bytes, steps, machines, failures, noise and limits, from stated inputs.

    python benchmarks/scale/simulate.py [--json FILE]             # the tables of docs/billion-rows.md
    python benchmarks/scale/simulate.py --measure [--json FILE]   # seconds of linprobe's steps on this machine

The tables are formulas over the inputs below, which are data-sheet figures; nothing in them is measured. Failures are
also simulated, machine by machine, to check the formula. `--measure` times steps on 100,000 to a million random rows of
1,024 features; it takes about ten minutes and 6 GB of memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.calibrate import calibrate
from linprobe.accounting.figures import epsilon_of
from linprobe.accounting.per_instance import ORDERS
from linprobe.data.blocks import BLOCK_ROWS, narrowed, normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.gradients.clipped_sum import WEIGHT_STEPS, clipped_sum
from linprobe.gradients.rounding import SMALLEST_MARGIN
from linprobe.mechanisms.gaussian import LEVELS
from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource

N, D = 10**9, 1024
CLASSES = (10, 100, 1000)
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STEPS = 50
USABLE = 0.8  # share of a machine's memory for rows
EPSILONS = (0.1, 1.0, 3.0, 8.0)
DELTAS = (1e-5, 1e-10)
MEASURED_ROWS = (100_000, 200_000, 500_000, 1_000_000)


@dataclass(frozen=True)
class Machine:
    """A machine by its data sheet: memory in bytes, its bandwidth in bytes/s, dense products in flop/s."""

    memory: float
    bandwidth: float
    flops: float


MACHINES = {
    # 12 channels of DDR5-4800; 96 cores at the base clock of 2.4 GHz, 32 float32 flops a cycle each
    "CPU node (one EPYC 9654, 768 GB), float32": Machine(768e9, 460.8e9, 96 * 2.4e9 * 32),
    "H100 SXM, float32": Machine(80e9, 3.35e12, 67e12),
    "H200 SXM, float32": Machine(141e9, 4.8e12, 67e12),
}
# 419 unexpected stops of 16,384 GPUs in 54 days: Llama Team 2024, "The Llama 3 Herd of Models", section 3.3.4
MTBF = 16_384 * 54 * 86_400 / 419
SAVING, RESTART = 10.0, 300.0  # seconds, assumed; a restart reads the rows again
FAILING = tuple((machines, hours) for machines in (4, 32, 256, 4096) for hours in (1, 24))
TRIALS = 4000


def stored(precision: str) -> float:
    """Bytes of all rows."""
    return float(N * D * BYTES[precision])


def flops(n_classes: int) -> float:
    """Flops of a step: two products of 2 N D C each."""
    return 4.0 * N * D * n_classes


def machines_for_rows(machine: Machine) -> int:
    """Number of machines whose memory holds all rows in bfloat16."""
    return math.ceil(stored("bfloat16") / (USABLE * machine.memory))


def step_limit(machine: Machine, n_classes: int) -> float:
    """Least machine-seconds of a step: the larger of one read of the rows and the products at the full rate."""
    return max(stored("bfloat16") / machine.bandwidth, flops(n_classes) / machine.flops)


def expected_seconds(work: float, interval: float, rate: float) -> float:
    """Mean wall time of `work` seconds with a checkpoint every `interval` seconds, at `rate` failures per second.

    Daly 2006. Restarts do not fail, and there is a checkpoint at the end.
    """
    intervals = work / interval
    return intervals * (1 / rate + RESTART) * math.expm1(rate * (interval + SAVING))


def simulated_seconds(
    work: float, interval: float, n_machines: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Mean wall time of `TRIALS` runs, its standard error, and the share of runs without a failure.

    Machines fail independently. The first failure stops all machines, and work since the last checkpoint is lost.
    """
    times, untouched = [], 0
    intervals = round(work / interval)
    for _ in range(TRIALS):
        clock, done, failures = 0.0, 0, 0
        while True:
            until = -MTBF * math.log1p(-float(rng.random(n_machines).min()))
            reached = int(until // (interval + SAVING))
            if done + reached >= intervals:
                clock += (intervals - done) * (interval + SAVING)
                break
            done += reached
            clock += until + RESTART
            failures += 1
        times.append(clock)
        untouched += failures == 0
    return float(np.mean(times)), float(np.std(times) / math.sqrt(TRIALS)), untouched / TRIALS


@cache
def failures() -> list[dict[str, float]]:
    """Probability of a stop, Young's interval, and overhead by formula and simulation, for each run of `FAILING`."""
    rng = np.random.default_rng(0)
    found = []
    for n_machines, hours in FAILING:
        work, rate = 3600.0 * hours, n_machines / MTBF
        young = math.sqrt(2 * SAVING / rate)
        interval = work / math.ceil(work / young)
        mean, error, untouched = simulated_seconds(work, interval, n_machines, rng)
        found.append(
            {
                "machines": n_machines,
                "hours": hours,
                "stopped": -math.expm1(-rate * (work + SAVING * work / interval)),
                "stopped_simulated": 1 - untouched,
                "interval": young,
                "lost": interval / 2,
                "overhead": expected_seconds(work, interval, rate) / work - 1,
                "overhead_simulated": mean / work - 1,
                "overhead_error": error / work,
                "overhead_unsaved": (1 / rate + RESTART) * math.expm1(rate * work) / work - 1,
            }
        )
    return found


def budgets() -> list[dict[str, float]]:
    """Noise of `STEPS` full-batch releases by epsilon and delta; epsilon of the first noise at the second delta."""
    found = []
    for epsilon in EPSILONS:
        sigmas = [
            calibrate(epsilon=epsilon, delta=d, n_private=int(0.1 / d), steps=STEPS).noise_multiplier for d in DELTAS
        ]
        found.append(
            {
                "epsilon": epsilon,
                "sigma_large_delta": sigmas[0],
                "sigma_small_delta": sigmas[1],
                "epsilon_of_same_noise": epsilon_of(math.sqrt(STEPS) / sigmas[0], DELTAS[1]),
            }
        )
    return found


def limits() -> dict[str, float]:
    """Number of rows at which a numeric limit of linprobe is reached."""
    return {
        "rows of one Poisson draw": float(WORDS_PER_BLOCK << 32),
        "rows of an exact sum of clip factors": 2.0**53 / float(WEIGHT_STEPS),
        **{
            f"rows at which the grid of exact sums costs 0.1 % of the clip norm, C = {c}": 2.0**52
            * SMALLEST_MARGIN
            / math.sqrt(D * c)
            for c in CLASSES
        },
    }


def per_row() -> dict[str, tuple[float, bool]]:
    """Bytes per row besides its features, and whether rank 0 gathers them."""
    return {
        "label, norm": (16, False),
        "contribution to a step": (8, False),
        "mu of a full-batch run": (8, True),
        "counters of a sampled run": (2 * (LEVELS + 1), True),
        "Renyi divergences of a sampled run": (4 * len(ORDERS), True),
        "record id of 12 letters, as a Python string in a list": (61 + 8, True),
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def duration(seconds: float) -> str:
    """A duration with three digits, in a suitable unit."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * (2 if size > 1 else 1):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def percent(value: float) -> str:
    """A percentage, with two digits below 100 %."""
    return f"{100 * value:.2g} %" if value < 1 else f"{100 * value:.0f} %"


def tables() -> Iterator[str]:
    """The tables of docs/billion-rows.md, in order."""
    yield table(
        ["machine", "hold the rows", *(f"step, C = {c}" for c in CLASSES), *(f"for 1 s, C = {c}" for c in CLASSES)],
        [
            [
                name,
                str(machines_for_rows(machine)),
                *(duration(step_limit(machine, c) / machines_for_rows(machine)) for c in CLASSES),
                *(str(max(machines_for_rows(machine), math.ceil(step_limit(machine, c)))) for c in CLASSES),
            ]
            for name, machine in MACHINES.items()
        ],
    )
    yield table(
        [
            "machines, hours of work",
            "stopped at least once",
            "Young's interval",
            "lost per failure",
            "overhead",
            "never saving",
        ],
        [
            [
                f"{one['machines']:.0f}, {one['hours']:.0f} h",
                percent(one["stopped"]),
                duration(one["interval"]),
                duration(one["lost"]),
                percent(one["overhead"]),
                percent(one["overhead_unsaved"]),
            ]
            for one in failures()
        ],
    )
    yield table(
        [
            "epsilon",
            *(f"sigma at delta {d:g}" for d in DELTAS),
            f"epsilon of the first sigma at delta {DELTAS[1]:g}",
            "noise of the run, in records",
        ],
        [
            [
                f"{one['epsilon']:g}",
                f"{one['sigma_large_delta']:.4g}",
                f"{one['sigma_small_delta']:.4g}",
                f"{one['epsilon_of_same_noise']:.3g}",
                f"{one['sigma_small_delta'] / math.sqrt(STEPS):.3g}",
            ]
            for one in budgets()
        ],
    )
    yield table(
        ["what a row has besides features", "bytes", "at a billion rows", "where"],
        [
            [what, f"{size:g}", f"{size * N / 1e9:.0f} GB", "all at rank 0" if gathered else "spread over ranks"]
            for what, (size, gathered) in per_row().items()
        ],
    )
    yield table(["limit", "rows"], [[what, f"{rows:.2g}"] for what, rows in limits().items()])


def best(call: Callable[[], object], rounds: int = 3) -> float:
    """Shortest wall time of `call`, seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure() -> dict[str, Any]:
    """Seconds of steps on this machine, their growth with the number of rows, and rates of reads, hashes and noise."""
    rng = np.random.default_rng(0)
    x = np.empty((MEASURED_ROWS[-1], D), dtype=np.float32)
    for start in range(0, len(x), BLOCK_ROWS):
        block = x[start : start + BLOCK_ROWS]
        block[:] = normalise_rows(rng.standard_normal(block.shape, dtype=np.float32))
    found: dict[str, Any] = {"cpus": len(os.sched_getaffinity(0)), "d": D, "steps": []}
    for precision in ("float32", "bfloat16"):
        for c in CLASSES:
            y = rng.integers(0, c, len(x))
            weights = 0.1 * rng.standard_normal((D, c))
            sizes = [n for n in MEASURED_ROWS if n * c <= 2e8]
            seconds = []
            for n in sizes:
                narrow = x[:n] if precision == "float32" else narrowed(x[:n], "bfloat16")
                rows = ArrayRows(narrow, y[:n])
                seconds.append(best(lambda rows=rows, weights=weights: clipped_sum(rows, weights, 0.5)))
            slope, _ = np.polyfit(np.log(sizes), np.log(seconds), 1)
            a_row = seconds[-1] / sizes[-1]
            step = {"precision": precision, "classes": c, "rows": sizes, "seconds": seconds}
            found["steps"].append({**step, "exponent": float(slope), "seconds_a_billion": a_row * N})
            print(f"{precision:<9} C={c:<5} exponent {slope:.3f}   a billion rows: {duration(a_row * N)}", flush=True)
    source, hashed = NoiseSource(), x[:BLOCK_ROWS].tobytes()
    found["read_bytes_a_second"] = x.nbytes / best(lambda: x @ np.ones(D, dtype=np.float32))
    found["sha256_bytes_a_second"] = 50 * len(hashed) / best(lambda: [hashlib.sha256(hashed) for _ in range(50)])
    found["normals_a_second"] = 10**6 / best(lambda: source.add_noise(np.zeros(10**6), 1.0))
    found["tosses_a_second"] = 10**7 / best(lambda: source.bernoulli(0.01, 10**7))
    return found


def main() -> None:
    """Print the tables, or measure; write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.measure:
        result = measure()
    else:
        print("\n".join(tables()))
        result = {
            "inputs": {
                "n": N,
                "d": D,
                "classes": CLASSES,
                "machines": {name: vars(machine) for name, machine in MACHINES.items()},
                "mtbf_seconds": MTBF,
                "saving_seconds": SAVING,
                "restart_seconds": RESTART,
                "steps": STEPS,
            },
            "bytes": {precision: stored(precision) for precision in BYTES},
            "flops": {str(c): flops(c) for c in CLASSES},
            "machines": [
                {
                    "machine": name,
                    "hold_the_rows": machines_for_rows(machine),
                    "machine_seconds_a_step": {str(c): step_limit(machine, c) for c in CLASSES},
                }
                for name, machine in MACHINES.items()
            ],
            "failures": failures(),
            "budgets": budgets(),
            "bytes_a_row": {what: size for what, (size, _) in per_row().items()},
            "limits": limits(),
        }
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
