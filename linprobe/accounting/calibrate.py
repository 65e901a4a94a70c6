"""Calibration: from a target (epsilon, delta) to steps or noise, rounded so that the target is never exceeded.

Planning is calibration at several sampling rates; it reads no data. At a fixed epsilon after a fixed number of epochs
the noise multiplier needed grows about as sqrt(q) (Tramèr, Boneh 2021, figure 6; Dörmann et al. 2021, figure 2). Rates
are compared by the noise of a whole epoch: 1/q steps, each with noise sigma, add up to sigma / sqrt(q). The signal of
an epoch, in which each record is read about once, is the same at every rate.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import scipy

from linprobe.accounting import accountants
from linprobe.accounting.accountants import GAUSSIAN, Accountant
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import largest_mu, rounded_down, rounded_up
from linprobe.errors import ParameterError, PrivacyError, Progress, UsageError, counted
from linprobe.options import DEFAULT_STEPS, LEAST_RATE, MAX_EPSILON, MAX_STEPS
from linprobe.options.requests import AccountRequest, PlanRequest

GRADIENT = "gradient"
LARGEST_SPENT = 0.99
LEAST_DELTA = 1e-13
CUSTOMARY_SHARE = 0.1  # of 1/n_private; a larger delta is warned of
SMALLEST_GUESS = 0.04  # below, exp(1 / sigma^2) overflows
GOOD_ENOUGH = 1.05


@dataclass(frozen=True, slots=True)
class Budget:
    """A calibrated run, for the target `epsilon_target` and `delta`."""

    epsilon_target: float
    delta: float
    n_steps: int  # gradient releases the run will make
    noise_multiplier: float  # their noise standard deviation divided by the clip norm, dimensionless
    sampling_rate: float = 1.0  # Poisson probability with which a record joins a step; 1 for all rows
    accountant: Accountant = GAUSSIAN  # of record
    others: tuple[Releases, ...] = ()  # releases besides the steps, e.g. a private mean, or those of an earlier run

    @property
    def releases(self) -> tuple[Releases, ...]:
        return (*self.others, Releases(GRADIENT, self.noise_multiplier, self.sampling_rate, self.n_steps))

    @property
    def nominal_mu(self) -> float:
        """q sqrt(T) / sigma: signal over noise of the summed steps; the GDP parameter if q = 1."""
        return self.sampling_rate * math.sqrt(self.n_steps) / self.noise_multiplier


def check_epsilon(epsilon: float | None) -> float:
    """`epsilon` if it is a number in (0, 100]; otherwise ParameterError."""
    if epsilon is None or not 0 < epsilon <= MAX_EPSILON:
        raise ParameterError(
            f"epsilon is {epsilon}; allowed: above 0, at most {MAX_EPSILON:g} (0: method only-public; no privacy: "
            "method non-private)"
        )
    return float(epsilon)


def check_delta(delta: float, n_private: int) -> float:
    """`delta` if it lies in [`LEAST_DELTA`, 1/n_private); otherwise an error that says so."""
    if not LEAST_DELTA <= delta < 1:
        raise ParameterError(
            f"delta is {delta}; allowed: at least {LEAST_DELTA:g}, and below 1/N_private = {1 / n_private:.3g}; "
            f"{_smaller_delta(n_private)}"
        )
    if delta * n_private >= 1:
        raise PrivacyError(
            f"delta is {rounded_up(delta)}, but with {counted(n_private, 'private row')} it must be below 1/N = "
            f"{1 / n_private:.3g}; {_smaller_delta(n_private)}"
        )
    return float(delta)


def large_delta(delta: float, n_private: int) -> str | None:
    """One line of warning if `delta` lies above a tenth of 1/n_private and below 1/n_private; else None."""
    if not CUSTOMARY_SHARE < delta * n_private < 1:
        return None
    return (
        f"delta {rounded_up(delta)} is {delta * n_private:.2g}/N for {counted(n_private, 'private row')}; customary: "
        f"at most {CUSTOMARY_SHARE:g}/N, as a delta near 1/N permits publishing whole records; "
        f"{_smaller_delta(n_private)}"
    )


def _smaller_delta(n_private: int) -> str:
    """The next step for a delta that is too large: the customary share of 1/N, rounded down to one digit."""
    customary = CUSTOMARY_SHARE / n_private
    scale = 10.0 ** math.floor(math.log10(customary))
    return f"try --delta {math.floor(customary / scale * (1 + 1e-12)) * scale:.0e}"


def _check_rate(rate: float) -> float:
    if not LEAST_RATE <= rate <= 1:
        raise ParameterError(f"sampling rate is {rate}; allowed: {LEAST_RATE:g} to 1")
    return float(rate)


def _check_sigma(sigma: float) -> float:
    if not 0 < sigma <= accountants.MAX_SIGMA:
        raise ParameterError(f"sigma is {sigma}; allowed: a number above 0 and at most {accountants.MAX_SIGMA:g}")
    return float(sigma)


def check_steps(n_steps: int) -> int:
    """`n_steps` if it is a whole number from 1 to `MAX_STEPS`; otherwise ParameterError."""
    if n_steps != int(n_steps) or not 1 <= n_steps <= MAX_STEPS:
        raise ParameterError(f"steps is {n_steps}; allowed: a whole number from 1 to {MAX_STEPS}")
    return int(n_steps)


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
        sampling_rate: q, in [`LEAST_RATE`, 1].
        accountant: `auto`, or one of `ACCOUNTANTS`.
        others: further releases that the same budget pays for.
    Raises ParameterError: a value outside its range. UsageError: both `noise_multiplier` and `steps`. PrivacyError:
    `delta >= 1/n_private`, a multiplier too small for one step, or `others` that cost too much.
    """
    epsilon = check_epsilon(epsilon)
    delta = check_delta(delta, n_private)
    rate = _check_rate(sampling_rate)
    if noise_multiplier is not None and steps is not None:
        raise UsageError(
            f"sigma {noise_multiplier} and steps {steps} were both given, and epsilon fixes one by the other; give "
            "one of them"
        )
    others = tuple(others)
    judge = accountants.choose_accountant(accountant, (*others, Releases(GRADIENT, 1.0, rate, 1)))
    left = _squared_mu_left(judge, others, epsilon, delta)

    def least_multiplier(n_steps: int) -> float:
        squared = left / n_steps
        guess = 1 / math.sqrt(squared if rate == 1 else math.log1p(squared / rate**2))
        return judge.calibrate(lambda sigma: (*others, Releases(GRADIENT, sigma, rate, n_steps)), epsilon, delta, guess)

    if noise_multiplier is None:
        n_steps = check_steps(default_steps if steps is None else steps)
        return _cross_checked(Budget(epsilon, delta, n_steps, least_multiplier(n_steps), rate, judge, others))
    sigma = _check_sigma(noise_multiplier)
    # mu^2 of a step: exact at rate 1, else in the limit of many steps (Bu, Dong, Long, Su 2020)
    squared = 1 / max(sigma, SMALLEST_GUESS) ** 2
    guess = left / (squared if rate == 1 else rate**2 * math.expm1(squared))
    n_steps = _largest_count(
        lambda count: judge.epsilon((*others, Releases(GRADIENT, sigma, rate, count)), delta), epsilon, guess
    )
    if n_steps > MAX_STEPS:
        raise ParameterError(f"sigma {rounded_down(sigma)} allows more than {MAX_STEPS} steps, the most; lower sigma")
    if n_steps < 1:
        least = least_multiplier(1)
        raise PrivacyError(
            f"sigma {rounded_down(sigma)} is too small for even one step at epsilon {rounded_up(epsilon)}, "
            f"delta {rounded_up(delta)}; one step needs sigma of at least {accountants.round_up(least, 4):g}"
        )
    return _cross_checked(Budget(epsilon, delta, n_steps, sigma, rate, judge, others))


