"""Per-instance privacy loss: from mu_i of every record to epsilon_i, and summaries of all records.

Source: AdaMix (Golatkar et al. 2022), Definition 13 and Proposition 14; Wang 2019. For record i,

    mu_i^2 = sum_t (contribution norm of i at step t / noise std at step t)^2,

and epsilon_i is the Gaussian-DP epsilon at mu_i and the run's delta. mu_i <= mu, so max_i epsilon_i <= epsilon.
For Poisson samples it is individual Renyi accounting (Feldman and Zrnic 2021; Yu et al. 2023). Each release contributes
its Renyi divergence at the record's own share of the sensitivity, rounded up. The sum over steps at integer orders is
converted to epsilon by Canonne, Kamath, Steinke 2020, Proposition 12. The run's epsilon bounds every record, so no
figure is above it. All figures are upper bounds, in the sense of lemma 3 of docs/proofs/epsilon.md.
The figures depend on the private rows: they are stored with mode 0600 and shown only on request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.accounting.accountants import UP_SUMS, choose_accountant, renyi_table
from linprobe.accounting.calibrate import LEAST_DELTA
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import renyi_conversion
from linprobe.errors import ParameterError
from linprobe.parallel.array_api import Reals, Singles

BISECTIONS = 60
LOG_ROUNDING = 2.0**-46
HISTOGRAM_BINS = 20
ORDERS = np.array([*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512, 1024])
RECORDS_AT_ONCE = 65536
UP_ROUNDING = 1 + 2.0**-50  # covers up to three roundings of numbers that are not negative


@dataclass(frozen=True)
class RecordLosses:
    """Privacy loss of each private record, before a delta makes it an epsilon; no rows if not computed. Private."""

    mu: Reals  # Gaussian-DP parameter of the releases from all rows, (n_private,)
    renyi: Singles  # of sampled releases at `ORDERS`, nats, rounded up, (n_private, len(ORDERS) or 0)
    releases: tuple[Releases, ...] = ()  # all of the run, which bound each record at any delta; () from a file

    def epsilon(self, delta: float, worst_case: float = math.inf) -> Reals:
        """epsilon_i of each record at `delta`, shape (n_private,), at most the epsilon of the run at this `delta`.

        Args:
            worst_case: epsilon of the run at this `delta`, for losses from a file. Losses of a fit need none, and
                compute it from `releases`, since an epsilon at another delta bounds nothing here.
        Raises ParameterError: a delta outside (0, 1).
        """
        if not LEAST_DELTA <= delta < 1:
            raise ParameterError(f"delta is {delta}; allowed: at least {LEAST_DELTA:g}, below 1")
        if self.releases:
            worst_case = choose_accountant("auto", self.releases).epsilon(self.releases, delta)
        if not self.renyi.shape[1]:
            return np.asarray(np.minimum(per_instance_epsilon(self.mu, delta), worst_case))
        conversions = np.array([renyi_conversion(order, delta) for order in ORDERS.tolist()])
        found = np.empty(len(self.mu))
        for start in range(0, len(found), RECORDS_AT_ONCE):
            part = slice(start, start + RECORDS_AT_ONCE)
            total = self.renyi[part].astype(np.float64) * UP_ROUNDING
            total += np.multiply.outer(self.mu[part] ** 2, ORDERS / 2 * UP_ROUNDING)
            found[part] = (total.max(axis=1) > 0) * (total + conversions).min(axis=1) * UP_ROUNDING
        return np.asarray(found.clip(0.0, worst_case))

    def charged(self, squared_mu: float) -> RecordLosses:
        """The losses after further releases from all rows; `squared_mu` is their sum of 1 / sigma^2."""
        return replace(self, mu=np.sqrt(self.mu**2 + squared_mu) * UP_ROUNDING, releases=())


def record_losses(
    n_private: int,
    squared_mu: Reals,
    levels: NDArray[np.unsignedinteger],
    steps: Releases,
    in_full: Sequence[Releases],
) -> RecordLosses:
    """Losses of the first `n_private` records of a run.

    Args:
        squared_mu, levels: as in `mechanisms.gaussian.Contributed`; empty if losses were not computed.
        steps: the run's sampled releases, to which `levels` belongs.
        in_full: releases that are charged to every record in full, as of an earlier run.
    """
    mu2 = np.zeros(n_private) + (squared_mu[:n_private] if squared_mu.size else 0.0)
    mu2 += sum(release.count / release.noise_multiplier**2 for release in in_full if release.sampling_rate == 1)
    sampled = [release for release in in_full if release.sampling_rate < 1]
    renyi = np.zeros((n_private, len(ORDERS) if sampled or levels.size else 0), dtype=np.float32)
    mu = np.sqrt(mu2) * UP_SUMS
    if not renyi.size:
        return RecordLosses(mu, renyi)
    whole = sum(
        release.count * _level_divergences(release.noise_multiplier, release.sampling_rate, 1)[-1]
        for release in sampled
    )
    highest = levels.shape[1] - 1
    table = _level_divergences(steps.noise_multiplier, steps.sampling_rate, highest) if levels.size else None
    for start in range(0, n_private, RECORDS_AT_ONCE):
        part = slice(start, min(start + RECORDS_AT_ONCE, n_private))
        total = np.zeros_like(renyi[part], dtype=np.float64) + whole
        if table is not None:
            total += levels[part] @ table
        rounded = (total * UP_SUMS).astype(np.float32)
        renyi[part] = np.where(total == 0, 0, np.nextafter(rounded, np.float32(np.inf)))
    return RecordLosses(mu, renyi)


@lru_cache(maxsize=16)
def _level_divergences(noise_multiplier: float, sampling_rate: float, highest: int) -> Reals:
    """`renyi_table` at `ORDERS` for the levels 0 to `highest` of a contribution, shape (highest + 1, len(ORDERS))."""
    return renyi_table(noise_multiplier, sampling_rate, (np.arange(highest + 1) / highest) ** 2, ORDERS)


def per_instance_epsilon(mu: Reals, delta: float) -> Reals:
    """epsilon_i of every record, shape (n,), from mu_i, shape (n,), by bisection from above.

    Guarantee: each figure is an upper bound: delta(epsilon_i) is computed in float64, and a bound on the rounding is
    added to it. The excess is below one part in 10^8 or below 10^-11, whichever is larger.
    """
    result = np.zeros_like(mu)
    m = mu[mu > 0]
    low = np.zeros_like(m)
    # delta(eps) <= Phi(mu/2 - eps/mu) <= exp(-(eps/mu - mu/2)^2 / 2) bounds epsilon from above
    high = m * (m / 2 + math.sqrt(2 * math.log(1 / delta)))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        too_low = _log_delta(middle, m) > math.log(delta)
        low = np.where(too_low, middle, low)
        high = np.where(too_low, high, middle)
    result[mu > 0] = np.where(_log_delta(np.zeros_like(m), m) > math.log(delta), high, 0.0)
    return result


def _log_delta(epsilon: Reals, mu: Reals) -> Reals:
    """Logarithm of delta(epsilon) of mu-GDP mechanisms, element by element; an upper bound.

    delta = Phi(a) - e^epsilon Phi(b) = Phi(a) (1 - e^-gap) with gap = log Phi(a) - epsilon - log Phi(b). Here log_ndtr
    is off by 3 units in the last place. Rounding used at most 2.2 % of `error` at 4,000 random points.
    """
    first = scipy.special.log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu)
    error = LOG_ROUNDING * (1 - first - second + 2 * epsilon + mu**2)
    gap = np.maximum(first - second, 0.0) + 2 * error
    return np.asarray(first + error + np.log(-np.expm1(-gap)))


def summary(epsilons: Reals, budget: float) -> dict[str, object]:
    """Number of records, worst case, mean, quantiles, and the share of records below half of `budget`."""
    levels = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    values = np.quantile(epsilons, levels) if epsilons.size else np.zeros(len(levels))
    return {
        "records": int(epsilons.size),
        "max": float(epsilons.max(initial=0.0)),
        "mean": float(epsilons.mean()) if epsilons.size else 0.0,
        "quantiles": {f"{level:g}": float(value) for level, value in zip(levels, values, strict=True)},
        "share_below_half": float((epsilons < budget / 2).mean()) if epsilons.size else 0.0,
    }


def histogram_counts(epsilons: Reals, budget: float) -> Reals:
    """Counts of records in 20 equal bins of [0, budget], shape (20,); one record moves one count by one."""
    positions = np.floor(epsilons / budget * HISTOGRAM_BINS).astype(np.int64)
    counts = np.bincount(np.clip(positions, 0, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS)
    return counts.astype(np.float64)
