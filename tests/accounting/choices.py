"""What a choice by results may cost: `python -m tests.accounting.choices 30 1e-5` prints two factors of delta.

A user makes a sum over all rows, looks at its result, and spends what is left on another one, or on one sum over a
Poisson sample. The first factor is for what a cap leaves; docs/proofs/adaptive.md, lemma 2a, bounds it by 2. The second
is for a run that starts from the weights of the first, whose manifest composes both as if their noise had been fixed.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from linprobe.accounting.accountants import FILTER_ORDERS, renyi_divergences
from linprobe.accounting.book import Cap, filter_order
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import largest_mu, renyi_conversion

Losses = NDArray[np.float64]
FIRST = (0.5, 0.9, 0.95, 0.97, 0.98)  # of the largest mu that leaves a sampled run anything
NEARLY_ALL = 1 - 1e-12
DEVIATIONS = np.linspace(-9, 9, 1001)  # of the loss of the first sum, in standard deviations
CHANCES = np.exp(-(DEVIATIONS**2) / 2) / math.sqrt(2 * math.pi) * (DEVIATIONS[1] - DEVIATIONS[0])


def delta_of_sample(epsilons: Losses, rate: float, sigma: float) -> Losses:
    """delta of one sampled sum at each of `epsilons`, of either sign, if the record is removed."""
    excess = np.expm1(epsilons) + rate
    place = sigma**2 * np.log(np.maximum(excess, 1e-300) / rate) + 0.5
    joined, absent = ndtr((1 - place) / sigma), ndtr(-place / sigma)
    return np.where(excess > 0, rate * joined - excess * absent, -np.expm1(epsilons))


def rate_for(sigma: float, place: int, left: float) -> float:
    """The largest rate at which a sampled sum has a divergence of at most `left`."""

    def excess(log_rate: float) -> float:
        return renyi_divergences((Releases("gradient", sigma, math.exp(log_rate), 1),))[place] - left

    if excess(math.log(NEARLY_ALL)) <= 0:
        return NEARLY_ALL
    return math.exp(brentq(excess, -100.0, math.log(NEARLY_ALL), xtol=1e-6))


def largest_factor(epsilon: float, delta: float, shares: tuple[float, ...] = FIRST, n_sigmas: int = 30) -> float:
    """The largest delta at a cap, relative to the cap's, of the choices that are tried."""
    cap = Cap(epsilon, delta)
    order, whole = filter_order(cap), largest_mu(epsilon, delta)
    bound, factors = epsilon - renyi_conversion(order, delta), []
    for share in shares:
        mu = share * math.sqrt(2 * bound / order)
        left, best = _left(epsilon, mu, whole)
        for sigma in np.geomspace(0.2, 3, n_sigmas).tolist():
            rate = rate_for(sigma, FILTER_ORDERS.index(order), bound - order * mu**2 / 2)
            best = np.maximum(best, delta_of_sample(left, rate, sigma))
        factors.append(float(CHANCES @ best) / delta)
    return max(factors)


def _left(epsilon: float, mu: float, whole: float) -> tuple[Losses, Losses]:
    """What each loss of a sum with parameter `mu` leaves of `epsilon`, and delta there of a sum up to `whole`."""
    left, rest = epsilon - mu**2 / 2 - mu * DEVIATIONS, math.sqrt(whole**2 - mu**2)
    return left, ndtr(rest / 2 - left / rest) - np.exp(left) * ndtr(-rest / 2 - left / rest)


def factor_after_a_run(epsilon: float, delta: float, share: float = 0.8, sigma: float = 0.3) -> float:
    """The delta of a run and of the better of two that start from it, each of which alone has `delta` with the first.

    Args:
        share: of the largest mu, for the first run. sigma: noise multiplier of the sampled sum.
    """
    whole = largest_mu(epsilon, delta)
    left, full = _left(epsilon, share * whole, whole)
    log_rate = brentq(lambda log: CHANCES @ delta_of_sample(left, math.exp(log), sigma) - delta, -30.0, -1e-9)
    return float(CHANCES @ np.maximum(full, delta_of_sample(left, math.exp(log_rate), sigma))) / delta


if __name__ == "__main__":
    target = float(sys.argv[1]), float(sys.argv[2])
    print(f"{largest_factor(*target):.5f} {factor_after_a_run(*target):.5f}")
