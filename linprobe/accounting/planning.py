"""Planning: the noise that each sampling rate needs for a budget. Planning reads no data.

At a fixed epsilon after a fixed number of epochs the noise multiplier needed grows about as sqrt(q) (Tramèr,
Boneh 2021, figure 6; Dörmann et al. 2021, figure 2). Rates are compared by the noise of a whole epoch: 1/q steps, each
with noise sigma, add up to sigma / sqrt(q). The signal of an epoch, in which each record is read about once, is the
same at every rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linprobe.accounting.accountants import choose_accountant, composed_epsilon
from linprobe.accounting.calibrate import (
    GRADIENT,
    MAX_STEPS,
    calibrate,
    check_delta,
    check_epsilon,
    check_sampling_rate,
    check_sigma,
    check_steps,
)
from linprobe.accounting.events import Releases
from linprobe.errors import ParameterError
from linprobe.options.requests import DEFAULT_EPOCHS, DEFAULT_RATES

GOOD_ENOUGH = 1.05


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to spend the budget.

    Attributes:
        sampling_rate: q, the Poisson probability with which a record joins a step; 1 for all rows.
        noise_multiplier: sigma, noise standard deviation of a step's sum divided by the clip norm; rounded up.
        steps: releases; epochs / q to the nearest whole number, at least 1.
        batch_size: average number of rows per step, q N.
        noise_per_epoch: sigma / sqrt(q), noise standard deviation of an epoch's summed gradients in clip norms.
        noise_over_signal: sigma / (q sqrt(steps)), noise standard deviation of the whole run's summed gradients divided
            by the largest expected contribution of one record.
        epsilon: what the run costs at the plan's delta, by `accountant`; at most the target.
        accountant: the accountant of record for this row, a key of `ACCOUNTANTS`.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    batch_size: float
    noise_per_epoch: float
    noise_over_signal: float
    epsilon: float
    accountant: str


def account(sampling_rate: float, noise_multiplier: float, n_steps: int, delta: float) -> dict[str, float]:
    """Epsilon of `n_steps` sampled Gaussian releases by every accountant that applies.

    Args:
        sampling_rate: q, in (0, 1].
        noise_multiplier: noise standard deviation divided by the clip norm, in (0, 10^9].
        n_steps: releases, from 1 to `MAX_STEPS`.
        delta: in (0, 1).

    Returns: epsilon by accountant, the accountant of record first: `gdp` if q = 1, then `pld` and `rdp`. Infinity if
        the noise is too small for any figure.

    Raises:
        ParameterError: a value outside its range.
    """
    rate, sigma, count = check_sampling_rate(sampling_rate), check_sigma(noise_multiplier), check_steps(n_steps)
    if not 0 < delta < 1:
        raise ParameterError(f"delta is {delta}; allowed: a number above 0 and below 1")
    releases = (Releases(GRADIENT, sigma, rate, count),)
    judges = ("gdp", "pld", "rdp") if rate == 1 else ("pld", "rdp")
    return {judge: composed_epsilon(releases, delta, judge) for judge in judges}


def plan(
    *,
    epsilon: float,
    delta: float,
    n_rows: int,
    epochs: float = DEFAULT_EPOCHS,
    sampling_rates: Sequence[float] = DEFAULT_RATES,
    accountant: str = "auto",
    on_row: Callable[[], None] = lambda: None,
) -> list[PlanRow]:
    """The noise each sampling rate needs to spend at most (`epsilon`, `delta`) in `epochs` epochs.

    Args:
        epsilon: target, in (0, 100].
        delta: target, in (0, 1/n_rows).
        n_rows: private records N, treated as public.
        epochs: average number of times that a record is read, above 0.
        sampling_rates: each in (0, 1]; duplicates count once.
        accountant: `auto`, or one of `ACCOUNTANTS`; `gdp` for rate 1 only.
        on_row: called after each row, for a progress bar.

    Returns: one row per rate, by rising rate.

    Raises:
        ParameterError: a value outside its range. PrivacyError: `delta >= 1/n_rows`, or a target out of reach.
    """
    if n_rows < 1:
        raise ParameterError(f"number of private rows is {n_rows}; allowed: a whole number of at least 1")
    check_epsilon(epsilon)
    check_delta(delta, n_rows)
    if not 0 < epochs < math.inf:
        raise ParameterError(f"epochs is {epochs}; allowed: a number above 0")
    rates = sorted({check_sampling_rate(rate) for rate in sampling_rates})
    if not rates:
        raise ParameterError("no sampling rate was given; allowed: one or more above 0 and at most 1")
    choose_accountant(accountant, [Releases(GRADIENT, 1.0, rate, 1) for rate in rates])
    if epochs / rates[0] > MAX_STEPS:
        raise ParameterError(
            f"sampling rate {rates[0]:g} makes {epochs / rates[0]:.0f} steps in {epochs:g} epochs; allowed: at most "
            f"{MAX_STEPS}; choose larger rates or fewer epochs"
        )
    rows = []
    for rate in rates:
        rows.append(_row(epsilon, delta, n_rows, max(1, round(epochs / rate)), rate, accountant))
        on_row()
    return rows


def _row(epsilon: float, delta: float, n_rows: int, steps: int, rate: float, accountant: str) -> PlanRow:
    budget = calibrate(
        epsilon=epsilon, delta=delta, n_private=n_rows, steps=steps, sampling_rate=rate, accountant=accountant
    )
    return PlanRow(
        sampling_rate=rate,
        noise_multiplier=budget.noise_multiplier,
        steps=steps,
        batch_size=rate * n_rows,
        noise_per_epoch=budget.noise_multiplier / math.sqrt(rate),
        noise_over_signal=1 / budget.nominal_mu,
        epsilon=composed_epsilon(budget.releases, delta, budget.accountant),
        accountant=budget.accountant,
    )


def recommend(rows: Sequence[PlanRow]) -> tuple[PlanRow, str]:
    """The row with the smallest rate whose noise is at most `GOOD_ENOUGH` times the least, and a sentence why.

    Noise is compared over the whole run (`noise_over_signal`). This is proportional to the noise of an epoch, but
    allows for rounded steps.
    """
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
            f"{chosen.batch_size:.0f} rows instead of {best.batch_size:.0f}"
        )
    return chosen, why
