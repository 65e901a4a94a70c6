"""Accountants: releases in, epsilon out. The only file that imports dp_accounting and autodp.

`GAUSSIAN` is Gaussian differential privacy, whose composition is exact. It is the accountant of record if all sums are
over all rows: `figures.py` has the formula and proven bounds.
`PLD` is the distribution of the privacy loss on a grid, a proven bound: `loss_distribution.py`. It is the accountant of
record if any sum is over a Poisson sample. `RENYI` uses dp-accounting's Renyi bounds, which are looser and need no
grid. A second accountant cross-checks every epsilon of record. `AUTODP` gives a third opinion on sums over all rows,
`GOOGLE`, dp-accounting's privacy-loss distribution, on sums over samples.
"""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate, repeat
from operator import mul
from types import ModuleType
from typing import Any

import numpy as np
import scipy

from linprobe.accounting.events import Releases
from linprobe.accounting.figures import (
    LARGEST_MU,
    delta_of,
    epsilon_of,
    mu_and_rho,
    rounded_down,
    rounded_up,
    upper_float,
)
from linprobe.accounting.loss_distribution import deltas_of_kinds, epsilon_of_kinds
from linprobe.accounting.loss_grid import Kind, renyi_epsilon
from linprobe.errors import ParameterError, PrivacyError
from linprobe.parallel.array_api import Indices, Reals

AGREEMENT_RELATIVE = 2e-3
AGREEMENT_ABSOLUTE = 5e-4
EXCESS_RELATIVE = 2.0
EXCESS_ABSOLUTE = 3.0
FINENESS, ROUGH_FINENESS = 0.008, 0.03  # of the grid of `PLD`
PARTS = 16  # equal releases that stand for all sums over all rows on the grid
LEAST_RATE = 1e-9  # smaller sampling rates, and multipliers above `MAX_SIGMA`, cost what these do
GOOGLE_GRID = 3e-5  # grid step of `GOOGLE`, relative to epsilon
GOOGLE_POINTS = 1_000_000  # of a release, at most, on a finer grid
GOOGLE_AGREEMENT = 5e-3
LEAST_SHARE_OF_DELTA = 1e-14  # of a release, that `GOOGLE` resolves
SMALLEST_DIVERGENCE = 1e-13
RENYI_BITS = 128  # of the balls in `renyi_table`
UP_SUMS = 1 + 2.0**-32  # covers a sum of up to 2^20 numbers that are not negative, each after a few roundings
FILTER_ORDERS: tuple[int, ...] = (*range(2, 65), 96, 128, 192, 256, 512, 1024)
NEGLIGIBLE_NOISE = 1e-3  # smaller multipliers are treated as 0, as the libraries overflow; one then returns epsilon 0
MAX_SIGMA = 1e9
BRACKET = 0.1
ROOT_TOLERANCE = 3e-5
SLOPE_STEP = 1e-3
SECANTS = 6
LONGEST_STEP, SHORT_STEP = 1.0, 0.02  # of log(multiplier)
MOST_TRIES, SMALL_TRIES = 20, 2  # of larger multipliers; steps after the small ones are four times the last
SAFE_SIDE = 2e-6  # more than the secant misses
LEAST_SHARE = 0.5  # of a target that a calibrated run must spend
LARGEST_EXPONENT = 700.0  # exp overflows above 709
LIMIT_EPSILONS = np.linspace(0, 1.5, 100)  # in units of the epsilon stated; within 1 % of a finer grid
installed_version = cache(version)  # reading the metadata of a package takes milliseconds
figures_of_terms = lru_cache(maxsize=1024)(mu_and_rho)
Kinds = tuple[Kind, ...]


