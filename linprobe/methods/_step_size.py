"""Step sizes from public facts: the budget, the steps, the numbers of rows and classes, and the public rows.

A step adds noise of std eta sigma tau / q to every weight, and so to the score of a unit row. Over T steps the std is
sqrt(T) eta sigma tau / q = T eta tau / mu. It equals s nats, the score noise, for

    eta_t = s mu / (T tau_t)

Each of the N / C rows of a class moves a weight by at most eta tau per step. So T steps move a score by at most s g
nats, with g = mu N / C the ratio of signal to noise. The default s is the lesser of

    w                 the weight of the private rows against what W_1 knows; if W_1 is zero, 1, as then a common factor
                      of all scores does not matter; for noisy-gd, g / 1000 from 1 to 2 around a mean, else g / 300
                      from 1 to 4
    3 b T / g         if rows are not centred: a step must not move scores by more than 3 b nats, or it oscillates along
                      the common mean of the rows; b = (1 + beta) / (1 - beta) for momentum beta

A score by W_1, from k public rows per class, has an error of 1 / sqrt(k d) relative to the signal of one row, if rows
spread over d directions; noise is 1 / g. The ratio of the two, with a factor that was measured, is the weight:

    w = min(1, g / (1.5 sqrt(k d))),    1 / d = mean squared cosine between two public rows around their mean

`docs/decisions/0022-score-noise.md` derives and measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from linprobe.data.rows import Rows
from linprobe.methods._base import Problem, Schedule
from linprobe.options import Steps
from linprobe.parallel.array_api import on_host

LARGEST_MOVE = 3.0
COLD_RATIO, LARGEST_COLD = 300.0, 4.0  # of damped descent from zero
CENTRED_RATIO, LARGEST_CENTRED = 1000.0, 2.0  # the same around a mean
START_FACTOR = 1.5
UNKNOWN_START = 100.0  # k d of a start that is not from public rows
STRONGEST_START = 1024.0  # largest k d, as public rows may be from another distribution
SPREAD_ROWS = 1000


def spread(public: Rows) -> float:
    """d: the number of directions over which public rows spread around their mean, from the first `SPREAD_ROWS` rows.

    Between n rows around their mean, cosines are -1 / (n - 1) on average, which is corrected.
    """
    taken, n_rows = [], 0
    for block in public.blocks():
        taken.append(on_host(block.x[: SPREAD_ROWS - n_rows]).astype(np.float64))
        n_rows += len(taken[-1])
        if n_rows >= SPREAD_ROWS:
            break
    x = np.concatenate(taken)
    x = x - x.mean(axis=0)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    cosines = (x @ x.T)[~np.eye(n_rows, dtype=bool)] + 1 / (n_rows - 1)
    return float(1 / np.clip(np.mean(cosines**2), 1 / public.n_features, 1))


def start_strength(problem: Problem) -> float:
    """The g at which private rows weigh as much as the start: 1.5 sqrt(k d)."""
    public, strength = problem.public, UNKNOWN_START
    if public is not None and public.n_rows > 1:
        strength = min(public.n_rows / problem.n_classes * spread(public), STRONGEST_START)
    return START_FACTOR * math.sqrt(strength)


def private_weight(problem: Problem, schedule: Schedule) -> float:
    """w: the weight of the private rows against what W_1 knows, in [0, 1]."""
    return min(1.0, schedule.nominal_mu * problem.private_rows.n_rows / problem.n_classes / start_strength(problem))


def score_noise(
    options: Steps,
    problem: Problem,
    schedule: Schedule,
    *,
    informed: bool,
    momentum: float = 0.0,
    row_norm: float = 1.0,
    damped: bool = False,
    preconditioned: bool = False,
) -> float:
    """s: that of `options`, or the default.

    Args:
        informed: whether W_1 is not zero, or public rows complete the weights afterwards.
        momentum: beta, if directions are exponential means of gradients.
        row_norm: typical norm of a row, if it is not 1; the default s is for rows of this norm.
        damped: whether steps on rows that are not centred are damped where they overshoot, so that they need no bound.
        preconditioned: whether steps are equally long in all directions in which rows spread, so that none overshoots.
    """
    if options.score_noise is not None:
        return options.score_noise
    ratio = schedule.nominal_mu * problem.private_rows.n_rows / problem.n_classes
    noise = 1.0
    if informed:
        noise = private_weight(problem, schedule)
    elif damped and problem.centred:
        noise = min(max(1.0, ratio / CENTRED_RATIO), LARGEST_CENTRED)
    elif damped:
        noise = min(max(1.0, ratio / COLD_RATIO), LARGEST_COLD)
    if not (problem.centred or damped or preconditioned) and ratio > 0:
        noise = min(noise, LARGEST_MOVE * (1 + momentum) / (1 - momentum) * schedule.n_steps / ratio)
    return noise / row_norm


def step_size(options: Steps, problem: Problem, schedule: Schedule, **facts: Any) -> Callable[[float], float]:
    """eta_t as a function of tau_t: the learning rate of `options`, or that of `score_noise`, which takes `facts`."""
    if options.learning_rate is not None:
        given = options.learning_rate
        return lambda clip_norm: given
    scale = score_noise(options, problem, schedule, **facts) * schedule.nominal_mu / schedule.n_steps
    return lambda clip_norm: scale / clip_norm
