"""Seconds of one step of each iterative method, in units of a step of noisy-gd, on the same rows in one process.

    python benchmarks/speed/methods.py [--quick] [--json FILE]

N = 50,000 private and 204 public rows of D = 2,048 float32 features, C = 100 classes. Methods with Poisson sampling use
all rows (q = 1), so that the ratio does not depend on the sample. `dp-sgd` is also timed at smaller q, with and without
per-record losses, in units of q times the full step. The time of a step is the difference of a run of several steps and
a run of one, which excludes warm starts; the fewer rows a step reads, the more steps. Each contender runs once per
round, in random order; the shortest time counts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random

import numpy as np
from timing import shortest

from linprobe.data.blocks import normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.methods import METHODS, Problem, Run, Schedule
from linprobe.parallel.threads import blas_held_to_one_thread

N, N_PUBLIC, D, C, SIGMA = 50_000, 204, 2048, 100, 10.0
STEPS = 4  # that read all rows
FULL = ("noisy-gd", "dp-sgd", "dpsgd-f", "mirror-descent", "dope-sgd", "adadps")
RATES = (0.05, 0.15, 0.4)


def problem() -> Problem:
    """Random unit rows with random labels."""
    rng = np.random.default_rng(0)
    x = normalise_rows(rng.standard_normal((N + N_PUBLIC, D), dtype=np.float32))
    y = rng.integers(0, C, N + N_PUBLIC)
    return Problem(D, C, private=ArrayRows(x[:N], y[:N]), public=ArrayRows(x[N:], y[N:]))


def seconds(data: Problem, name: str, rate: float, n_steps: int, per_record: bool) -> float:
    """Wall time of a run of `n_steps` from zero weights."""
    method = METHODS[name]
    options = method.make_options({"init": "zero"})
    others = {share.purpose: SIGMA for share in method.shares(options)}
    schedule = Schedule(n_steps, SIGMA, 1.0, rate, others)
    source = NoiseSource()
    run = Run(
        schedule,
        GaussianMechanism(source, lambda event: None),
        lambda: None,
        PoissonSampler(source, rate),
        per_record,
    )
    with blas_held_to_one_thread():  # as `train` does
        start = time.perf_counter()
        method.fit(data, options, run)
        return time.perf_counter() - start


def step_seconds(data: Problem, contenders: dict[str, tuple[str, float, bool]], rounds: int) -> dict[str, float]:
    """Shortest difference of runs of 1 + n steps and of one step, divided by n, by contender."""
    least = dict.fromkeys(contenders, float("inf"))
    orders = Random(0)
    for _ in range(rounds):
        for label in orders.sample(list(contenders), len(contenders)):
            name, rate, per_record = contenders[label]
            more = STEPS if per_record else round(STEPS / rate)
            short, long = (seconds(data, name, rate, n, per_record) for n in (1, 1 + more))
            least[label] = min(least[label], (long - short) / more)
    return least


def main() -> None:
    """Measure, print a line per contender, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    data = problem()
    contenders = {name: (name, 1.0, True) for name in FULL}
    for rate in RATES:
        contenders[f"dp-sgd q={rate:g}"] = ("dp-sgd", rate, False)
        contenders[f"dp-sgd q={rate:g} per record"] = ("dp-sgd", rate, True)
    found = step_seconds(data, contenders, 2 if arguments.quick else 6)
    source, zeros = NoiseSource(), np.zeros((D, C))
    with blas_held_to_one_thread():
        noise = shortest({"noise": lambda: source.add_noise(zeros, 1.0)}, 5)["noise"]
    results = []
    for label, (_, rate, _) in contenders.items():
        multiple = found[label] / found["noisy-gd"]
        results.append({"step": label, "seconds": found[label], "multiple": multiple, "over_q": multiple / rate})
        print(f"{label:<28} {found[label]:.4f} s  {multiple:.2f} x noisy-gd  {multiple / rate:.2f} per q", flush=True)
    print(f"noise alone                  {noise:.4f} s")
    if arguments.json:
        document = {"n": N, "d": D, "c": C, "n_public": N_PUBLIC, "noise_seconds": noise, "results": results}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
