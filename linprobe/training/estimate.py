"""How long a run will take, from one step on random rows of the same shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from linprobe.accounting.calibrate import Budget
from linprobe.data.blocks import Precision
from linprobe.data.preprocessing import Preprocessing, normalise_rows
from linprobe.data.rows import prepare
from linprobe.data.sources import ArraySource
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.mechanisms.noise import NoiseSource

TIMED_ROWS = 8192
CLIP_NORM = 0.5


def seconds_of_steps(
    budget: Budget, n_rows: int, n_features: int, n_classes: int, precision: Precision, *, per_record: bool
) -> float:
    """Seconds that the steps of `budget` take on the host, about: gradients of all rows that a step reads, and noise.

    Leaves out reading the rows, the initial weights, and other work of the method. Each shape is timed once.
    """
    n_timed = min(n_rows, TIMED_ROWS)
    gradient, noise = _one_step(n_timed, n_features, n_classes, precision, per_record)
    read = n_rows if per_record else n_rows * budget.sampling_rate
    return (gradient * read / n_timed + noise) * budget.n_steps


@cache
def _one_step(
    n_rows: int, n_features: int, n_classes: int, precision: Precision, per_record: bool
) -> tuple[float, float]:
    """Seconds of the clipped sum of `n_rows` random rows, and of its noise."""
    rng = np.random.Generator(np.random.PCG64(0))
    x = normalise_rows(rng.standard_normal((n_rows, n_features), dtype=np.float32))
    rows = prepare(ArraySource(x, rng.integers(0, n_classes, n_rows)), Preprocessing(), precision)
    weights = np.zeros((n_features, n_classes))
    source = NoiseSource()

    def gradient() -> None:
        clipped_sum(rows, weights, CLIP_NORM, per_record=per_record)

    gradient()  # loads what the first step loads
    return _seconds(gradient), _seconds(lambda: source.add_noise(weights, 1.0))


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