@dataclass(frozen=True)
class AttackLimit:
    """The highest true-positive rate that a guarantee allows any attack on one record.

    An attacker decides whether a record was in the data. fpr is the probability of a wrong yes, tpr of a right yes.

        mu-GDP:           tpr <= Phi(Phi^-1(fpr) + mu)                             (Dong, Roth, Su 2022, Section 2.2)
        delta(epsilon):   tpr <= min(e^epsilon fpr + delta, 1 - e^-epsilon (1 - delta - fpr)) at every epsilon
                                                                      (Kairouz, Oh, Viswanath 2015, Theorem 2.1)

    The best test reaches the first, which is never above the second. Sampled releases have no mu; they get the least
    value of the second over a grid of epsilons, each with its own delta.
    """

    source: str  # what the limit follows from, in words
    mu: float | None  # of Gaussian differential privacy, dimensionless; None for sampled releases
    epsilons: Reals  # with `deltas` pairs that hold for the releases, both (n,); empty if there is a mu
    deltas: Reals

    def __call__(self, fpr: Reals | float) -> Reals:
        rates = np.asarray(fpr, dtype=np.float64)
        if self.mu is None:
            return np.asarray(tpr_limit(rates[..., np.newaxis], self.epsilons, self.deltas).min(axis=-1))
        return np.asarray(scipy.special.ndtr(scipy.special.ndtri(rates) + self.mu)) if self.mu else rates


def tpr_limit(fpr: Reals, epsilon: Reals | float, delta: Reals | float) -> Reals:
    """The highest true-positive rate that a pair (epsilon, delta) allows; all three broadcast."""
    few = np.exp(np.minimum(epsilon, LARGEST_EXPONENT)) * fpr + delta
    many = 1 - np.exp(-epsilon) * (1 - delta - fpr)
    return np.asarray(np.clip(np.minimum(few, many), 0, 1))


class Accountant(ABC):
    """Computes what releases cost together. There is one instance of each; copies and pickles are the same object.

    Attributes:
        name: for `--accountant` and JSON. words: for the manifest.
        tolerance: relative difference of an epsilon of record between machines; 0 if it has the same bits on each.
    """

    name: str
    words: str
    tolerance = 0.0

    def __reduce__(self) -> tuple[Callable[..., Accountant], tuple[str, tuple[()]]]:
        return choose_accountant, (self.name, ())

    def covers(self, releases: Sequence[Releases]) -> bool:
        """Whether the accountant has an epsilon for such releases."""
        return True

    @abstractmethod
    def epsilon(self, releases: Sequence[Releases], delta: float, *, rough: bool = False) -> float:
        """Epsilon of all `releases` together at `delta`: an upper bound.

        `rough` is a faster and slightly larger bound, for searches.
        """

    @abstractmethod
    def deltas(self, releases: Sequence[Releases], epsilons: Sequence[float], delta: float) -> Reals:
        """delta(epsilon) of all `releases`, upper bounds (len(epsilons),); the guarantee's `delta` sets the grid."""

    @property
    def cross_check(self) -> Accountant:
        """The accountant that checks the figures of this one."""
        return PLD

    def agrees(self, record: float, cross_check: float) -> bool:
        """Whether the epsilon of record and the epsilon of the cross-check can both be right.

        For sampled sums, both figures are upper bounds. An epsilon of record is refused as too low only if the other
        figure is several times higher. The check is coarse at small epsilon: at delta 1e-5 the Renyi bound is usually
        1.09 times the PLD figure, but 2.3 times a PLD figure of 0.18 (q = 0.0001, 100 steps).
        """
        if not (math.isfinite(record) and math.isfinite(cross_check)):
            return record == cross_check
        return cross_check <= EXCESS_RELATIVE * record + EXCESS_ABSOLUTE

    def attack_limit(self, releases: Sequence[Releases], delta: float) -> AttackLimit:
        """The limit for all `releases` together; without releases an attacker can only guess.

        Args:
            delta: of the guarantee, in (0, 1); it decides which part of the curve is resolved.
        """
        epsilons = LIMIT_EPSILONS * self.epsilon(releases, delta)
        deltas = self.deltas(releases, epsilons.tolist(), delta)
        return AttackLimit(f"all pairs of epsilon and delta, {self.words}", None, epsilons, deltas)

    def calibrate(
        self, releases_at: Callable[[float], Sequence[Releases]], epsilon: float, delta: float, guess: float
    ) -> float:
        """The least noise multiplier for which all releases together cost at most `epsilon` at `delta`, rounded up.

        Args:
            releases_at: from the noise multiplier to all releases. guess: only saves evaluations.
        Raises PrivacyError: no multiplier spends at most `epsilon` and at least `LEAST_SHARE` of it.
        """
        sigma = smallest_multiplier(
            lambda sigma: self.epsilon(releases_at(sigma), delta),
            epsilon,
            guess,
            lambda sigma: self.epsilon(releases_at(sigma), delta, rough=True),
        )
        spent = self.epsilon(releases_at(sigma), delta)
        if spent < LEAST_SHARE * epsilon:
            raise PrivacyError(
                f"epsilon is {rounded_up(epsilon)}, which accountant {self.name} cannot approach: its figure falls "
                f"from more to {rounded_up(spent)} at noise multiplier {rounded_down(sigma, 4)}; allowed: a larger "
                f"epsilon or delta, or --accountant {self.cross_check.name}"
            )
        return sigma


