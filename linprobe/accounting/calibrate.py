"""Calibration: from a target (epsilon, delta) to steps or noise, rounded so that the target is never exceeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import scipy

from linprobe.accounting.accountants import (
    CROSS_CHECKS,
    accountants_agree,
    choose_accountant,
    composed_epsilon,
    gdp_mu,
)
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.gaussian_dp import largest_mu
from linprobe.errors import ParameterError, PrivacyError, UsageError
from linprobe.options import DEFAULT_STEPS
from linprobe.options import MAX_EPSILON as MAX_EPSILON
from linprobe.options import MAX_SIGMA as MAX_SIGMA
from linprobe.options import MAX_STEPS as MAX_STEPS

GRADIENT = "gradient"
LARGEST_SPENT = 0.99
BRACKET = 0.1
ROOT_TOLERANCE = 3e-5
SLOPE_STEP = 1e-3
SAFE_SIDE = 2e-6  # more than the secant misses
LEAST_DELTA = 1e-13
LEAST_SHARE = 0.5  # of a target that a calibrated run must spend
CUSTOMARY_SHARE = 0.1  # of 1/n_private; a larger delta is warned of
SMALLEST_GUESS = 0.04  # below, exp(1 / sigma^2) overflows


@dataclass(frozen=True, slots=True)
class Budget:
    """A calibrated run.

    Attributes:
        epsilon_target, delta: the target.
        n_steps: gradient releases the run will make.
        noise_multiplier: their noise standard deviation divided by the clip norm, dimensionless.
        sampling_rate: Poisson probability with which a record joins a step; 1 for all rows.
        accountant: the accountant of record, a key of `ACCOUNTANTS`.
        others: releases besides the steps, e.g. a private mean, or those of an earlier run.
    """

    epsilon_target: float
    delta: float
    n_steps: int
    noise_multiplier: float
    sampling_rate: float = 1.0
    accountant: str = "gdp"
    others: tuple[Releases, ...] = ()

    @property
    def releases(self) -> tuple[Releases, ...]:
        """Everything the run will release."""
        return (*self.others, _steps(self.noise_multiplier, self.sampling_rate, self.n_steps))

    @property
    def nominal_mu(self) -> float:
        """q sqrt(T) / sigma: signal over noise of the summed steps; the GDP parameter if q = 1."""
        return self.sampling_rate * math.sqrt(self.n_steps) / self.noise_multiplier


def _steps(noise_multiplier: float, sampling_rate: float, n_steps: int) -> Releases:
    return Releases(GRADIENT, noise_multiplier, sampling_rate, n_steps)


def check_epsilon(epsilon: float | None) -> float:
    """`epsilon` if it is a number in (0, 100]; otherwise ParameterError."""
    if epsilon is None or not 0 < epsilon <= MAX_EPSILON:
        raise ParameterError(
            f"epsilon is {epsilon}; allowed: a number above 0 and at most {MAX_EPSILON:g} "
            "(for no privacy at all, use the method non-private)"
        )
    return float(epsilon)


def check_delta(delta: float, n_private: int) -> float:
    """`delta` if it lies in [`LEAST_DELTA`, 1/n_private); otherwise an error that says so."""
    if not LEAST_DELTA <= delta < 1:
        raise ParameterError(
            f"delta is {delta}; allowed: at least {LEAST_DELTA:g}, as privacy-loss distributions resolve no less, and "
            f"below 1/N_private = {1 / n_private:.3g}"
        )
    if delta * n_private >= 1:
        raise PrivacyError(
            f"delta is {rounded_up(delta)}, but with {n_private} private rows it must be below 1/N = "
            f"{1 / n_private:.3g}; try --delta {_one_digit_below(CUSTOMARY_SHARE / n_private)}"
        )
    return float(delta)


def large_delta(delta: float, n_private: int) -> str | None:
    """One line of warning if `delta` lies above a tenth of 1/n_private and below 1/n_private; else None."""
    if not CUSTOMARY_SHARE < delta * n_private < 1:
        return None
    return (
        f"delta {rounded_up(delta)} is {delta * n_private:.2g}/N for {n_private} private rows; customary: at most "
        f"{CUSTOMARY_SHARE:g}/N, as a delta near 1/N permits to publish whole records; try --delta "
        f"{_one_digit_below(CUSTOMARY_SHARE / n_private)}"
    )


def _one_digit_below(value: float) -> str:
    """`value` rounded down to one significant digit."""
    scale = 10.0 ** math.floor(math.log10(value))
    return f"{math.floor(value / scale * (1 + 1e-12)) * scale:.0e}"


def check_sampling_rate(rate: float) -> float:
    """`rate` if it lies in (0, 1]; otherwise ParameterError."""
    if not 0 < rate <= 1:
        raise ParameterError(f"sampling rate is {rate}; allowed: a number above 0 and at most 1")
    return float(rate)


def check_sigma(noise_multiplier: float) -> float:
    """`noise_multiplier` if it lies in (0, `MAX_SIGMA`]; otherwise ParameterError."""
    if not 0 < noise_multiplier <= MAX_SIGMA:
        raise ParameterError(f"sigma is {noise_multiplier}; allowed: a number above 0 and at most {MAX_SIGMA:g}")
    return float(noise_multiplier)


def check_steps(n_steps: int) -> int:
    """`n_steps` if it is a whole number from 1 to `MAX_STEPS`; otherwise ParameterError."""
    if n_steps != int(n_steps) or not 1 <= n_steps <= MAX_STEPS:
        raise ParameterError(f"steps is {n_steps}; allowed: a whole number from 1 to {MAX_STEPS}")
    return int(n_steps)


def round_up(value: float, digits: int = 8) -> float:
    """`value` rounded up to `digits` significant digits, so that a printed multiplier is the one used."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    rounded = math.ceil(value * scale) / scale
    return rounded if rounded >= value else math.nextafter(value, math.inf)


