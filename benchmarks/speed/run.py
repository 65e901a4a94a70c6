"""Seconds of one noisy full-batch step on N = 50,000 rows of 2,048 features, against peers and the machine's limits.

    python benchmarks/speed/run.py [--quick] [--json FILE]

All contenders read the same rows in the same process; fast ones take several consecutive steps. Each round times all
contenders, further rounds time the fast ones, and the shortest time of each counts. `limit_*` is the larger of one read
of the rows at the measured bandwidth and the step's 4 N D C flops at the measured rate of matrix products.
`plain_matmul_float32` is a direct implementation in NumPy, without noise. `*_unfollowed` does not compute per-record
contributions. `sampled_q015_*` is a step of dp-sgd at q = 0.15, with its noise. `growth` has step times against N, D
and C, and the exponent of the power law in N. `--quick` takes fewer rounds and sizes, and fewer rows for 1,000 classes.
A full run takes half an hour, of which one step of per-example gradients takes five minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import peers
from numpy.typing import NDArray
from timing import Repeated, flags, machine, shortest

from linprobe.data.blocks import STORAGE, Precision, aligned_empty, narrowed, normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.methods import METHODS, Problem, Run, Schedule
from linprobe.parallel.threads import blas_held_to_one_thread

N, D, CLIP, SIGMA = 50_000, 2048, 0.5, 10.0
CLASSES = (10, 100, 1000)
QUICK_ROWS = {1000: 2_500}
ROUNDS, QUICK_ROUNDS = 5, 3
BUDGET, QUICK_BUDGET = 30.0, 6.0  # seconds per contender
LEAST, QUICK_LEAST = 6.0, 1.0  # seconds per contender, so that fast contenders are timed more often
GROWTH_CLASSES = 100
GROWTH = {
    "n": (6_250, 12_500, 25_000, 50_000, 100_000, 200_000),
    "d": (256, 512, 1024, 2048, 4096),
    "c": (2, 10, 32, 100, 320),
}
PRODUCT = (4096, 2048, 4096)  # rows, inner, columns of the matrix product that measures flops per second
SUBSPACES = (500, 2000)
PEERS = {
    "plain_matmul_float32": peers.plain_matmul,
    "opacus_ghost": peers.opacus_ghost,
    "opacus_hooks": peers.opacus_hooks,
    "jax_privacy": peers.jax_privacy,
}
FAST_PEERS = ("plain_matmul_float32", "opacus_ghost")
Step = Callable[[], object]


def steps_in_a_row(n_classes: int) -> int:
    """Number of consecutive steps: more if steps are fast, so that setup counts little, as in training."""
    return max(3, 100 // n_classes)


def method_step(name: str, problem: Problem, given: dict[str, Any], per_record: bool = True, rate: float = 1.0) -> Step:
    """Consecutive noisy steps of a method from zero weights, as in an estimator, at sampling rate `rate`."""
    method, count = METHODS[name], steps_in_a_row(problem.n_classes)
    options = method.make_options({"init": "zero", **given})
    schedule = Schedule(count, SIGMA, count**0.5 / SIGMA, rate)

    def steps() -> object:
        source = NoiseSource()
        mechanism = GaussianMechanism(source, lambda event: None)
        sampler = PoissonSampler(NoiseSource(insecure_seed=0), rate)  # the same samples in every run
        with blas_held_to_one_thread():
            return method.fit(problem, options, Run(schedule, mechanism, lambda: None, sampler, per_record))

    return Repeated(steps, count)


def in_a_row(step: Step, n_classes: int) -> Step:
    """The same number of consecutive steps of a peer."""
    count = steps_in_a_row(n_classes)
    return Repeated(lambda: [step() for _ in range(count)], count)


def stored(wide: NDArray[np.float32], precision: Precision) -> NDArray[Any]:
    """Rows in the storage type of `precision`, aligned, as in training."""
    x = aligned_empty(wide.shape, STORAGE[precision])
    x[:] = narrowed(wide, precision)
    return x


def noisy_gd(rows: ArrayRows, n_classes: int) -> Step:
    """Steps of noisy-gd on rows of any precision."""
    return method_step("noisy-gd", Problem(rows.n_features, n_classes, private=rows), {})


def ours(x: dict[str, NDArray[Any]], y: NDArray[np.int64], n_classes: int) -> dict[str, Step]:
    """noisy-gd and sampled dp-sgd for each precision of rows x, AdaMix for each subspace."""
    steps = {f"noisy_gd_{precision}": noisy_gd(ArrayRows(rows, y), n_classes) for precision, rows in x.items()}
    n, d = x["float32"].shape
    for precision, rows in x.items():
        sampled = Problem(d, n_classes, private=ArrayRows(rows, y))
        steps[f"sampled_q015_{precision}_unfollowed"] = method_step("dp-sgd", sampled, {}, False, 0.15)
    steps[f"sampled_q015_{precision}"] = method_step("dp-sgd", sampled, {}, rate=0.15)
    public = normalise_rows(np.random.default_rng(n).standard_normal((2 * n_classes, d), dtype=np.float32))
    public_rows = ArrayRows(public, np.arange(2 * n_classes) % n_classes)
    problem = Problem(d, n_classes, private=ArrayRows(x["float32"], y), public=public_rows)
    steps["adamix_float32"] = method_step("adamix", problem, {})
    for dim in SUBSPACES:
        inside = {"subspace": "gradient", "subspace_dim": dim}
        steps[f"adamix_gradient_p{dim}"] = method_step("adamix", problem, inside)
        steps[f"adamix_gradient_p{dim}_unfollowed"] = method_step("adamix", problem, inside, per_record=False)
    return steps


def theirs(x: NDArray[np.float32], y: NDArray[np.int64], n_classes: int, left_out: dict[str, str]) -> dict[str, Step]:
    """Steps of the installed peers. Adds the others to `left_out`, with the reason."""
    steps = {}
    for name, prepare in PEERS.items():
        try:
            step = prepare(x, y, n_classes, CLIP, SIGMA)
            steps[name] = in_a_row(step, n_classes) if name in FAST_PEERS else step
        except ImportError as error:
            left_out[name] = str(error)
    return steps


class Machine:
    """Lower bounds on the time of a step: reads of `x` (n, d) float32, and matrix products with all cores.

    Time `steps`, then give the times to `rates`.
    """

    def __init__(self, x: NDArray[np.float32]) -> None:
        self._bytes = x.nbytes
        rng = np.random.default_rng(1)
        n, inner, m = PRODUCT
        a = rng.standard_normal((n, inner), dtype=np.float32)
        b = rng.standard_normal((inner, m), dtype=np.float32)
        ones = np.ones(x.shape[1], dtype=np.float32)
        cores = machine()["cores"]
        pool = ThreadPoolExecutor(cores)
        parts = np.array_split(x.reshape(-1).view(np.uint64), cores)
        self.steps: dict[str, Step] = {"product_float32": lambda: a @ b}
        if {"avx512_bf16", "amx_bf16"} & set(flags()):  # without these instructions torch takes minutes
            import torch

            narrow_a, narrow_b = (torch.from_numpy(matrix).to(torch.bfloat16) for matrix in (a, b))
            self.steps["product_bfloat16"] = lambda: narrow_a @ narrow_b
        self.steps["read_blas"] = lambda: x @ ones
        self.steps["read_threads"] = lambda: list(pool.map(np.add.reduce, parts))

    def rates(self, seconds: dict[str, float]) -> dict[str, float]:
        """Bytes per second of reads, and flops per second by precision, from the times of `steps`."""
        flops = 2.0 * math.prod(PRODUCT)
        wide = flops / seconds["product_float32"]
        return {
            "bytes_per_second": self._bytes / min(seconds["read_blas"], seconds["read_threads"]),
            "float32_flops_per_second": wide,
            "bfloat16_flops_per_second": max(wide, flops / seconds.get("product_bfloat16", math.inf)),
        }


def limit(rates: dict[str, float], n: int, d: int, n_classes: int, precision: str = "float32") -> float:
    """Least seconds of a step: the larger of one read of the rows and the two products."""
    size = 4 if precision == "float32" else 2
    flops = 4.0 * n * d * n_classes
    return max(size * n * d / rates["bytes_per_second"], flops / rates[f"{precision}_flops_per_second"])


def measure(x: dict[str, NDArray[Any]], n_classes: int, quick: bool, left_out: dict[str, str]) -> dict[str, Any]:
    """Number of rows, rates, and seconds per step of each contender and limit, for `n_classes`."""
    n = QUICK_ROWS.get(n_classes, N) if quick else N
    y = np.random.default_rng(n_classes).integers(0, n_classes, n)
    bounds = Machine(x["float32"])
    taken = {precision: rows[:n] for precision, rows in x.items()}
    steps = ours(taken, y, n_classes) | theirs(taken["float32"], y, n_classes, left_out)
    rounds, budget, least = (QUICK_ROUNDS, QUICK_BUDGET, QUICK_LEAST) if quick else (ROUNDS, BUDGET, LEAST)
    seconds = shortest(bounds.steps | steps, rounds, budget, least)
    rates = bounds.rates(seconds)
    figures: dict[str, Any] = {"n": n, "rates": rates, **{name: seconds[name] for name in steps}}
    for precision in ("float32", "bfloat16"):
        figures[f"limit_{precision}"] = limit(rates, n, D, n_classes, precision)
    return figures


def growth(quick: bool, left_out: dict[str, str]) -> dict[str, Any]:
    """Seconds of noisy-gd and the limit, and without `quick` also of the fast peers, against N, D and C.

    Each round times all sizes of an axis, so that a slow minute affects all of them.
    """
    rivals = [] if quick else [name for name in FAST_PEERS if name not in left_out]
    sizes = {axis: values[::2] if quick else values for axis, values in GROWTH.items()}
    most = max(max(sizes["n"]) * D, N * max(sizes["d"]))
    raw = np.random.default_rng(2).standard_normal(most, dtype=np.float32)
    usual = {"n": N, "d": D, "c": GROWTH_CLASSES}
    found: dict[str, Any] = {}
    for axis, values in sizes.items():
        shapes = [tuple((usual | {axis: value}).values()) for value in values]
        most_rows = max(n for n, _, _ in shapes)
        rows = {d: normalise_rows(raw[: most_rows * d].reshape(most_rows, d)) for d in {d for _, d, _ in shapes}}
        bounds = Machine(rows[max(rows)])
        steps: dict[tuple[str, tuple[int, ...]], Step] = {}
        for n, d, n_classes in shapes:
            x, y = rows[d][:n], np.random.default_rng(3).integers(0, n_classes, n)
            steps["noisy_gd_float32", (n, d, n_classes)] = noisy_gd(ArrayRows(x, y), n_classes)
            for name in rivals:
                steps[name, (n, d, n_classes)] = in_a_row(PEERS[name](x, y, n_classes, CLIP, SIGMA), n_classes)
        seconds = shortest(bounds.steps | steps, QUICK_ROUNDS, BUDGET, QUICK_LEAST)
        rates = bounds.rates(seconds)
        series = {name: [seconds[name, shape] for shape in shapes] for name in ("noisy_gd_float32", *rivals)}
        series["limit_float32"] = [limit(rates, *shape) for shape in shapes]
        found[axis] = {"values": list(values), "seconds": series}
    found["n"]["exponent"] = exponent(sizes["n"], found["n"]["seconds"]["noisy_gd_float32"])
    print(f"\nnoisy-gd grows as N^{found['n']['exponent']:.3f}", flush=True)
    return {"usual": usual, **found}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Exponent p of the power law size^p, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def show(n_classes: int, figures: dict[str, Any]) -> None:
    """Print a table of seconds, and of ratios to the limit and to each peer."""
    rivals = [name for name in ("limit_float32", *PEERS) if name in figures]
    print(f"\nC = {n_classes}, N = {figures['n']:,}: seconds, and as a multiple of")
    print(f"{'':<34}{'seconds':>9}" + "".join(f"{name.removesuffix('_float32'):>14}" for name in rivals))
    for name, seconds in figures.items():
        if name not in ("n", "rates"):
            ratios = "".join(f"{seconds / figures[rival]:>14.3g}" for rival in rivals)
            print(f"{name:<34}{seconds:>9.4f}{ratios}", flush=True)


def main() -> None:
    """Measure, print the ratios, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    wide = normalise_rows(np.random.default_rng(0).standard_normal((N, D), dtype=np.float32))
    x = {precision: stored(wide, precision) for precision in STORAGE}
    left_out: dict[str, str] = {}
    results: dict[str, Any] = {"n": N, "d": D, "quick": arguments.quick}
    for n_classes in CLASSES:
        results[f"c{n_classes}"] = figures = measure(x, n_classes, arguments.quick, left_out)
        show(n_classes, figures)
    del x, wide
    gc.collect()
    results["growth"] = growth(arguments.quick, left_out)
    results["left_out"], results["machine"] = left_out, machine()
    for name, reason in left_out.items():
        print(f"{name} is left out: {reason}; pip install 'linprobe[bench]'")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
