"""The limit on attacks: what the definition allows, what the best test reaches, and never less."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from linprobe.accounting.accountants import ACCOUNTANTS, GAUSSIAN, tpr_limit
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import epsilon_of

RATES = np.array([1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9])
FULL = [Releases("gradient", 9.8329807, 1.0, 50)]
SAMPLED = [Releases("gradient", 3.1197602, 0.15, 200)]


def exact_limit(fpr: float, epsilon: float, delta: float) -> float:
    """The highest rate that both lines of the definition allow, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(200):
        tpr = (low + high) / 2
        allowed = tpr <= math.exp(epsilon) * fpr + delta and 1 - fpr <= math.exp(epsilon) * (1 - tpr) + delta
        low, high = (tpr, high) if allowed else (low, tpr)
    return low


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 3.0, 30.0])
def test_limit_of_one_pair_is_the_definition_of_differential_privacy(epsilon: float) -> None:
    expected = [exact_limit(fpr, epsilon, 1e-5) for fpr in RATES]
    assert tpr_limit(RATES, epsilon, 1e-5) == pytest.approx(expected, abs=1e-12)


def test_limit_of_one_pair_at_the_ends() -> None:
    rates = np.linspace(0, 1, 101)
    for epsilon, delta in ((0.0, 0.0), (1.0, 1e-5), (3.0, 0.01), (100.0, 1e-6), (5000.0, 1e-5)):
        limit = tpr_limit(rates, epsilon, delta)
        assert np.all(limit >= np.minimum(rates, limit))
        assert np.all((limit >= 0) & (limit <= 1))
        assert np.all((1 - rates - delta) * np.exp(-epsilon) <= 1 - limit + 1e-12)
    assert np.allclose(tpr_limit(rates, 0.0, 0.0), rates, atol=1e-15)
    assert tpr_limit(np.array(0.01), 5000.0, 1e-5) == 1.0


def test_limit_of_a_gaussian_run_is_reached_by_the_best_test() -> None:
    """Telling N(mu, 1) from N(0, 1) by a threshold is the worst case; nothing beats it."""
    limit, mu = GAUSSIAN.attack_limit(FULL, 1e-5), math.sqrt(50) / 9.8329807
    thresholds = np.linspace(-3, 4, 15)
    assert limit(norm.sf(thresholds)) == pytest.approx(norm.sf(thresholds - mu), rel=1e-9)
    assert "mu" in limit.source


@pytest.mark.parametrize("mu", [0.03, 0.7, 5.0])
def test_mu_gives_the_tighter_limit_and_the_curve_is_close_to_it(mu: float) -> None:
    releases = [Releases("gradient", 1 / mu, 1.0, 1)]
    by_mu, by_curve = (ACCOUNTANTS[judge].attack_limit(releases, 1e-5)(RATES) for judge in ("gdp", "pld"))
    assert np.all(by_mu <= by_curve)
    assert np.all(by_mu <= tpr_limit(RATES, epsilon_of(mu, 1e-5), 1e-5))
    assert by_curve == pytest.approx(by_mu, rel=0.01)


def poisson_attack(sigma: float, rate: float, steps: int, fpr: float) -> float:
    """The tpr of a test of one record that is 1 among zeros: the sum of the sampled releases against a threshold."""
    counts = np.arange(steps + 1)
    weights = np.exp([math.log(math.comb(steps, int(k))) for k in counts])
    weights = weights * rate**counts * (1 - rate) ** (steps - counts)
    threshold = norm.isf(fpr) * sigma * math.sqrt(steps)
    return float(weights @ ndtr((counts - threshold) / (sigma * math.sqrt(steps))))


@pytest.mark.parametrize("judge", ["pld", "rdp"])
def test_limit_of_a_sampled_run_bounds_an_attack_and_is_below_that_of_one_pair(judge: str) -> None:
    limit = ACCOUNTANTS[judge].attack_limit(SAMPLED, 1e-5)
    found = [poisson_attack(3.1197602, 0.15, 200, fpr) for fpr in RATES]
    assert np.all(limit(RATES) >= found)
    one_pair = tpr_limit(RATES, ACCOUNTANTS[judge].epsilon(SAMPLED, 1e-5), 1e-5)
    assert np.all(limit(RATES) <= one_pair + 1e-12)
    assert limit(0.01) < one_pair[2] / 3
    assert "epsilon and delta" in limit.source


def test_without_releases_the_limit_is_guessing() -> None:
    assert GAUSSIAN.attack_limit([], 1e-5)(RATES).tolist() == RATES.tolist()
