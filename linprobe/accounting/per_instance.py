"""Per-instance privacy loss: mu_i of every record to epsilon_i, and what may be said of them.

Source: AdaMix (Golatkar et al. 2022), Definition 13 and Proposition 14; Wang 2019. For record i,

    mu_i^2 = sum_t (contribution norm of i at step t / noise std at step t)^2,

and epsilon_i is the exact Gaussian-DP epsilon at mu_i and the run's delta. mu_i <= mu, so max_i epsilon_i <= epsilon.
The figures depend on the private rows: they are kept with mode 0600 and shown only when asked for.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

BISECTIONS = 60
HISTOGRAM_BINS = 20


def per_instance_epsilon(mu: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """epsilon_i of every record, shape (n,), from mu_i, shape (n,), by bisection from above.

    Guarantee: each figure is at least the exact one, and above it by less than one part in 10^12 of its range.
    """
    positive = mu > 0
    m = mu[positive]
    low = np.zeros_like(m)
    # delta(eps) <= Phi(mu/2 - eps/mu) <= exp(-(eps/mu - mu/2)^2 / 2) bounds epsilon from above
    high = m * (m / 2 + math.sqrt(2 * math.log(1 / delta)))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        first = log_ndtr(m / 2 - middle / m)
        second = middle + log_ndtr(-m / 2 - middle / m)
        with np.errstate(divide="ignore"):  # equal terms are a delta of zero, logarithm minus infinity
            log_delta = first + np.log1p(-np.exp(np.minimum(second - first, 0.0)))
        too_low = log_delta > math.log(delta)
        low = np.where(too_low, middle, low)
        high = np.where(too_low, high, middle)
    result = np.zeros_like(mu)
    result[positive] = high
    # a record so little used that delta alone covers it
    result[positive] = np.where(high < 1e-12, 0.0, result[positive])
    return result


def summary(epsilons: NDArray[np.float64], budget: float) -> dict[str, object]:
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


def histogram_counts(epsilons: NDArray[np.float64], budget: float) -> NDArray[np.float64]:
    """Counts of records in 20 equal bins of [0, budget], shape (20,); one record moves one count by one."""
    positions = np.floor(epsilons / budget * HISTOGRAM_BINS).astype(np.int64)
    counts = np.bincount(np.clip(positions, 0, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS)
    return counts.astype(np.float64)
