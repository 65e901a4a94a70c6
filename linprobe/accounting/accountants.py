"""Accountants: releases in, epsilon out. The only file that imports dp_accounting.

`gdp` is Gaussian differential privacy, whose composition is exact. It is the accountant of record if all sums are over
all rows: `gaussian_dp.py` has the formula and proven bounds.
`pld` uses dp-accounting's privacy-loss distributions, on a grid that rounds towards more loss. It is the accountant of
record if any sum is over a Poisson sample. `rdp` uses dp-accounting's Renyi bounds, which are looser and need no grid.
A second accountant cross-checks every epsilon of record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.accounting.events import Releases
from linprobe.accounting.gaussian_dp import composed_mu, composed_rho, delta_of, epsilon_of
from linprobe.errors import ParameterError

ACCOUNTANTS = {
    "gdp": "Gaussian DP (ball arithmetic)",
    "pld": "privacy-loss distribution (dp-accounting)",
    "rdp": "Renyi DP (dp-accounting)",
}
CROSS_CHECKS = {"gdp": "pld", "pld": "rdp", "rdp": "pld"}
AGREEMENT_RELATIVE = 2e-3
AGREEMENT_ABSOLUTE = 5e-4
EXCESS_RELATIVE = 2.0
EXCESS_ABSOLUTE = 3.0
PLD_GRID = 3e-5  # grid step of `pld`, relative to epsilon
ROUGH_GRID = 3e-4  # several times as fast; overstates epsilon a little more: sums over all rows by less than 10^-6
SMALLEST_DIVERGENCE = 1e-13
RENYI_ROUNDING = 1e-15
NEGLIGIBLE_NOISE = 1e-3  # smaller multipliers are treated as 0, as the libraries overflow; one then returns epsilon 0


def accountant_versions() -> dict[str, str]:
    """Installed versions of the libraries that accountants use."""
    return {name: version(name) for name in ("python-flint", "dp-accounting")}


def choose_accountant(name: str, releases: Sequence[Releases]) -> str:
    """The accountant of record: `auto` is gdp if every sum is over all rows, else pld.

    Raises:
        ParameterError: an unknown name, or gdp for sampled sums.
    """
    least = min((release.sampling_rate for release in releases), default=1.0)
    if name == "auto":
        return "gdp" if least == 1 else "pld"
    if name not in ACCOUNTANTS:
        raise ParameterError(f"accountant is {name!r}; allowed: auto, {', '.join(ACCOUNTANTS)}")
    if name == "gdp" and least < 1:
        raise ParameterError(f"accountant is 'gdp' and the sampling rate {least:g}; allowed below 1: pld, rdp")
    return name


def gdp_mu(releases: Sequence[Releases]) -> float:
    """mu of a composition of sums over all rows, dimensionless; 0 for no releases, infinity if one had no noise.

    Raises:
        ValueError: a sampled release, which has no mu.
    """
    return composed_mu(_full(releases))


def gaussian_figures(releases: Sequence[Releases]) -> dict[str, float | None]:
    """gdp_mu and zcdp_rho of a composition; None if it has sampled releases, for which neither is defined."""
    if any(release.sampling_rate < 1 for release in releases):
        return {"gdp_mu": None, "zcdp_rho": None}
    terms = _full(releases)
    return {"gdp_mu": composed_mu(terms), "zcdp_rho": composed_rho(terms)}


def _full(releases: Sequence[Releases]) -> list[tuple[int, float]]:
    """Count and noise multiplier of every kind of release."""
    if any(release.sampling_rate != 1 for release in releases):
        raise ValueError("sampling rate is below 1; allowed for Gaussian DP: 1")
    return [(release.count, release.noise_multiplier) for release in releases]


def composed_epsilon(releases: Sequence[Releases], delta: float, accountant: str, *, rough: bool = False) -> float:
    """Epsilon of all `releases` together at `delta`: an upper bound, by one of `ACCOUNTANTS`.

    `rough` is a faster and slightly larger bound, for searches.
    """
    full = all(release.sampling_rate == 1 for release in releases)
    grid = ROUGH_GRID if (rough or full) and accountant == "pld" else PLD_GRID  # the others have no grid
    return _composed_epsilon(_kinds(releases), delta, accountant, grid)


def composed_deltas(
    releases: Sequence[Releases], epsilons: Sequence[float], delta: float, accountant: str
) -> NDArray[np.float64]:
    """delta(epsilon) of all `releases` together by one of `ACCOUNTANTS`: upper bounds, shape (len(epsilons),).

    `delta` is the one that the guarantee states. It sets the grid of `pld`, as in `composed_epsilon`.
    """
    if accountant == "gdp":
        mu = gdp_mu(releases)
        return np.array([delta_of(epsilon, mu) for epsilon in epsilons])
    from dp_accounting.pld import PLDAccountant

    with _quiet():
        composed = _composed(_kinds(releases), delta, accountant)
        if composed is None:
            return np.ones(len(epsilons))
        if isinstance(composed, PLDAccountant):  # all at once is five times as fast
            return np.asarray(composed.get_delta(epsilons))
        return np.array([composed.get_delta(epsilon) for epsilon in epsilons])


def _kinds(releases: Sequence[Releases]) -> tuple[tuple[float, float, int], ...]:
    return tuple((release.noise_multiplier, release.sampling_rate, release.count) for release in releases)


def resolved_rate(noise_multiplier: float, sampling_rate: float) -> float:
    """`sampling_rate`, or the upper bound 1 if float64 cannot resolve the divergence of the sampled release."""
    return sampling_rate if sampling_rate**2 > SMALLEST_DIVERGENCE * noise_multiplier**2 else 1.0


@lru_cache(maxsize=1024)
def _composed_epsilon(kinds: tuple[tuple[float, float, int], ...], delta: float, accountant: str, grid: float) -> float:
    if accountant == "gdp":
        return epsilon_of(gdp_mu([Releases("", *kind) for kind in kinds]), delta)
    if not kinds:
        return 0.0
    if any(multiplier < NEGLIGIBLE_NOISE for multiplier, _, _ in kinds):
        return math.inf
    with _quiet():
        composed = _composed(kinds, delta, accountant, grid)
        return math.inf if composed is None else float(composed.get_epsilon(delta))


def _composed(kinds: Sequence[tuple[float, float, int]], delta: float, accountant: str, grid: float = PLD_GRID) -> Any:
    """dp-accounting's accountant after all releases; None if a privacy loss overflows."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    renyi = _composed_by(RdpAccountant, kinds)
    if accountant == "rdp" or renyi is None:
        return renyi
    epsilon = renyi.get_epsilon(delta)
    if not 0 < epsilon < math.inf:
        return renyi
    # a coarser grid overstates a small epsilon, a finer grid is slow for a large one
    return _composed_by(lambda: PLDAccountant(value_discretization_interval=grid * epsilon), kinds)


