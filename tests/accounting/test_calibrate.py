"""Calibration of steps or noise: never above the target, and only slightly below it."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from linprobe.accounting.accountants import (
    ACCOUNTANTS,
    GAUSSIAN,
    PLD,
    RENYI,
    confirmed,
    gdp_mu,
    round_up,
    smallest_multiplier,
)
from linprobe.accounting.calibrate import Budget, _largest_count, calibrate, large_delta
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import epsilon_of, largest_mu
from linprobe.errors import ParameterError, PrivacyError, UsageError
from linprobe.options import MAX_STEPS
from tests.conftest import mostly_nightly

RANDOM = np.random.default_rng(20)
TARGETS = [
    (
        float(np.exp(RANDOM.uniform(np.log(0.02), np.log(50)))),
        float(10 ** RANDOM.uniform(-9, -3)),
        int(RANDOM.integers(1, 5000)),
    )
    for _ in range(80)
]


def independent_epsilon(budget: Budget, accountant: PLDAccountant | RdpAccountant) -> float:
    """Epsilon of a budget by `accountant`, with one event per release."""
    for release in budget.releases:
        event = PoissonSampledDpEvent(release.sampling_rate, GaussianDpEvent(release.noise_multiplier))
        accountant.compose(SelfComposedDpEvent(event, release.count))
    return float(accountant.get_epsilon(budget.delta))


def reached(budget: Budget) -> float:
    return budget.accountant.epsilon(budget.releases, budget.delta)


def test_calibrated_noise_never_overspends_and_wastes_at_most_a_thousandth() -> None:
    for epsilon, delta, steps in TARGETS:
        budget = calibrate(epsilon=epsilon, delta=delta, n_private=100, steps=steps)
        assert (budget.n_steps, budget.accountant) == (steps, GAUSSIAN)
        assert epsilon * (1 - 1e-3) <= epsilon_of(gdp_mu(budget.releases), delta) <= epsilon


def test_calibrated_steps_never_overspend_and_one_more_would() -> None:
    for epsilon, delta, steps in TARGETS:
        sigma = math.sqrt(steps + 0.5) / largest_mu(epsilon, delta)
        budget = calibrate(epsilon=epsilon, delta=delta, n_private=100, noise_multiplier=sigma)
        assert budget.n_steps == steps
        assert epsilon_of(gdp_mu(budget.releases), delta) <= epsilon
        assert epsilon_of(math.sqrt(steps + 1) / sigma, delta) > epsilon


def test_nominal_mu_of_full_sums_is_the_exact_one() -> None:
    budget = calibrate(epsilon=3, delta=1e-5, n_private=100, steps=7)
    assert budget.nominal_mu == pytest.approx(gdp_mu(budget.releases), rel=1e-14)


def test_the_papers_sigma_gives_steps_by_the_corrected_formula() -> None:
    # mu(3, 1e-5) = 1 / 1.39059, so T = floor((20 / 1.39059)^2) = 206
    assert calibrate(epsilon=3, delta=1e-5, n_private=1000, noise_multiplier=20).n_steps == 206


def test_sigma_for_one_release_is_the_published_one() -> None:
    assert calibrate(epsilon=3, delta=1e-5, n_private=10, steps=1).noise_multiplier == pytest.approx(1.39059, abs=1e-5)


# sampled sums


@pytest.mark.parametrize(
    ("accountant", "epsilon", "delta", "rate", "steps"),
    mostly_nightly(
        [
            ("rdp", 3, 1e-5, 0.04, 1500),
            ("pld", 40, 1e-5, 0.5, 100),
            ("rdp", 40, 1e-5, 0.5, 100),
            ("pld", 3, 1e-5, 0.04, 1500),
        ],
        lambda case: (case[0] == "pld") == (case[1] == 40),
    ),
)
def test_sampled_noise_never_overspends_by_any_count_and_wastes_at_most_a_thousandth(
    accountant: str, epsilon: float, delta: float, rate: float, steps: int
) -> None:
    budget = calibrate(
        epsilon=epsilon, delta=delta, n_private=100, steps=steps, sampling_rate=rate, accountant=accountant
    )
    assert (budget.n_steps, budget.sampling_rate, budget.accountant.name) == (steps, rate, accountant)
    assert (1 - 1e-3) * epsilon <= reached(budget) <= epsilon
    theirs = RdpAccountant() if accountant == "rdp" else PLDAccountant(value_discretization_interval=1e-4 * epsilon)
    assert independent_epsilon(budget, theirs) <= epsilon * (1 + 1e-3)


@pytest.mark.parametrize(
    ("accountant", "rate", "sigma"),
    mostly_nightly(
        [("pld", 0.3, 9.0), ("pld", 0.01, 1.4), ("rdp", 0.1, 4.0), ("rdp", 0.02, 0.7)], lambda case: case[1] >= 0.1
    ),
)
def test_sampled_steps_never_overspend_and_one_more_would(accountant: str, rate: float, sigma: float) -> None:
    budget = calibrate(
        epsilon=3, delta=1e-5, n_private=100, noise_multiplier=sigma, sampling_rate=rate, accountant=accountant
    )
    assert budget.noise_multiplier == sigma
    assert reached(budget) <= 3
    more = Releases("gradient", sigma, rate, budget.n_steps + 1)
    assert ACCOUNTANTS[accountant].epsilon([more], 1e-5) > 3


def test_sampled_steps_take_few_evaluations_of_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    epsilon_of_releases = RENYI.epsilon

    def count(releases: tuple[Releases, ...], delta: float, *, rough: bool = False) -> float:
        counted.append(releases)
        return epsilon_of_releases(releases, delta, rough=rough)

    monkeypatch.setattr(RENYI, "epsilon", count)
    calibrate(epsilon=2, delta=1e-5, n_private=100, noise_multiplier=2.2, sampling_rate=0.03, accountant="rdp")
    assert 3 <= len(set(counted)) <= 12


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(3.0, 0.15, 200), (0.5, 0.5, 10)])
def test_a_rough_search_leaves_few_exact_evaluations_and_spends_the_budget(
    monkeypatch: pytest.MonkeyPatch, epsilon: float, rate: float, steps: int
) -> None:
    exact, epsilon_of_releases = set(), PLD.epsilon

    def note(releases: tuple[Releases, ...], delta: float, *, rough: bool = False) -> float:
        if not rough:
            exact.add(releases)
        return epsilon_of_releases(releases, delta, rough=rough)

    monkeypatch.setattr(PLD, "epsilon", note)
    budget = calibrate(epsilon=epsilon, delta=1e-5, n_private=1000, steps=steps, sampling_rate=rate)
    assert len(exact - {()}) <= 3
    assert epsilon * (1 - 1e-4) <= PLD.epsilon(budget.releases, 1e-5) <= epsilon


@pytest.mark.parametrize("guess", [1e-4, 0.5, 1.0, 3.0, 1e5])
@pytest.mark.parametrize(
    "falls", [lambda sigma: 2 / sigma, lambda sigma: 2 * math.exp(1 - sigma), lambda sigma: 9.0 * (sigma < 1) + 1]
)
def test_the_multiplier_does_not_depend_on_the_guess(falls: Callable[[float], float], guess: float) -> None:
    found = smallest_multiplier(falls, 2.0, guess, falls)
    assert falls(found) <= 2
    assert found == pytest.approx(1, rel=1e-4)


def test_sampling_every_row_by_another_accountant_never_overspends_by_the_exact_one() -> None:
    for accountant in ("pld", "rdp"):
        budget = calibrate(epsilon=2, delta=1e-5, n_private=100, steps=20, accountant=accountant)
        assert budget.accountant.name == accountant
        assert epsilon_of(gdp_mu(budget.releases), 1e-5) <= 2


# other releases on the same budget

MEAN = Releases("mean", 4.0, 1.0, 1)


@pytest.mark.parametrize(("rate", "accountant"), [(1.0, "gdp"), (0.3, "rdp")])
def test_other_releases_are_paid_from_the_same_budget(rate: float, accountant: str) -> None:
    asked = {"epsilon": 3, "delta": 1e-5, "n_private": 100, "sampling_rate": rate, "accountant": accountant}
    alone = calibrate(**asked, steps=100)
    shared = calibrate(**asked, steps=100, others=[MEAN])
    assert shared.others == (MEAN,)
    assert shared.releases[0] == MEAN
    assert shared.noise_multiplier > alone.noise_multiplier
    assert 3 * (1 - 1e-3) <= reached(shared) <= 3
    fewer = calibrate(**asked, noise_multiplier=alone.noise_multiplier, others=[MEAN])
    assert 50 < fewer.n_steps < 100
    assert reached(fewer) <= 3


def test_full_sums_beside_others_share_the_squares_of_mu() -> None:
    budget = calibrate(epsilon=3, delta=1e-5, n_private=100, steps=10, others=[MEAN])
    left = largest_mu(3, 1e-5) ** 2 - 1 / 16
    assert budget.noise_multiplier == pytest.approx(math.sqrt(10 / left), rel=1e-7)


def test_a_sampled_release_beside_full_sums_takes_the_distribution_accountant() -> None:
    sampled = Releases("first model", 2.0, 0.1, 100)
    assert calibrate(epsilon=3, delta=1e-5, n_private=100, noise_multiplier=9, others=[sampled]).accountant is PLD
    with pytest.raises(ParameterError, match="'gdp'"):
        calibrate(epsilon=3, delta=1e-5, n_private=100, steps=1, others=[sampled], accountant="gdp")


@pytest.mark.parametrize("accountant", ["gdp", "pld", "rdp"])
@pytest.mark.parametrize("sigma", [1.0, 0.0])
def test_others_that_leave_nothing_are_refused_by_name(accountant: str, sigma: float) -> None:
    with pytest.raises(PrivacyError, match="histogram, mean releases alone cost"):
        calibrate(
            epsilon=3,
            delta=1e-5,
            n_private=10,
            steps=5,
            accountant=accountant,
            others=[Releases("mean", sigma, 1.0, 1), Releases("histogram", 1.0, 1.0, 1)],
        )


# the search


def test_smallest_multiplier_finds_a_known_root_from_either_side() -> None:
    for guess in (0.01, 3.0, 500.0):
        sigma = smallest_multiplier(lambda sigma: 5 / sigma, 2.0, guess, lambda sigma: 5.1 / sigma)
        assert 2.5 <= sigma <= 2.5 * (1 + 1e-4)


def test_a_target_no_noise_reaches_is_refused_and_not_searched_for_ever() -> None:
    started = time.perf_counter()
    with pytest.raises(PrivacyError, match="at every noise multiplier up to 1e\\+09"):
        smallest_multiplier(lambda sigma: 0.1, 0.05, 1.0, lambda sigma: 0.1)
    assert time.perf_counter() - started < 1


def counted(epsilon_at: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    """The function, and the list of what it was asked."""
    asked: list[float] = []

    def noted(sigma: float) -> float:
        asked.append(sigma)
        return epsilon_at(sigma)

    return noted, asked


@pytest.mark.parametrize(
    "exact",
    [
        lambda sigma: math.inf if sigma < 30 else 2 / sigma,  # the grid resolves nothing where the rough figure falls
        lambda sigma: 2 / sigma if sigma > 9 else 4.0,  # a plateau
        lambda sigma: 2 / sigma if sigma > 1.02 or sigma < 1.0 else 2.5,
    ],
)
def test_a_search_that_the_rough_figure_misleads_ends_with_noise_that_is_enough(
    exact: Callable[[float], float],
) -> None:
    noted, asked = counted(exact)
    sigma = smallest_multiplier(noted, 2.0, 1.0, lambda sigma: 2 / sigma)
    assert exact(sigma) <= 2
    assert len(asked) < 25


def test_a_search_without_an_end_is_refused_with_what_to_do_next() -> None:
    noted, asked = counted(lambda sigma: math.inf)
    with pytest.raises(PrivacyError, match=r"at every noise multiplier tried.*--accountant rdp"):
        smallest_multiplier(noted, 2.0, 1.0, lambda sigma: 2 / sigma)
    assert len(asked) < 30


def test_steps_that_seem_affordable_only_here_and_there_are_found_in_few_tries() -> None:
    def epsilon_at(count: int) -> float:
        return 0.5 if count <= 1000 or (count > 500_000 and count % 2) else 2.0

    noted, asked = counted(epsilon_at)
    assert 1 <= _largest_count(noted, 1.0, 900.0) <= 1001
    assert len(asked) < 60


def test_a_target_beyond_the_grid_is_calibrated_without_an_arithmetic_error() -> None:
    sigma = PLD.calibrate(lambda sigma: [Releases("gradient", sigma, 0.001, 200)], 50, 1e-5, 0.3)
    assert 25 < PLD.epsilon([Releases("gradient", sigma, 0.001, 200)], 1e-5) <= 50


def test_what_a_calibration_accepts_at_large_epsilon_verify_confirms() -> None:
    budget = calibrate(epsilon=100, delta=1e-5, n_private=1000, steps=200, sampling_rate=0.1)
    spent = PLD.epsilon(budget.releases, 1e-5)
    assert not PLD.agrees(spent, RENYI.epsilon(budget.releases, 1e-5))  # its orders below 2 are too coarse
    assert confirmed(PLD, spent, budget.releases, 1e-5)
    assert not confirmed(PLD, 0.3 * spent, budget.releases, 1e-5)


@pytest.mark.parametrize("value", [1.390589, 0.00123456789, 123456789.5, 2.0])
def test_rounding_up_never_rounds_down(value: float) -> None:
    assert value <= round_up(value) <= value * (1 + 2e-7)


# wrong values


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


@pytest.mark.parametrize("rate", [0, 1e-300, -0.1, 1.0001, math.nan, math.inf])
def test_a_sampling_rate_outside_its_range_is_refused(rate) -> None:
    with pytest.raises(ParameterError, match="sampling rate is"):
        calibrate(epsilon=1, delta=1e-5, n_private=10, sampling_rate=rate)


def test_an_accountant_that_cannot_judge_the_request_is_refused() -> None:
    for accountant, rate in (("gdp", 0.5), ("moments", 0.5), ("moments", 1.0)):
        with pytest.raises(ParameterError, match=f"accountant is '{accountant}'"):
            calibrate(epsilon=1, delta=1e-5, n_private=10, sampling_rate=rate, accountant=accountant)


def test_sigma_too_small_for_one_step_is_refused_and_says_what_would_do() -> None:
    with pytest.raises(PrivacyError, match=r"at least 3\.73"):
        calibrate(epsilon=1, delta=1e-5, n_private=10, noise_multiplier=1)
    assert calibrate(epsilon=1, delta=1e-5, n_private=10, noise_multiplier=3.731).n_steps == 1


@pytest.mark.parametrize("sigma", [0.5, 1e-3, 1e-200])
def test_sigma_too_small_for_one_sampled_step_is_refused_and_says_what_would_do(sigma: float) -> None:
    with pytest.raises(PrivacyError, match=r"at least 1\.82"):
        calibrate(epsilon=1, delta=1e-5, n_private=10, noise_multiplier=sigma, sampling_rate=0.2, accountant="rdp")


@pytest.mark.parametrize("rate", [1.0, 0.001])
def test_sigma_that_allows_endless_steps_is_refused(rate: float) -> None:
    with pytest.raises(ParameterError, match=f"more than {MAX_STEPS} steps"):
        calibrate(epsilon=3, delta=1e-5, n_private=10, noise_multiplier=1e5, sampling_rate=rate, accountant="rdp")


def test_sigma_and_steps_together_are_refused() -> None:
    with pytest.raises(UsageError, match="both"):
        calibrate(epsilon=1, delta=1e-5, n_private=10, noise_multiplier=20, steps=5)


@pytest.mark.parametrize(
    "given", [{"steps": 0}, {"steps": 10**7}, {"noise_multiplier": 0}, {"noise_multiplier": math.nan}]
)
def test_steps_and_sigma_outside_their_ranges_are_refused(given) -> None:
    with pytest.raises(ParameterError):
        calibrate(epsilon=1, delta=1e-5, n_private=10, **given)


def test_a_cost_too_small_for_double_precision_is_not_taken_for_none() -> None:
    # q^2 / sigma^2 is below what a Renyi divergence resolves; the true mu is q sqrt(T) / sigma = 3.8e-6
    hidden = [Releases("gradient", 2658965.0, 0.01, 10**6)]
    for accountant in ("pld", "rdp"):
        assert ACCOUNTANTS[accountant].epsilon(hidden, 1e-12) > 1.7e-5


def test_a_budget_on_which_the_accountants_differ_too_much_is_refused_before_it_is_spent() -> None:
    with pytest.raises(PrivacyError, match=r"too far apart .*choose accountant rdp"):
        calibrate(epsilon=3, delta=1e-5, n_private=100, noise_multiplier=0.1, sampling_rate=1e-5)


@pytest.mark.parametrize(
    ("delta", "n_private", "words"),
    [
        (1e-5, 60_000, ["1e-05", "0.6/N", "60,000 private rows", "at most 0.1/N", "--delta 1e-06"]),
        (1e-5, 10_001, ["0.1/N", "--delta 9e-06"]),
        (1e-5, 10_000, None),
        (1e-5, 1_368, None),
        (1e-5, 100_000, None),  # an error, not a warning
    ],
)
def test_a_delta_above_a_tenth_of_1_over_n_is_warned_of(delta: float, n_private: int, words: list[str] | None) -> None:
    warning = large_delta(delta, n_private)
    assert (warning is None) == (words is None)
    assert all(word in str(warning) for word in words or [])
    assert len(str(warning).splitlines()) == 1


def test_an_accountant_that_resolves_nothing_near_the_target_is_refused() -> None:
    # the Renyi bound has no orders for so small an epsilon: it falls from 0.011 to 0
    with pytest.raises(PrivacyError, match="cannot approach"):
        calibrate(epsilon=0.001, delta=1e-5, n_private=60_000, steps=60, accountant="rdp")
    with pytest.raises(ParameterError, match="allowed: at least 1e-13"):
        calibrate(epsilon=1.0, delta=1e-14, n_private=60_000, steps=60)


def test_others_leave_a_hundredth_of_epsilon_at_least() -> None:
    for share, error in ((0.989, nullcontext()), (0.991, pytest.raises(PrivacyError, match="at least 1 % more"))):
        others = [Releases("mean", 1 / largest_mu(3 * share, 1e-5), 1.0, 1)]
        with error:
            assert reached(calibrate(epsilon=3, delta=1e-5, n_private=100, steps=5, others=others)) <= 3


def test_a_guess_that_is_too_low_is_raised() -> None:
    least = 2.0 * (1 + 2**-50)
    epsilon = GAUSSIAN.epsilon([Releases("", least, 1.0, 1)], 1e-5)
    found = GAUSSIAN.calibrate(lambda sigma: [Releases("", sigma, 1.0, 1)], epsilon, 1e-5, 2.0)
    assert 2.0 < found <= least