class _GaussianDP(Accountant):
    """Gaussian differential privacy of sums over all rows, in ball arithmetic."""

    name, words = "gdp", "Gaussian DP (ball arithmetic)"

    def covers(self, releases: Sequence[Releases]) -> bool:
        return _all_full(releases)

    def epsilon(self, releases: Sequence[Releases], delta: float, *, rough: bool = False) -> float:
        return epsilon_of(gdp_mu(releases), delta)

    def deltas(self, releases: Sequence[Releases], epsilons: Sequence[float], delta: float) -> Reals:
        mu = gdp_mu(releases)
        return np.array([delta_of(epsilon, mu) for epsilon in epsilons])

    def agrees(self, record: float, cross_check: float) -> bool:
        """The two figures agree within the discretisation error."""
        if not (math.isfinite(record) and math.isfinite(cross_check)):
            return record == cross_check
        return abs(record - cross_check) <= AGREEMENT_RELATIVE * record + AGREEMENT_ABSOLUTE

    def attack_limit(self, releases: Sequence[Releases], delta: float) -> AttackLimit:
        return AttackLimit("mu of Gaussian DP", gdp_mu(releases), np.empty(0), np.empty(0))

    def calibrate(
        self, releases_at: Callable[[float], Sequence[Releases]], epsilon: float, delta: float, guess: float
    ) -> float:
        sigma = round_up(guess)
        while self.epsilon(releases_at(sigma), delta) > epsilon:
            sigma = math.nextafter(sigma, math.inf)
        return sigma


class _PrivacyLossDistribution(Accountant):
    """The distribution of the privacy loss on a grid, in ball arithmetic and bounded float64."""

    name, words, tolerance = "pld", "privacy-loss distribution (proven bounds)", 1e-6

    @property
    def cross_check(self) -> Accountant:
        return RENYI

    def epsilon(self, releases: Sequence[Releases], delta: float, *, rough: bool = False) -> float:
        # sums over all rows are a few releases, and lose less on a coarser grid
        fineness = ROUGH_FINENESS if rough else 2 * FINENESS if _all_full(releases) else FINENESS
        return _distribution_epsilon(_kinds(releases), delta, fineness)

    def deltas(self, releases: Sequence[Releases], epsilons: Sequence[float], delta: float) -> Reals:
        kinds = _kinds(releases)
        if not kinds:
            return np.zeros(len(epsilons))
        if _unresolved(kinds):
            return np.ones(len(epsilons))
        return deltas_of_kinds(_on_grid(kinds), epsilons, delta, FINENESS)

    def agrees(self, record: float, cross_check: float) -> bool:
        """The check of every accountant; the cross-check, a Renyi bound, must not be lower than `record` either.

        A small tolerance allows for the rounding of the grid.
        """
        most = (1 + AGREEMENT_RELATIVE) * cross_check + AGREEMENT_ABSOLUTE
        return super().agrees(record, cross_check) and record <= most


