"""The statistics of the audit hold what they promise. Seeds are fixed, so that nothing here fails by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from linprobe.evaluation.audit import Trials
from linprobe.evaluation.audit_bounds import (
    ALL,
    LARGEST_MU,
    guess,
    lower_bounds,
    mu_lower_bound,
    one_run_bound,
    one_run_mu,
    one_run_p_value,
    patterned,
    refutes_gdp,
)

SEED = 5


@pytest.mark.parametrize(("mu", "n"), [(0.5, 200), (2.0, 12)])
def test_bound_on_mu_misses_as_often_as_it_says(mu: float, n: int) -> None:
    generator = np.random.default_rng(SEED)
    bounds = [mu_lower_bound(7 * generator.normal(mu, 1, n), 7 * generator.normal(0, 1, n), 0.9) for _ in range(400)]
    missed = sum(bound > mu for bound in bounds)
    assert 20 < missed < 65  # 40 expected, standard deviation 6
    assert np.median(bounds) > mu - 2.2 / math.sqrt(n / 2)


def test_bound_on_mu_of_values_without_spread_is_the_largest_and_of_too_few_is_zero() -> None:
    ones, zeros = np.ones(500), np.zeros(500)
    assert LARGEST_MU / 2 < mu_lower_bound(ones, zeros, 0.99) < LARGEST_MU
    assert mu_lower_bound(zeros, zeros, 0.99) == mu_lower_bound(zeros, ones, 0.99) == 0
    assert mu_lower_bound(ones[:1], zeros, 0.99) == mu_lower_bound(ones, zeros[:0], 0.99) == 0
    equal = np.full(120, -27.725887222397816)
    assert all(mu_lower_bound(equal[:n], equal[n:], 0.99) == 0 for n in range(2, 119))


def test_pattern_of_a_canary_never_in_or_never_out_weighs_all_steps_alike() -> None:
    learnt = np.random.default_rng(SEED).standard_normal((6, 4, 3))
    inside = np.array([[True, False, bool(run % 2)] for run in range(6)])
    tested = np.ones((1, 4, 3))
    found = patterned(inside, learnt, tested)
    assert found[0, :2] == pytest.approx(2.0)
    assert 0 < found[0, 2] <= 2


def sound(steps: int, paths: tuple[str, ...], mu: float, canaries: int = 50) -> Trials:
    """What an adversary sees of a mechanism that is mu-GDP."""
    generator = np.random.default_rng(SEED)
    inside = generator.random((len(paths), canaries)) < 0.5
    shift = mu / math.sqrt(steps) * inside[:, None]
    return Trials(inside, generator.standard_normal((len(paths), steps, canaries)) + shift, paths)


def test_one_step_has_no_differences_and_no_pattern() -> None:
    tests = lower_bounds(sound(1, ("a",) * 4, 3.0), 1e-5, 0.95)
    assert [test["name"] for test in tests] == ["sum", "one run", "one run f-DP"]


def test_every_path_has_its_tests_and_all_share_the_chance_of_error(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def noted(inside: object, outside: object, confidence: float) -> float:
        used.append(confidence)
        return 0.5

    monkeypatch.setattr("linprobe.evaluation.audit_bounds.mu_lower_bound", noted)
    tests = lower_bounds(sound(3, ("a", "b", "a", "b"), 3.0), 1e-5, 0.9)
    names = ["sum", "difference", "pattern", "one run", "one run f-DP"]
    assert [(test["path"], test["name"]) for test in tests] == [(p, n) for p in (ALL, "a", "b") for n in names]
    assert used == pytest.approx([1 - 0.1 / 15] * 9)


def test_on_takes_the_runs_of_a_path() -> None:
    trials = sound(2, ("a", "b", "a"), 1.0)
    part = trials.on("a")
    np.testing.assert_array_equal(part.scores, trials.scores[[0, 2]])
    np.testing.assert_array_equal(part.inside, trials.inside[[0, 2]])


def _tail(n: int, k: int, chance: float) -> float:
    return sum(math.comb(n, i) * chance**i * (1 - chance) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_p_value_is_the_chance_of_randomised_response_and_bounds_what_may_fail(epsilon: float) -> None:
    guesses, trials, delta = 12, 30, 0.01
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for correct in range(guesses + 1):
        pure = _tail(guesses, correct, chance)
        assert one_run_p_value(correct, guesses, trials, epsilon, 0.0) == pytest.approx(pure, rel=1e-9)
        approximate = one_run_p_value(correct, guesses, trials, epsilon, delta)
        # two algorithms that are (epsilon, delta)-DP: each answer is the truth with chance delta, or all of them are
        each = _tail(guesses, correct, delta + (1 - delta) * chance)
        assert max(each, delta + (1 - delta) * pure) <= approximate + 1e-12
        assert approximate <= min(1.0, pure + 2 * trials * delta)


def test_p_value_takes_the_worst_window_of_the_theorem() -> None:
    correct, guesses, trials, epsilon, delta = 9, 10, 40, 1.0, 1e-3
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    inside = [_tail(guesses, correct - i, chance) - _tail(guesses, correct, chance) for i in range(1, correct + 1)]
    worst = max(window / i for i, window in enumerate(inside, 1))
    expected = _tail(guesses, correct, chance) + 2 * trials * delta * worst
    assert one_run_p_value(correct, guesses, trials, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_bound_of_one_run_is_where_the_p_value_meets_the_confidence() -> None:
    bound = one_run_bound(90, 100, 1000, 1e-5, 0.95)
    assert one_run_p_value(90, 100, 1000, bound, 1e-5) < 0.05 < one_run_p_value(90, 100, 1000, bound + 1e-5, 1e-5)
    assert 1 < bound < math.log(9)
    assert one_run_bound(50, 100, 1000, 1e-5, 0.95) == 0


def test_bound_of_one_run_holds_for_randomised_response() -> None:
    generator = np.random.default_rng(SEED)
    correct = generator.binomial(200, math.exp(1) / (1 + math.exp(1)), 300)
    bounds = {int(value): one_run_bound(int(value), 200, 200, 0.0, 0.9) for value in set(correct)}
    assert sum(bounds[int(value)] > 1 for value in correct) < 60  # 30 expected at most, standard deviation 5


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_f_dp_bound_holds_for_one_guess_and_is_exact(mu: float) -> None:
    best = float(ndtr(mu / 2))  # chance of a right guess about one record, at equal errors
    assert not refutes_gdp(1, 1, 1, mu, best - 1e-9)
    assert refutes_gdp(1, 1, 1, mu, best + 1e-9)


@pytest.mark.parametrize(("mu", "guesses", "trials"), [(0.3, 40, 40), (1.0, 30, 100), (2.0, 10, 1000)])
def test_f_dp_bound_never_refutes_a_gaussian_mechanism_more_often_than_it_says(
    mu: float, guesses: int, trials: int
) -> None:
    generator = np.random.default_rng(SEED)
    right = []
    for _ in range(400):
        inside = generator.random((1, trials)) < 0.5
        right.append(guess_of(inside, generator.standard_normal((1, trials)) + mu * inside, guesses))
    bounds = {count: one_run_mu(count, guesses, trials, 0.9) for count in set(right)}
    assert sum(bounds[count] > mu for count in right) < 60  # 40 expected at most, standard deviation 6
    assert max(bounds.values()) > 0


def guess_of(inside: NDArray[np.bool_], statistic: NDArray[np.float64], guesses: int) -> int:
    """Correct guesses: the largest are guessed in, the smallest out."""
    order = np.argsort(statistic, axis=None)
    known = inside.ravel()[order]
    return int(known[-guesses // 2 :].sum() + (~known[: guesses // 2]).sum())


def test_f_dp_bound_allows_coins_that_are_right_as_often_as_the_trade_off_allows() -> None:
    mu, guesses = 1.0, 25
    law = binom(guesses, float(ndtr(mu / 2)))
    for correct in range(1, guesses + 1):
        assert not refutes_gdp(correct, guesses, guesses, mu, float(law.sf(correct - 1)) * (1 - 1e-9))


def test_f_dp_bound_is_between_the_two_others_for_gaussian_noise() -> None:
    mu, confidence = 0.73, 0.999
    generator = np.random.default_rng(SEED)
    inside = generator.random((100, 100)) < 0.5
    statistic = generator.standard_normal((100, 100)) + mu * inside
    correct, guesses = guess(inside, statistic)
    by_t = mu_lower_bound(statistic[inside], statistic[~inside], confidence)
    assert 0.3 < one_run_mu(correct, guesses, inside.size, confidence) < by_t < mu
    assert one_run_bound(correct, guesses, inside.size, 1e-5, confidence) < 1.2


def test_f_dp_bound_of_guesses_at_random_is_zero_and_of_all_right_is_large() -> None:
    assert one_run_mu(50, 100, 1000, 0.95) == 0
    assert one_run_mu(0, 100, 1000, 0.95) == 0
    assert 1.5 < one_run_mu(100, 100, 100, 0.95) <= LARGEST_MU