def _squared_mu_left(judge: Accountant, others: Sequence[Releases], epsilon: float, delta: float) -> float:
    """mu^2 that is left beside `others`, a guess with samples. PrivacyError if nothing is."""
    spent, left = judge.epsilon(others, delta), 0.0
    if spent <= LARGEST_SPENT * epsilon:
        # of a Gaussian mechanism with the same epsilon, where there is no exact mu
        mu = accountants.gdp_mu(others) if judge is GAUSSIAN else largest_mu(spent, delta) if others else 0.0
        left = largest_mu(epsilon, delta) ** 2 - mu**2
    if left <= 0:
        raise PrivacyError(
            f"epsilon is {rounded_up(epsilon)}, and {', '.join(sorted({release.purpose for release in others}))} "
            f"releases alone cost {rounded_up(spent)}; allowed: at least 1 % more than that; raise --eps"
        )
    return left


def _cross_checked(budget: Budget) -> Budget:
    """Return `budget`, or raise PrivacyError if `verify` would not confirm it, unless a closed form gives it."""
    judge, releases, delta = budget.accountant, budget.releases, budget.delta
    if judge is GAUSSIAN:
        return budget
    record = judge.epsilon(releases, delta)
    if not accountants.confirmed(judge, record, releases, delta):
        other = judge.cross_check
        raise PrivacyError(
            f"accountant {judge.name} finds epsilon {rounded_up(record)} and {other.name} "
            f"{rounded_up(other.epsilon(releases, delta))}, too far apart to trust either; choose accountant "
            f"{other.name}, a larger sampling rate or more steps"
        )
    return budget


