"""Calibration: a target (epsilon, delta) to steps or noise, always rounded to the safe side."""

from __future__ import annotations

import math
from dataclasses import dataclass

from linprobe.accounting.accountants import epsilon_of
from linprobe.errors import ParameterError, PrivacyError, UsageError

MAX_EPSILON = 100.0
DEFAULT_DELTA = 1e-5
DEFAULT_STEPS = 50
MAX_STEPS = 1_000_000
MAX_SIGMA = 1e9


@dataclass(frozen=True, slots=True)
class Budget:
    """A calibrated full-batch run.

    Attributes:
        epsilon_target, delta: what was asked for.
        n_steps: releases the run will make.
        noise_multiplier: noise standard deviation divided by the clip norm, dimensionless.
    """

    epsilon_target: float
    delta: float
    n_steps: int
    noise_multiplier: float

    @property
    def gdp_mu(self) -> float:
        """mu = sqrt(T) / sigma of the whole run."""
        return math.sqrt(self.n_steps) / self.noise_multiplier


def check_epsilon(epsilon: float | None) -> float:
    """`epsilon` if it is a number in (0, 100]; otherwise ParameterError."""
    if epsilon is None or not 0 < epsilon <= MAX_EPSILON:
        raise ParameterError(
            f"epsilon is {epsilon}; allowed: a number above 0 and at most {MAX_EPSILON:g} "
            "(for no privacy at all, use the method non-private)"
        )
    return float(epsilon)


def check_delta(delta: float, n_private: int) -> float:
    """`delta` if it lies in (0, 1/n_private); otherwise an error that says so."""
    if not 0 < delta < 1:
        raise ParameterError(f"delta is {delta}; allowed: a number above 0 and below 1/N_private")
    if delta * n_private >= 1:
        raise PrivacyError(
            f"delta is {delta:g}, but with {n_private} private rows it must be below 1/N = {1 / n_private:.3g}; "
            f"try --delta {0.1 / n_private:.0e}"
        )
    return float(delta)


def largest_mu(epsilon: float, delta: float) -> float:
    """Largest mu, to about one part in 10^12 below, whose exact epsilon at `delta` is at most `epsilon`."""
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if epsilon_of(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def _round_up(value: float, digits: int = 8) -> float:
    """`value` rounded up to `digits` significant digits, so that a printed multiplier is the one used."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    rounded = math.ceil(value * scale) / scale
    return rounded if rounded >= value else math.nextafter(value, math.inf)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    n_private: int,
    noise_multiplier: float | None = None,
    steps: int | None = None,
) -> Budget:
    """Steps from a noise multiplier, or a noise multiplier from steps (50 when neither is given).

    Guarantee: the exact epsilon of `n_steps` Gaussian releases at `noise_multiplier` is at most `epsilon`.

    Args:
        epsilon: target, in (0, 100].
        delta: target, in (0, 1/n_private).
        n_private: number of private records, treated as public.
        noise_multiplier: noise std divided by the clip norm; the number of steps is then rounded down.
        steps: number of releases; the multiplier is then rounded up.

    Raises:
        ParameterError: a value outside its range. UsageError: both `noise_multiplier` and `steps`.
        PrivacyError: `delta >= 1/n_private`, or a multiplier too small for even one step.
    """
    epsilon = check_epsilon(epsilon)
    delta = check_delta(delta, n_private)
    if noise_multiplier is not None and steps is not None:
        raise UsageError(
            f"sigma {noise_multiplier} and steps {steps} were both given, and epsilon already fixes one from the "
            "other; give one of the two"
        )
    mu = largest_mu(epsilon, delta)
    if noise_multiplier is None:
        n_steps = DEFAULT_STEPS if steps is None else steps
        if not 1 <= n_steps <= MAX_STEPS:
            raise ParameterError(f"steps is {n_steps}; allowed: a whole number from 1 to {MAX_STEPS}")
        sigma = _round_up(math.sqrt(n_steps) / mu)
    else:
        sigma = float(noise_multiplier)
        if not 0 < sigma <= MAX_SIGMA:
            raise ParameterError(f"sigma is {sigma}; allowed: a number above 0 and at most {MAX_SIGMA:g}")
        n_steps = math.floor((mu * sigma) ** 2 * (1 + 1e-12))
        if n_steps > MAX_STEPS:
            raise ParameterError(f"sigma {sigma:g} allows {n_steps} steps; allowed: at most {MAX_STEPS}; lower sigma")
    while n_steps > 0 and epsilon_of(math.sqrt(n_steps) / sigma, delta) > epsilon:
        if noise_multiplier is None:
            sigma = math.nextafter(sigma, math.inf)
        else:
            n_steps -= 1
    if n_steps < 1:
        raise PrivacyError(
            f"sigma {sigma:g} is too small for even one step at epsilon {epsilon:g}, delta {delta:g}; "
            f"one step needs sigma of at least {_round_up(1 / mu, 4):g}"
        )
    return Budget(epsilon, delta, n_steps, sigma)