def smallest_multiplier(
    epsilon_at: Callable[[float], float],
    epsilon: float,
    guess: float,
    roughly: Callable[[float], float] | None = None,
) -> float:
    """Smallest noise multiplier, to about three parts in 10^5 above, with `epsilon_at(multiplier) <= epsilon`.

    `epsilon_at` falls with the multiplier. `guess`, and `roughly`, a faster approximation of `epsilon_at`, only save
    evaluations.

    Raises:
        PrivacyError: no multiplier up to `MAX_SIGMA` is enough, since the accountant is too coarse for a small target.
    """
    if roughly is None:
        log_sigma = _root(epsilon_at, epsilon, guess)
    else:
        rough = _root(roughly, epsilon, guess)
        here, beyond = (roughly(math.exp(place)) for place in (rough, rough + SLOPE_STEP))
        slope = math.log(here / beyond) / SLOPE_STEP if min(here, beyond) > 0 else 0.0
        found = epsilon_at(math.exp(rough))
        log_sigma = rough + math.log(found / epsilon) / slope if slope > 0 and 0 < found < math.inf else rough
    sigma = round_up(math.exp(log_sigma + SAFE_SIDE))
    while epsilon_at(sigma) > epsilon:
        sigma = round_up(sigma * math.exp(ROOT_TOLERANCE))
    return sigma