class _Later(ModuleType):
    """Stands for a module that takes long to import, and imports it when something that is not here is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks every module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Normal:
    """scipy.stats.norm: its logcdf, which is log_ndtr of scipy.special, and the rest when it is asked for."""

    def __init__(self) -> None:
        self.logcdf = scipy.special.log_ndtr

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("scipy.stats").norm, name)


@contextmanager
def _light_imports() -> Iterator[None]:
    """Let autodp and dp-accounting be imported without scipy.stats and dp_accounting.pld: 0.6 s of processor."""
    later = [_Later(name) for name in ("scipy.stats", "dp_accounting.pld") if name not in sys.modules]
    for module in later:
        sys.modules[module.__name__] = module
        if module.__name__ == "scipy.stats":
            module.norm = _Normal()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in later:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


class _GooglePLD:
    """dp-accounting's distribution of the privacy loss. Its rounding is not bounded, so it is an opinion, no bound."""

    name, words = "dp-accounting", "privacy-loss distribution (dp-accounting)"

    def covers(self, releases: Sequence[Releases]) -> bool:
        """Sums over samples; others have Gaussian DP."""
        return not _all_full(releases)

    def epsilon(self, releases: Sequence[Releases], delta: float) -> float:
        """Epsilon; NaN if rounding may hide delta, or the gain from sampling."""
        kinds = _kinds(releases)
        resolved = delta >= LEAST_SHARE_OF_DELTA * sum(release.count for release in releases)
        gains = all(kind.rate == 1 or _gains_by_sampling(kind) for kind in kinds)
        return _google_epsilon(kinds, delta) if resolved and gains else math.nan

    def agrees(self, record: float, cross_check: float) -> bool:
        """Whether `cross_check`, dp-accounting's epsilon, confirms the epsilon of record, or is NaN: no opinion.

        Measured at 300 random settings (q 10^-4 to 1, 1 to 10^5 steps): the two differ by at most 0.2 % or 0.0005.
        """
        return math.isnan(cross_check) or abs(record - cross_check) <= GOOGLE_AGREEMENT * record + AGREEMENT_ABSOLUTE

    def contradicts(self, record: float, releases: Sequence[Releases], delta: float, opinion: float) -> bool:
        """Whether `opinion`, dp-accounting's epsilon, shows that the epsilon of record is too low.

        A larger epsilon of record is an upper bound too, on a grid that is looser there. A larger opinion counts if
        dp-accounting repeats it on a grid that is fine for the epsilon of record.
        """
        if self.agrees(record, opinion) or opinion <= record:
            return False
        kinds = _kinds(releases)
        widest = max(math.log1p(one.rate * math.expm1(_reach(one.multiplier))) for one in kinds if one.rate < 1)
        step = max(GOOGLE_GRID * record, widest / GOOGLE_POINTS)
        return not self.agrees(record, max(record, _google_on_grid(kinds, delta, step)))


class _RenyiDP(Accountant):
    name, words, tolerance = "rdp", "Renyi DP (dp-accounting)", 1e-9

    def epsilon(self, releases: Sequence[Releases], delta: float, *, rough: bool = False) -> float:
        return _renyi_epsilon(_kinds(releases), delta)

    def deltas(self, releases: Sequence[Releases], epsilons: Sequence[float], delta: float) -> Reals:
        with _quiet():
            composed = _composed_by(_renyi_accountant(), _kinds(releases))
            if composed is None:
                return np.ones(len(epsilons))
            return np.array([composed.get_delta(epsilon) for epsilon in epsilons])


class _AnalyticGaussian:
    """autodp's analytic Gaussian mechanism: a root search in float64, so an opinion and no bound.

    On 16,000 pairs of mu from 1e-9 to 1e3 and delta from 1e-300 to 1 (mu from 1e-3 and delta from 1e-15 to 1e-3 on a
    fine grid) it differs from `GAUSSIAN` by at most 1 % of `agrees`' tolerance. Outside, it gives no opinion.
    """

    name, words = "autodp", "analytic Gaussian mechanism (autodp)"
    LEAST_MU, LEAST_DELTA = 1e-9, 1e-300

    def covers(self, releases: Sequence[Releases]) -> bool:
        """Sums over all rows, with a mu for which autodp was measured, where autodp is installed."""
        return _all_full(releases) and self.LEAST_MU <= gdp_mu(releases) <= LARGEST_MU and bool(find_spec("autodp"))

    def epsilon(self, releases: Sequence[Releases], delta: float) -> float:
        """Epsilon; NaN if autodp finds none."""
        if delta < self.LEAST_DELTA:
            return math.nan
        if "autodp.dp_bank" not in sys.modules:
            with warnings.catch_warnings(), _light_imports():
                for kind in (SyntaxWarning, DeprecationWarning):  # of its source when it is compiled
                    warnings.simplefilter("ignore", kind)
                importlib.import_module("autodp.dp_bank")
        from autodp.dp_bank import get_eps_ana_gaussian

        with np.errstate(all="ignore"):  # of its logarithms
            try:
                return float(get_eps_ana_gaussian(1 / gdp_mu(releases), delta))
            except (ArithmeticError, AssertionError, RuntimeError, ValueError):
                return math.nan

    def agrees(self, record: float, cross_check: float) -> bool:
        """Whether `cross_check`, autodp's epsilon, confirms the epsilon of record, or is NaN: no opinion."""
        return math.isnan(cross_check) or abs(record - cross_check) <= 1e-9 * record + 1e-10

    def contradicts(self, record: float, releases: Sequence[Releases], delta: float, opinion: float) -> bool:
        """Whether `opinion`, autodp's epsilon, does not confirm the epsilon of record: both are of a closed form."""
        return not self.agrees(record, opinion)