@lru_cache(maxsize=1024)
def repeated_epsilon(releases: tuple[Releases, ...], mean_repetitions: int, delta: float) -> float:
    """Epsilon of the best of a geometric number of runs that make `releases`: dp-accounting's Renyi bound.

    Papernot and Steinke 2022, Theorem 2 with eta = 1.
    """
    from dp_accounting import ComposedDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    kinds = _kinds(releases)
    if any(multiplier < NEGLIGIBLE_NOISE for multiplier, _, _ in kinds):
        return math.inf
    accountant = RdpAccountant()
    with _quiet():
        try:
            run = ComposedDpEvent([_event(*kind) for kind in kinds])
            accountant.compose(RepeatAndSelectDpEvent(run, mean_repetitions, 1))
        except OverflowError:
            return math.inf
        return float(accountant.get_epsilon(delta))


def _event(multiplier: float, given_rate: float, count: int) -> Any:
    from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event: DpEvent = GaussianDpEvent(multiplier)
    rate = resolved_rate(multiplier, given_rate)
    if rate < 1:
        event = PoissonSampledDpEvent(rate, event)
    return SelfComposedDpEvent(event, count)


def _composed_by(make: Callable[[], Any], kinds: Sequence[tuple[float, float, int]]) -> Any:
    accountant = make()
    for kind in kinds:
        try:
            accountant.compose(_event(*kind))
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


def accountants_agree(accountant: str, record: float, cross_check: float) -> bool:
    """Whether the epsilon of record and that of its cross-check can both be right.

    Two figures of full-batch sums agree within the discretisation error. For sampled sums, both figures are upper
    bounds. An epsilon of record is then refused as too low only if the other figure is several times higher. The
    check is coarse at small epsilon: at delta 1e-5 the Renyi bound is usually 1.09 times the PLD figure, but 2.3
    times a PLD figure of 0.18 (q = 0.0001, 100 steps).
    """
    if not (math.isfinite(record) and math.isfinite(cross_check)):
        return record == cross_check
    if accountant == "gdp":
        return abs(record - cross_check) <= AGREEMENT_RELATIVE * record + AGREEMENT_ABSOLUTE
    return cross_check <= EXCESS_RELATIVE * record + EXCESS_ABSOLUTE


def renyi_table(
    noise_multiplier: float, sampling_rate: float, shares: NDArray[np.float64], orders: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Renyi divergence of one sampled release, for records that contribute a given share of the sensitivity.

    Mironov, Talwar, Zhang 2019, equation for integer orders alpha at multiplier sigma / share:

        exp((alpha - 1) D) = sum_k C(alpha, k) q^k (1 - q)^(alpha - k) exp((k^2 - k) / (2 (sigma/share)^2)).

    Returns: nats, rounded up, shape (len(shares), len(orders)).
    """
    rate = resolved_rate(noise_multiplier, sampling_rate)
    table = np.empty((len(shares), len(orders)))
    for column, alpha in enumerate(orders.tolist()):
        k = np.arange(alpha + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            stays = np.where(k < alpha, (alpha - k) * np.log1p(-rate), 0.0)
        weight = (
            scipy.special.gammaln(alpha + 1)
            - scipy.special.gammaln(k + 1)
            - scipy.special.gammaln(alpha - k + 1)
            + k * math.log(rate)
            + stays
        )
        exponents = weight + np.multiply.outer(shares**2, (k * (k - 1)) / (2 * noise_multiplier**2))
        table[:, column] = np.maximum(scipy.special.logsumexp(exponents, axis=1), 0.0) / (alpha - 1)
    table += RENYI_ROUNDING
    table[shares == 0] = 0.0
    return table