def _root(epsilon_at: Callable[[float], float], epsilon: float, guess: float) -> float:
    """Logarithm of the multiplier at which `epsilon_at` is `epsilon`, to `ROOT_TOLERANCE`. Errors as its caller's."""

    def excess(log_sigma: float) -> float:
        return min(epsilon_at(math.exp(log_sigma)), 10 * epsilon) - epsilon

    low = high = math.log(guess)
    reach = BRACKET
    while excess(high) > 0:
        if high > math.log(MAX_SIGMA):
            raise PrivacyError(
                f"epsilon is {rounded_up(epsilon)}, and the accountant finds more at every noise multiplier up to "
                f"{MAX_SIGMA:g}; allowed: a larger epsilon; raise --eps or --delta, or choose another accountant"
            )
        low, high, reach = high, high + reach, 2 * reach
    while low == high or excess(low) <= 0:
        high, low, reach = low, low - reach, 2 * reach
    root, result = scipy.optimize.brentq(excess, low, high, xtol=ROOT_TOLERANCE, full_output=True)
    if not result.converged:
        raise PrivacyError(
            f"no noise multiplier found for epsilon {rounded_up(epsilon)}; give --sigma; please report this"
        )
    return float(root)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    n_private: int,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    default_steps: int = DEFAULT_STEPS,
    sampling_rate: float = 1.0,
    accountant: str = "auto",
    others: Sequence[Releases] = (),
) -> Budget:
    """Steps from a noise multiplier, or a noise multiplier from steps (`default_steps` when neither is given).

    Guarantee: by the accountant chosen, the epsilon of `n_steps` Gaussian releases on Poisson samples at
    `noise_multiplier`, composed with `others`, is at most `epsilon`.

    Args:
        epsilon: target, in (0, 100].
        delta: target, in [`LEAST_DELTA`, 1/n_private).
        n_private: number of private records, treated as public.
        noise_multiplier: noise std divided by the clip norm; the number of steps is then rounded down.
        steps: number of releases; the multiplier is then rounded up.
        sampling_rate: q, in (0, 1].
        accountant: `auto`, or one of `ACCOUNTANTS`.
        others: further releases that the same budget pays for.

    Raises:
        ParameterError: a value outside its range. UsageError: both `noise_multiplier` and `steps`.
        PrivacyError: `delta >= 1/n_private`, a multiplier too small for one step, or `others` that cost too much.
    """
    epsilon = check_epsilon(epsilon)
    delta = check_delta(delta, n_private)
    rate = check_sampling_rate(sampling_rate)
    if noise_multiplier is not None and steps is not None:
        raise UsageError(
            f"sigma {noise_multiplier} and steps {steps} were both given, and epsilon already fixes one from the "
            "other; give one of the two"
        )
    others = tuple(others)
    judge = choose_accountant(accountant, (*others, _steps(1.0, rate, 1)))

    def epsilon_with(sigma: float, n_steps: int, *, rough: bool = False) -> float:
        return composed_epsilon((*others, _steps(sigma, rate, n_steps)), delta, judge, rough=rough)

    spent = composed_epsilon(others, delta, judge)
    affordable = spent <= LARGEST_SPENT * epsilon
    left = largest_mu(epsilon, delta) ** 2 - _mu_spent(others, spent, delta, judge) ** 2 if affordable else 0.0
    if left <= 0:
        raise PrivacyError(
            f"epsilon is {rounded_up(epsilon)}, and {', '.join(sorted({release.purpose for release in others}))} "
            f"releases alone cost {rounded_up(spent)}; allowed: at least 1 % more than that; raise --eps"
        )

    def least_multiplier(n_steps: int) -> float:
        guess = _multiplier_of(left / n_steps, rate)
        if judge != "gdp":
            sigma = smallest_multiplier(
                lambda sigma: epsilon_with(sigma, n_steps),
                epsilon,
                guess,
                lambda sigma: epsilon_with(sigma, n_steps, rough=True),
            )
            if epsilon_with(sigma, n_steps) < LEAST_SHARE * epsilon:
                raise PrivacyError(
                    f"epsilon is {rounded_up(epsilon)}, and accountant {judge} falls from more than that to "
                    f"{rounded_up(epsilon_with(sigma, n_steps))} at noise multiplier {sigma:.4g}: it resolves nothing "
                    "between; allowed: a larger epsilon or delta, or another accountant"
                )
            return sigma
        sigma = round_up(guess)
        while epsilon_with(sigma, n_steps) > epsilon:
            sigma = math.nextafter(sigma, math.inf)
        return sigma

    if noise_multiplier is None:
        n_steps = check_steps(default_steps if steps is None else steps)
        return _cross_checked(Budget(epsilon, delta, n_steps, least_multiplier(n_steps), rate, judge, others))
    sigma = check_sigma(noise_multiplier)
    n_steps = _largest_count(lambda count: epsilon_with(sigma, count), epsilon, left / _squared_mu(sigma, rate))
    if n_steps > MAX_STEPS:
        raise ParameterError(
            f"sigma {sigma:g} allows more than {MAX_STEPS} steps; allowed: at most {MAX_STEPS}; lower sigma"
        )
    if n_steps < 1:
        least = least_multiplier(1)
        raise PrivacyError(
            f"sigma {sigma:g} is too small for even one step at epsilon {rounded_up(epsilon)}, "
            f"delta {rounded_up(delta)}; one step needs sigma of at least {round_up(least, 4):g}"
        )
    return _cross_checked(Budget(epsilon, delta, n_steps, sigma, rate, judge, others))