GAUSSIAN, PLD, RENYI, AUTODP = _GaussianDP(), _PrivacyLossDistribution(), _RenyiDP(), _AnalyticGaussian()
GOOGLE = _GooglePLD()
Judge = _AnalyticGaussian | _GooglePLD
ACCOUNTANTS: dict[str, Accountant] = {accountant.name: accountant for accountant in (GAUSSIAN, PLD, RENYI)}


def accountant_versions() -> dict[str, str]:
    return {name: installed_version(name) for name in ("python-flint", "dp-accounting")}


def choose_accountant(name: str, releases: Sequence[Releases]) -> Accountant:
    """The accountant of record; `auto` is `GAUSSIAN` without samples, else `PLD`. ParameterError: unknown, unfit."""
    if name == "auto":
        return GAUSSIAN if GAUSSIAN.covers(releases) else PLD
    if name not in ACCOUNTANTS:
        raise ParameterError(f"accountant is {name!r}; allowed: auto, {', '.join(ACCOUNTANTS)}")
    if not ACCOUNTANTS[name].covers(releases):
        least = min(release.sampling_rate for release in releases)
        allowed = ", ".join(other.name for other in ACCOUNTANTS.values() if other.covers(releases))
        raise ParameterError(f"accountant is {name!r} and the sampling rate {least:g}; allowed below 1: {allowed}")
    return ACCOUNTANTS[name]


def third_opinion(accountant: Accountant, releases: Sequence[Releases], delta: float) -> tuple[Judge, float] | None:
    """The epsilon of another library, and it, or None: autodp on `GAUSSIAN`, dp-accounting on `PLD`."""
    judge: Judge | None = AUTODP if accountant is GAUSSIAN else GOOGLE if accountant is PLD else None
    if judge is None or not judge.covers(releases):
        return None
    epsilon = judge.epsilon(releases, delta)
    return None if math.isnan(epsilon) else (judge, epsilon)


def confirmed(accountant: Accountant, record: float, releases: Sequence[Releases], delta: float) -> bool:
    """Whether the cross-check confirms an epsilon of record: asked before a run spends anything, and by `verify`.

    dp-accounting overstates Renyi divergences at orders below 2, which are the best at large epsilon. So an epsilon of
    `PLD` stands if `renyi_estimate`, which integrates, confirms it, and dp-accounting is asked only if it does not.
    """
    if accountant is PLD and PLD.agrees(record, renyi_estimate(releases, delta)):
        return True
    return accountant.agrees(record, accountant.cross_check.epsilon(releases, delta))


def gdp_mu(releases: Sequence[Releases]) -> float:
    """mu of composed sums over all rows: 0 for none, infinity without noise. ValueError: a sampled release."""
    return figures_of_terms(_terms(releases))[0]


def gaussian_figures(releases: Sequence[Releases]) -> dict[str, float | None]:
    """gdp_mu and zcdp_rho of a composition; None if it has sampled releases, for which neither is defined."""
    if not _all_full(releases):
        return {"gdp_mu": None, "zcdp_rho": None}
    mu, rho = figures_of_terms(_terms(releases))
    return {"gdp_mu": mu, "zcdp_rho": rho}


def _all_full(releases: Sequence[Releases]) -> bool:
    return all(release.sampling_rate == 1 for release in releases)


def _terms(releases: Sequence[Releases]) -> tuple[tuple[int, float], ...]:
    if not _all_full(releases):
        raise ValueError("sampling rate is below 1; allowed for Gaussian DP: 1")
    return tuple((release.count, release.noise_multiplier) for release in releases)


def _kinds(releases: Sequence[Releases]) -> Kinds:
    return tuple(Kind(release.noise_multiplier, release.sampling_rate, release.count) for release in releases)


def _unresolved(kinds: Kinds) -> bool:
    return any(kind.multiplier < NEGLIGIBLE_NOISE for kind in kinds)


