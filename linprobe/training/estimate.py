"""How long a run will take, from one step on random rows of the same shape."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from linprobe.accounting.calibrate import Budget
from linprobe.data.precision import Precision
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

    Reading the rows, the first weights and what a method computes besides are left out.
    """
    rng = np.random.Generator(np.random.PCG64(0))
    n_timed = min(n_rows, TIMED_ROWS)
    x = normalise_rows(rng.standard_normal((n_timed, n_features), dtype=np.float32))
    rows = prepare(ArraySource(x, rng.integers(0, n_classes, n_timed)), Preprocessing(), precision)
    weights = np.zeros((n_features, n_classes))
    noise = NoiseSource()

    def gradient() -> None:
        clipped_sum(rows, weights, CLIP_NORM, per_record=per_record)

    gradient()  # loads what the first step loads
    read = n_rows if per_record else n_rows * budget.sampling_rate
    a_step = _seconds(gradient) * read / n_timed + _seconds(lambda: noise.add_noise(weights, 1.0))
    return a_step * budget.n_steps


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