def _cross_checked(budget: Budget) -> Budget:
    """Return `budget`, or raise PrivacyError if its accountant and the cross-check disagree.

    Gaussian DP has a closed form, so only `verify` cross-checks it.
    """
    judge = budget.accountant
    if judge == "gdp":
        return budget
    record = composed_epsilon(budget.releases, budget.delta, judge)
    other = composed_epsilon(budget.releases, budget.delta, CROSS_CHECKS[judge])
    if not accountants_agree(judge, record, other):
        raise PrivacyError(
            f"accountant {judge} finds epsilon {rounded_up(record)} and {CROSS_CHECKS[judge]} {rounded_up(other)}, "
            "too far apart to trust either; choose accountant rdp, a larger sampling rate or more steps"
        )
    return budget


def _mu_spent(others: Sequence[Releases], spent: float, delta: float, judge: str) -> float:
    """mu of `others`: exact for gdp, else a first guess, mu of a Gaussian mechanism with the same epsilon `spent`."""
    if judge == "gdp" or not others:
        return gdp_mu(others)
    return largest_mu(spent, delta)


def _squared_mu(sigma: float, rate: float) -> float:
    """Contribution of one step to mu^2: exact at rate 1, else in the limit of many steps (Bu, Dong, Long, Su 2020)."""
    squared = 1 / max(sigma, SMALLEST_GUESS) ** 2
    return squared if rate == 1 else rate**2 * math.expm1(squared)


def _multiplier_of(squared_mu: float, rate: float) -> float:
    """Inverse of `_squared_mu`."""
    return 1 / math.sqrt(squared_mu if rate == 1 else math.log1p(squared_mu / rate**2))


def _largest_count(epsilon_at: Callable[[int], float], epsilon: float, guess: float) -> int:
    """Largest number of steps with `epsilon_at(steps) <= epsilon`; 0 if one step costs too much.

    If it exceeds MAX_STEPS, some number above MAX_STEPS is returned. `epsilon_at` rises with the number of steps;
    `guess` only saves evaluations.
    """

    def excess(count: float) -> float:
        return min(epsilon_at(int(count)), 10 * epsilon) - epsilon

    low = high = min(max(guess, 1.0), float(MAX_STEPS))
    reach = BRACKET
    while excess(high) <= 0:
        if high > MAX_STEPS:
            return int(high)
        low, high, reach = high, high * (1 + reach) + 1, 2 * reach
    while low == high or excess(low) > 0:
        if low == 1:
            return 0
        high, low, reach = low, max(low / (1 + reach) - 1, 1.0), 2 * reach
    count = int(scipy.optimize.brentq(excess, low, high, xtol=0.5))
    while epsilon_at(count) > epsilon:
        count -= 1
    while epsilon_at(count + 1) <= epsilon:
        count += 1
    return count