def _on_grid(kinds: Kinds) -> Kinds:
    """The same releases, or some that cost a little more, for `PLD`: sums over all rows are `PARTS` equal ones."""
    counts: Counter[tuple[float, float]] = Counter()
    for kind in kinds:
        if kind.rate < 1:
            counts[min(kind.multiplier, MAX_SIGMA), max(kind.rate, LEAST_RATE)] += kind.count
    mu = mu_and_rho((kind.count, kind.multiplier) for kind in kinds if kind.rate == 1)[0]
    if mu > 0:
        counts[min(math.sqrt(PARTS) / mu * (1 - 1e-15), MAX_SIGMA), 1.0] = PARTS
    return tuple(Kind(*figures, count) for figures, count in counts.items())


@lru_cache(maxsize=1024)
def _distribution_epsilon(kinds: Kinds, delta: float, fineness: float) -> float:
    if not kinds:
        return 0.0
    return math.inf if _unresolved(kinds) else epsilon_of_kinds(_on_grid(kinds), delta, fineness)


@lru_cache(maxsize=1024)
def _google_epsilon(kinds: Kinds, delta: float) -> float:
    epsilon = _renyi_epsilon(kinds, delta)
    # a coarser grid overstates a small epsilon, a finer grid is slow for a large one
    return _google_on_grid(kinds, delta, GOOGLE_GRID * epsilon) if 0 < epsilon < math.inf else epsilon


def _google_on_grid(kinds: Kinds, delta: float, step: float) -> float:
    from dp_accounting.pld import PLDAccountant

    with _quiet():
        composed = _composed_by(PLDAccountant(value_discretization_interval=step), kinds)
        return math.inf if composed is None else float(composed.get_epsilon(delta))


def _reach(multiplier: float) -> float:
    """Nearly the largest loss of a release over all rows."""
    return min(12 / multiplier + 1 / (2 * multiplier**2), LARGEST_EXPONENT)


@lru_cache(maxsize=1024)
def _renyi_epsilon(kinds: Kinds, delta: float) -> float:
    """The least epsilon over dp-accounting's orders, from a few of them: a bound at each, and the same number.

    With K(a) = (a - 1) D_a, a log moment of the privacy loss and so convex, epsilon at order a (Canonne, Kamath,
    Steinke 2020, Proposition 12) is

        (K(a) + (a - 1) log(a - 1) - a log(a) - log(delta)) / (a - 1).

    The second derivative of (a - 1) log(a - 1) - a log(a) is 1 / (a - 1) - 1 / a > 0. So the numerator is convex, and
    its quotient by a - 1 falls up to the best order and rises after it: the best order lies between the neighbours of
    the best whole order. No order outside is better in dp-accounting either, which overstates D_a at fractional orders:
    it adds all terms of an alternating series, and states infinity where the series does not converge.

    dp-accounting has a second bound: epsilon is 0 if delta^2 > 1 - exp(-D_a), for which the lowest orders are the best.
    It holds at none if the Kullback-Leibler divergence, which is at most D_a and at least 2 TV^2 (Pinsker) for each
    release, is too large. The total variation TV of a sampled Gaussian release is q erf(1 / (sqrt(8) sigma)).
    """
    if not kinds:
        return 0.0
    if _unresolved(kinds):
        return math.inf
    orders = _renyi_accountant().orders.tolist()
    whole = [place for place, order in enumerate(orders) if order == int(order)]

    @cache
    def at(place: int) -> float:
        composed = _composed_by(_renyi_accountant([orders[place]]), kinds)
        return math.inf if composed is None else float(composed.get_epsilon(delta))

    divergence = sum(2 * one.count * (one.rate * math.erf(1 / (math.sqrt(8) * one.multiplier))) ** 2 for one in kinds)
    low, high = 0, len(whole) - 1
    with _quiet():
        if divergence <= -math.log1p(-(delta**2)) and min(at(place) for place in range(whole[0] + 1)) == 0:
            return 0.0
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if at(whole[middle]) <= at(whole[middle + 1]) else (middle + 1, high)
        first = whole[low - 1] if low else 0
        return min(at(place) for place in range(first, whole[min(low + 1, len(whole) - 1)] + 1))


