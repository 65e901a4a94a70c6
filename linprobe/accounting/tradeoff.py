"""The best attack on one record that a guarantee allows. Every such limit that linprobe prints or draws is from here.

An attacker decides whether a record was in the data. fpr is the probability of a wrong yes, tpr that of a right yes.

    mu-GDP:           tpr <= Phi(Phi^-1(fpr) + mu)                                 (Dong, Roth, Su 2022, Section 2.2)
    delta(epsilon):   tpr <= min(e^epsilon fpr + delta, 1 - e^-epsilon (1 - delta - fpr)) at every epsilon
                                                                          (Kairouz, Oh, Viswanath 2015, Theorem 2.1)

The best test reaches the first. It is never above the second, so it is used wherever there is a mu.
Sampled releases have none; they get the least value of the second over a grid of epsilons, each with its own delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.accounting.accountants import ACCOUNTANTS, composed_deltas, composed_epsilon, gdp_mu
from linprobe.accounting.events import Releases
from linprobe.accounting.selection import SelectionEvent, selection_deltas, selection_epsilon

Rates = NDArray[np.float64]
LARGEST_EXPONENT = 700.0  # exp overflows above 709
GRID = np.linspace(0, 1.5, 100)  # epsilons, in units of the one stated; within 1 % of a finer grid


@dataclass(frozen=True)
class AttackLimit:
    """The highest true-positive rate that a guarantee allows any attack.

    Attributes:
        source: what the limit follows from, in words.
        mu: of Gaussian differential privacy, dimensionless; None for sampled releases.
        epsilons, deltas: pairs that hold for the releases, both (n,); empty if there is a mu.
    """

    source: str
    mu: float | None
    epsilons: Rates
    deltas: Rates

    def __call__(self, fpr: Rates | float) -> Rates:
        """The limit at false-positive rates of any shape."""
        rates = np.asarray(fpr, dtype=np.float64)
        if self.mu is None:
            return np.asarray(tpr_limit(rates[..., np.newaxis], self.epsilons, self.deltas).min(axis=-1))
        return np.asarray(scipy.special.ndtr(scipy.special.ndtri(rates) + self.mu)) if self.mu else rates


def attack_limit(releases: Sequence[Releases], delta: float, accountant: str) -> AttackLimit:
    """The limit for all `releases` together, by the accountant of record; without releases it is guessing.

    Args:
        delta: of the guarantee, in (0, 1); it decides which part of the curve is resolved.
    """
    if accountant == "gdp":
        return AttackLimit("mu of Gaussian DP", gdp_mu(releases), np.empty(0), np.empty(0))
    epsilons = GRID * composed_epsilon(releases, delta, accountant)
    deltas = composed_deltas(releases, epsilons.tolist(), delta, accountant)
    return AttackLimit(f"all pairs of epsilon and delta, {ACCOUNTANTS[accountant]}", None, epsilons, deltas)


def selection_limit(event: SelectionEvent, delta: float, accountant: str) -> AttackLimit:
    """The limit for a private selection; `accountant` judges a single run."""
    epsilons = GRID * selection_epsilon(event, delta, accountant)
    deltas = selection_deltas(event, epsilons.tolist(), delta, accountant)
    return AttackLimit(
        f"all pairs of epsilon and delta, private selection, {ACCOUNTANTS[accountant]}", None, epsilons, deltas
    )


def tpr_limit(fpr: Rates, epsilon: Rates | float, delta: Rates | float) -> Rates:
    """The highest true-positive rate that a pair (epsilon, delta) allows; all three broadcast."""
    few = np.exp(np.minimum(epsilon, LARGEST_EXPONENT)) * fpr + delta
    many = 1 - np.exp(-epsilon) * (1 - delta - fpr)
    return np.asarray(np.clip(np.minimum(few, many), 0, 1))


def limit_percent(limit: float) -> str:
    """A limit in per cent, rounded up to two decimals, without a sign."""
    percent = 100 * Decimal(repr(float(limit)))
    return str(percent.quantize(Decimal("0.01"), ROUND_CEILING))
