"""Targets to steps or noise: never above the target, hardly below it."""

import math

import numpy as np
import pytest

from linprobe.accounting.accountants import epsilon_of
from linprobe.accounting.calibrate import calibrate, largest_mu
from linprobe.errors import ParameterError, PrivacyError, UsageError

RANDOM = np.random.default_rng(20)
TARGETS = [
    (
        float(np.exp(RANDOM.uniform(np.log(0.02), np.log(50)))),
        float(10 ** RANDOM.uniform(-9, -3)),
        int(RANDOM.integers(1, 5000)),
    )
    for _ in range(200)
]


def test_calibrated_noise_never_overspends_and_wastes_at_most_a_thousandth() -> None:
    for epsilon, delta, steps in TARGETS:
        budget = calibrate(epsilon=epsilon, delta=delta, n_private=100, steps=steps)
        reached = epsilon_of(budget.gdp_mu, delta)
        assert budget.n_steps == steps
        assert epsilon * (1 - 1e-3) <= reached <= epsilon


def test_calibrated_steps_never_overspend_and_one_more_would() -> None:
    checked = 0
    for epsilon, delta, steps in TARGETS:
        sigma = math.sqrt(steps + 0.5) / largest_mu(epsilon, delta)
        budget = calibrate(epsilon=epsilon, delta=delta, n_private=100, noise_multiplier=sigma)
        assert budget.n_steps == steps
        assert epsilon_of(budget.gdp_mu, delta) <= epsilon
        assert epsilon_of(math.sqrt(steps + 1) / sigma, delta) > epsilon
        checked += 1
    assert checked == 200


def test_the_papers_sigma_gives_steps_by_the_corrected_formula() -> None:
    # mu(3, 1e-5) = 1 / 1.39059, so T = floor((20 / 1.39059)^2) = 206
    assert calibrate(epsilon=3, delta=1e-5, n_private=1000, noise_multiplier=20).n_steps == 206


def test_sigma_for_one_release_is_the_published_one() -> None:
    assert calibrate(epsilon=3, delta=1e-5, n_private=10, steps=1).noise_multiplier == pytest.approx(1.39059, abs=1e-5)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 1e9, None])
def test_epsilon_outside_its_range_is_refused(epsilon) -> None:
    with pytest.raises(ParameterError, match="epsilon is"):
        calibrate(epsilon=epsilon, delta=1e-5, n_private=10)


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan, 2])
def test_delta_outside_its_range_is_a_usage_error(delta) -> None:
    with pytest.raises(ParameterError, match="delta is"):
        calibrate(epsilon=1, delta=delta, n_private=10)


@pytest.mark.parametrize(("delta", "n_private"), [(0.1, 10), (1e-5, 100_000), (0.5, 10)])
def test_delta_of_one_over_n_or_more_is_a_privacy_refusal(delta, n_private) -> None:
    with pytest.raises(PrivacyError, match="1/N"):
        calibrate(epsilon=1, delta=delta, n_private=n_private)


def test_sigma_too_small_for_one_step_is_refused_and_says_what_would_do() -> None:
    with pytest.raises(PrivacyError, match=r"at least 3\.73"):
        calibrate(epsilon=1, delta=1e-5, n_private=10, noise_multiplier=1)
    assert calibrate(epsilon=1, delta=1e-5, n_private=10, noise_multiplier=3.731).n_steps == 1


def test_sigma_and_steps_together_are_refused() -> None:
    with pytest.raises(UsageError, match="both"):
        calibrate(epsilon=1, delta=1e-5, n_private=10, noise_multiplier=20, steps=5)


@pytest.mark.parametrize(
    "given", [{"steps": 0}, {"steps": 10**7}, {"noise_multiplier": 0}, {"noise_multiplier": math.nan}]
)
def test_steps_and_sigma_outside_their_ranges_are_refused(given) -> None:
    with pytest.raises(ParameterError):
        calibrate(epsilon=1, delta=1e-5, n_private=10, **given)