@lru_cache(maxsize=1024)
def renyi_divergences(releases: tuple[Releases, ...]) -> tuple[float, ...]:
    """Renyi divergences of all `releases` together at `FILTER_ORDERS`, nats: proven upper bounds."""
    kinds, orders = _kinds(releases), np.array(FILTER_ORDERS)
    if _unresolved(kinds):
        return (math.inf,) * len(orders)
    each = (kind.count * renyi_table(kind.multiplier, kind.rate, np.ones(1), orders)[0] for kind in kinds)
    return tuple((sum(each, np.zeros(len(orders))) * UP_SUMS).tolist())


@lru_cache(maxsize=1024)
def repeated_epsilon(releases: tuple[Releases, ...], mean_repetitions: int, delta: float) -> float:
    """Epsilon of the best of a geometric number of runs that make `releases`: dp-accounting's Renyi bound.

    Papernot and Steinke 2022, Theorem 2 with eta = 1.
    """
    kinds = _kinds(releases)
    if _unresolved(kinds):
        return math.inf
    accountant = _renyi_accountant()
    from dp_accounting import ComposedDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    with _quiet():
        try:
            run = ComposedDpEvent([_event(kind) for kind in kinds])
            accountant.compose(RepeatAndSelectDpEvent(run, mean_repetitions, 1))
        except OverflowError:
            return math.inf
        return float(accountant.get_epsilon(delta))


def _renyi_accountant(orders: Sequence[float] | None = None) -> Any:
    """dp-accounting's Renyi accountant at these orders, or at its own."""
    with _light_imports():
        from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(orders)


def _gains_by_sampling(kind: Kind) -> bool:
    return kind.rate**2 > SMALLEST_DIVERGENCE * kind.multiplier**2


def _event(kind: Kind) -> Any:
    from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event: DpEvent = GaussianDpEvent(kind.multiplier)
    # where float64 cannot resolve the divergence of the sampled release, the rate is its upper bound 1
    if kind.rate < 1 and _gains_by_sampling(kind):
        event = PoissonSampledDpEvent(kind.rate, event)
    return SelfComposedDpEvent(event, kind.count)