def _largest_count(epsilon_at: Callable[[int], float], epsilon: float, guess: float) -> int:
    """Largest count with `epsilon_at(count) <= epsilon`, 0 if none; above MAX_STEPS any. `guess` saves time."""

    def excess(count: float) -> float:
        return min(epsilon_at(int(count)), 10 * epsilon) - epsilon

    low = high = min(max(guess, 1.0), float(MAX_STEPS))
    reach = accountants.BRACKET
    while excess(high) <= 0:
        if high > MAX_STEPS:
            return int(high)
        low, high, reach = high, high * (1 + reach) + 1, 2 * reach
    while low == high or excess(low) > 0:
        if low == 1:
            return 0
        high, low, reach = low, max(low / (1 + reach) - 1, 1.0), 2 * reach
    count = int(scipy.optimize.brentq(excess, low, high, xtol=0.5))
    tries = 0
    while count > low and epsilon_at(count) > epsilon:  # `low` is affordable
        count, tries = max(int(low), count - 2 ** max(0, tries - accountants.SMALL_TRIES)), tries + 1
    for _ in range(accountants.MOST_TRIES):
        if epsilon_at(count + 1) > epsilon:
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to spend the budget."""

    sampling_rate: float  # q; 1 for all rows
    noise_multiplier: float  # of a step, rounded up
    steps: int  # epochs / q to the nearest whole number, at least 1
    batch_size: float  # average number of rows per step, q N
    noise_per_epoch: float  # sigma / sqrt(q), in clip norms
    noise_over_signal: float  # sigma / (q sqrt(steps)): of all summed gradients, over the most that one record adds
    epsilon: float  # of the run, at most the target
    accountant: str


def plan_rates(request: PlanRequest, progress: Progress) -> list[PlanRow]:
    """The noise each sampling rate needs to spend at most (`epsilon`, `delta`) in `epochs` epochs, by rising rate.

    Raises ParameterError: a value outside its range. PrivacyError: `delta >= 1/n_rows`, or a target out of reach.
    """
    delta, n_rows, epochs = check_delta(request.delta, request.n_rows), request.n_rows, request.epochs
    rates = sorted(set(request.sampling_rates))
    if not rates:
        raise ParameterError(f"no sampling rate was given; allowed: one or more, each {LEAST_RATE:g} to 1")
    progress.start(len(rates), "planning")
    accountants.choose_accountant(request.accountant, [Releases(GRADIENT, 1.0, rate, 1) for rate in rates])
    if epochs / rates[0] > MAX_STEPS:
        raise ParameterError(
            f"sampling rate {rates[0]:g} makes {epochs / rates[0]:.0f} steps in {epochs:g} epochs; allowed: at most "
            f"{MAX_STEPS}; choose larger rates or fewer epochs"
        )
    rows = []
    for rate in rates:
        steps = max(1, round(epochs / rate))
        budget = calibrate(
            epsilon=request.epsilon,
            delta=delta,
            n_private=n_rows,
            steps=steps,
            sampling_rate=rate,
            accountant=request.accountant,
        )
        row = PlanRow(
            sampling_rate=rate,
            noise_multiplier=budget.noise_multiplier,
            steps=steps,
            batch_size=rate * n_rows,
            noise_per_epoch=budget.noise_multiplier / math.sqrt(rate),
            noise_over_signal=1 / budget.nominal_mu,
            epsilon=budget.accountant.epsilon(budget.releases, delta),
            accountant=budget.accountant.name,
        )
        rows.append(row)
        progress.step()
    return rows


def recommend(rows: Sequence[PlanRow]) -> tuple[PlanRow, str]:
    """The row with the smallest rate whose noise over the run is at most `GOOD_ENOUGH` times the least; and why."""
    rows = [row for row in rows if row.batch_size >= 1] or rows  # smaller steps have no row on average
    least = min(row.noise_over_signal for row in rows)
    good = [row for row in rows if row.noise_over_signal <= GOOD_ENOUGH * least]
    chosen = min(good, key=lambda row: row.sampling_rate)
    limit = 100 * (GOOD_ENOUGH - 1)
    best = min(rows, key=lambda row: row.noise_over_signal)
    if chosen is best:
        others = f"; every smaller rate adds more than {limit:.0f} %" if chosen is not rows[0] else ""
        why = f"q = {chosen.sampling_rate:g} has the least noise of the rates compared{others}"
    else:
        why = (
            f"q = {chosen.sampling_rate:g} is the smallest rate whose noise is within {limit:.0f} % of the least: "
            f"{100 * (chosen.noise_over_signal / least - 1):.1f} % above q = {best.sampling_rate:g}, at a step of "
            f"{counted(round(chosen.batch_size), 'row')} instead of {best.batch_size:,.0f}"
        )
    return chosen, why


NAMES = (*accountants.ACCOUNTANTS, accountants.AUTODP.name)  # of all accountants, in the order of their figures


def releases_cost(request: AccountRequest) -> dict[str, Any]:
    """The cost of `n_steps` Gaussian releases on Poisson samples, each with `noise_multiplier` sensitivities of noise.

    Returns: the request, gdp_mu and zcdp_rho (None if q < 1), accountant (of record), and for every applicable
    accountant its epsilon under its name, the accountant of record first; None if the noise is too small for any
    figure.
    """
    delta = request.delta
    releases = (Releases(GRADIENT, request.noise_multiplier, request.sampling_rate, request.n_steps),)
    judges: tuple[Accountant | accountants.Judge, ...] = (*accountants.ACCOUNTANTS.values(), accountants.AUTODP)
    found = {judge.name: judge.epsilon(releases, delta) for judge in judges if judge.covers(releases)}
    costs = {name: cost if math.isfinite(cost) else None for name, cost in found.items() if not math.isnan(cost)}
    return {
        "sampling_rate": request.sampling_rate,
        "noise_multiplier": request.noise_multiplier,
        "steps": request.n_steps,
        "delta": delta,
        **accountants.gaussian_figures(releases),
        "accountant": next(iter(costs)),
        **costs,
    }