def _composed_by(accountant: Any, kinds: Kinds) -> Any:
    try:
        for kind in kinds:
            accountant.compose(_event(kind))
    except OverflowError:  # the noise is so small that a privacy loss overflows
        return None
    return accountant


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence absl's warnings about Renyi orders: no user can act on them."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def round_up(value: float, digits: int = 8) -> float:
    """`value` rounded up to `digits` significant digits, so that the multiplier printed is the multiplier used."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    rounded = math.ceil(value * scale) / scale
    return rounded if rounded >= value else math.nextafter(value, math.inf)


def smallest_multiplier(
    epsilon_at: Callable[[float], float], epsilon: float, guess: float, roughly: Callable[[float], float]
) -> float:
    """Smallest noise multiplier, to about three parts in 10^5 above, with `epsilon_at(multiplier) <= epsilon`.

    `epsilon_at` falls with the multiplier. `guess`, and `roughly`, a faster approximation of `epsilon_at`, only save
    evaluations. Where the two differ by more than they do in ordinary settings, the multiplier is larger than it need
    be, and still enough. PrivacyError: none up to `MAX_SIGMA`, or none of those tried, is enough.
    """
    rough, slope = _secant(roughly, epsilon, guess) or _root(roughly, epsilon, guess)
    found = epsilon_at(math.exp(rough))
    log_sigma = rough + math.log(found / epsilon) / slope if slope > 0 and 0 < found < math.inf else rough
    sigma, enough = round_up(math.exp(log_sigma + SAFE_SIDE)), round_up(math.exp(rough)) if found <= epsilon else 0.0
    for tries in range(MOST_TRIES):
        found = epsilon_at(sigma)
        if found <= epsilon:
            return sigma
        step = ROOT_TOLERANCE * 4 ** max(0, tries - SMALL_TRIES)
        if tries >= SMALL_TRIES and found < math.inf:
            step = max(step, math.log(found / epsilon) / max(slope, 1.0))
        larger = round_up(sigma * math.exp(min(step, LONGEST_STEP)))
        sigma = min(larger, enough) if sigma < enough else larger
    raise PrivacyError(
        f"epsilon is {rounded_up(epsilon)}, and the accountant gives a larger one at every noise multiplier tried up "
        f"to {rounded_down(sigma, 4)}; allowed: a larger epsilon; raise --eps or --delta, or choose --accountant rdp"
    )


def _secant(epsilon_at: Callable[[float], float], epsilon: float, guess: float) -> tuple[float, float] | None:
    """`_root` by a few steps of the secant method, where log(epsilon) is nearly linear; None where it is not."""
    here, slope = math.log(guess), 1.0
    excess = _log_ratio(epsilon_at(guess), epsilon)
    for _ in range(SECANTS):
        step = excess / slope
        if not 0 < abs(step) <= LONGEST_STEP:
            return None
        before, excess = excess, _log_ratio(epsilon_at(math.exp(here + step)), epsilon)
        here, slope = here + step, (before - excess) / step
        if not 0 < slope < math.inf:
            return None
        if abs(step) <= SHORT_STEP and abs(excess) <= slope * SHORT_STEP / 10:
            return here + excess / slope, slope
    return None


def _log_ratio(found: float, epsilon: float) -> float:
    return math.log(found / epsilon) if found > 0 else -math.inf


def _root(epsilon_at: Callable[[float], float], epsilon: float, guess: float) -> tuple[float, float]:
    """log(multiplier) where `epsilon_at` is `epsilon`, to `ROOT_TOLERANCE`; how fast log(epsilon) falls there, or 0."""

    def excess(log_sigma: float) -> float:
        return min(epsilon_at(math.exp(log_sigma)), 10 * epsilon) - epsilon

    low = high = math.log(guess)
    reach = BRACKET
    while excess(high) > 0:
        if high > math.log(MAX_SIGMA):
            raise PrivacyError(
                f"epsilon is {rounded_up(epsilon)}, and the accountant gives a larger one at every noise multiplier "
                f"up to {MAX_SIGMA:g}; allowed: a larger epsilon; raise --eps or --delta, or choose --accountant rdp"
            )
        low, high, reach = high, high + reach, 2 * reach
    while low == high or excess(low) <= 0:
        high, low, reach = low, low - reach, 2 * reach
    root = scipy.optimize.brentq(excess, low, high, xtol=ROOT_TOLERANCE)
    here, beyond = (epsilon_at(math.exp(place)) for place in (root, root + SLOPE_STEP))
    known = 0 < here < math.inf and 0 < beyond < math.inf
    return float(root), math.log(here / beyond) / SLOPE_STEP if known else 0.0


def renyi_estimate(releases: Sequence[Releases], delta: float) -> float:
    """Epsilon of all `releases` together by Renyi divergences, integrated in float64, without any library."""
    kinds = _kinds(releases)
    return math.inf if _unresolved(kinds) else renyi_epsilon(_on_grid(kinds), delta)


def renyi_table(noise_multiplier: float, sampling_rate: float, shares: Reals, orders: Indices) -> Reals:
    """Renyi divergence of one sampled release, for records that contribute a given share of the sensitivity.

    Mironov, Talwar, Zhang 2019, equation for integer orders alpha at multiplier sigma / share:

        exp((alpha - 1) D) = sum_k C(alpha, k) q^k (1 - q)^(alpha - k) exp((k^2 - k) / (2 (sigma/share)^2)).
    Returns: nats, proven upper bounds by ball arithmetic, shape (len(shares), len(orders)).
    """
    from flint import arb, arb_mat, ctx

    table = np.zeros((len(shares), len(orders)))
    with ctx.workprec(RENYI_BITS):
        columns = []
        for share in shares.tolist():  # moments of the likelihood ratio of a Gaussian, for k from 0
            growth = ((share / arb(noise_multiplier)) ** 2).exp()
            factors = accumulate(repeat(growth, int(orders.max()) - 1), mul)  # of each moment to the next, from k = 1
            columns.append([arb(1), *accumulate(factors, mul, initial=arb(1))])
        stays = (1 - arb(sampling_rate)) / arb(sampling_rate)
        for column, alpha in enumerate(orders.tolist()):
            weights = [arb(sampling_rate) ** alpha]
            for k in range(alpha, 0, -1):
                weights.append(weights[-1] * stays * k / (alpha - k + 1))
            moments = arb_mat([own[alpha::-1] for own in columns]) * arb_mat(alpha + 1, 1, weights)
            table[:, column] = [
                max(0.0, upper_float(moments[row, 0].log() / (alpha - 1))) if share else 0.0
                for row, share in enumerate(shares.tolist())
            ]
    return table
