"""The audit detects broken mechanisms, passes the real one, and its statistics have their stated error rates.

Seeds are fixed, so no test fails by chance. Sizes leave a wide margin anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linprobe.accounting.accountants import composed_epsilon
from linprobe.accounting.events import Releases
from linprobe.commands.audit import AuditRequest, audit, check_audit
from linprobe.data.rows import ArrayRows
from linprobe.errors import ParameterError, PrivacyError, UsageError
from linprobe.evaluation.audit import (
    LARGEST_MU,
    Trials,
    _Present,
    lower_bounds,
    mu_lower_bound,
    one_run_bound,
    one_run_p_value,
    patterned,
    play,
)
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.mechanisms.gaussian import GaussianMechanism, Release
from linprobe.mechanisms.noise import NoiseSource
from linprobe.mechanisms.sampling import PoissonSampler
from linprobe.methods import METHODS, Schedule
from linprobe.progress import Silent

SEED = 5


def audited(method: str, epsilon: float, mechanism: Any = GaussianMechanism, **sizes: Any) -> dict[str, Any]:
    request = AuditRequest(
        method, epsilon, **{"runs": 40, "canaries": 50, "confidence": 0.95, "insecure_seed": SEED, **sizes}
    )
    return audit(request, Silent(), mechanism=mechanism)


def toy_rows(n_rows: int) -> ArrayRows:
    """Unit rows (n_rows, 8) of four classes, around one direction per class."""
    labels = np.arange(n_rows) % 4
    x = 3 * np.eye(4, 8)[labels] + np.random.default_rng(SEED).standard_normal((n_rows, 8))
    return ArrayRows((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels)


def played(method: str, schedule: Schedule, **options: Any) -> Trials:
    """A few canaries among toy rows."""
    found = METHODS[method]
    return play(
        found, found.make_options({}), schedule, toy_rows(60), None, 4, on_run=int, insecure_seed=SEED, **options
    )


def audited_samples(sampler: Any) -> tuple[list[dict[str, Any]], float]:
    """dp-sgd at a fixed noise multiplier of about epsilon 3, without calibration: the tests and the claim."""
    rate, sigma, steps, delta = 0.1, 1.35, 50, 1e-5
    claim = composed_epsilon((Releases("gradient", sigma, rate, steps),), delta, "pld")
    schedule = Schedule(steps, sigma, rate * math.sqrt(steps) / sigma, rate)
    return lower_bounds(played("dp-sgd", schedule, runs=200, canaries=20, sampler=sampler), delta, 0.95), claim


def bound_of(result: dict[str, Any], name: str) -> float:
    return float(next(test["epsilon_lower_bound"] for test in result["tests"] if test["name"] == name))


class HalfNoise(GaussianMechanism):
    """Adds half of the noise that the event states."""

    def release(self, clipped: Any, noise_multiplier: float, **others: Any) -> Release:
        return super().release(clipped, noise_multiplier / 2, **others)


class SameNoise(GaussianMechanism):
    """Uses the same noise at every step."""

    def __init__(self, source: NoiseSource, *others: Any) -> None:
        class Stuck:
            key, draws, ratchet = source.key, 0, source.ratchet

            def add_noise(self, value: Any, std: float) -> Any:
                if not hasattr(self, "drawn"):
                    self.drawn = source.add_noise(np.zeros_like(value), 1.0)
                return value + std * self.drawn

        super().__init__(Stuck(), *others)  # type: ignore[arg-type]


class NoNoise(GaussianMechanism):
    """Releases the sum without noise."""

    def release(self, clipped: Any, noise_multiplier: float, **others: Any) -> Release:
        return super().release(clipped, 0.0, **others)


class Cyclic:
    """Cycles through fixed batches instead of Poisson samples."""

    def __init__(self, source: NoiseSource, rate: float) -> None:
        self.rate, self._batches, self._step = rate, round(1 / rate), -1

    def draw(self, n_rows: int, first: int = 0) -> Any:
        self._step += 1
        return np.arange(n_rows) % self._batches == self._step % self._batches


def unclipped(rows: Any, weights: Any, clip_norm: float, **others: Any) -> Any:
    """The sum of unclipped gradients, with the sensitivity of clipped ones."""
    return replace(clipped_sum(rows, weights, math.inf, **others), sensitivity=clip_norm)


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_real_noise_on_all_rows_passes_and_its_bound_is_near_the_claim(epsilon: float) -> None:
    result = audited("noisy-gd", epsilon, runs=70, canaries=100)
    check_audit(result)
    assert result["epsilon"] == pytest.approx(epsilon, rel=1e-6)
    assert 0.4 * epsilon < result["epsilon_lower_bound"] <= result["epsilon"]
    assert bound_of(result, "one run") > 0.1 * epsilon
    assert bound_of(result, "difference") < 0.2 * epsilon


def test_real_noise_on_poisson_samples_passes() -> None:
    tests, claim = audited_samples(PoissonSampler)
    assert 0.4 * claim < max(test["epsilon_lower_bound"] for test in tests) < claim


@pytest.mark.parametrize("method", ["noisy-gd", "adamix"])
def test_half_the_noise_is_caught(method: str) -> None:
    result = audited(method, 3.0, mechanism=HalfNoise)
    assert bound_of(result, "sum") > 4
    with pytest.raises(PrivacyError, match=r"allowed: at most the 3 claimed"):
        check_audit(result)


def test_gradients_left_unclipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linprobe.methods._base.clipped_sum", unclipped)
    result = audited("noisy-gd", 3.0)
    assert bound_of(result, "sum") > 4
    with pytest.raises(PrivacyError):
        check_audit(result)


@pytest.mark.parametrize("method", ["noisy-gd", "adamix"])
def test_noise_used_again_is_caught(method: str) -> None:
    result = audited(method, 3.0, mechanism=SameNoise, runs=10)
    assert bound_of(result, "sum") < 3 < 10 < bound_of(result, "difference")
    with pytest.raises(PrivacyError):
        check_audit(result)


def test_fixed_batches_claimed_as_samples_are_caught() -> None:
    tests, claim = audited_samples(Cyclic)
    assert bound_of({"tests": tests}, "pattern") > 1.5 * claim
    assert bound_of({"tests": tests}, "sum") < claim


def test_scores_are_the_canarys_share_in_units_of_the_noise_and_nothing_else() -> None:
    trials = played("noisy-gd", Schedule(4, 2.0, 1.0), runs=3, canaries=8, mechanism=NoNoise)
    assert trials.scores.shape == (3, 4, 8)
    everywhere = np.broadcast_to(trials.inside[:, None], trials.scores.shape)
    assert not trials.scores[~everywhere].any()
    assert trials.scores[:, 0][trials.inside] == pytest.approx(0.5, rel=2e-3)
    assert trials.scores.max() <= 0.5


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_an_empty_place_is_a_record_left_out(rate: float) -> None:
    generator = np.random.default_rng(SEED)
    x, y = generator.standard_normal((40, 5)).astype(np.float32), np.arange(40) % 3
    present, joined = generator.random(40) < 0.5, generator.random(40) < rate
    rows = _Present(x, y, present)
    for blocks, kept in ((rows.lazy_blocks(), present), (rows.sampled_blocks(joined), present & joined)):
        seen = [(block.x.copy(), block.y) for block in (load() for load in blocks)]
        np.testing.assert_array_equal(np.concatenate([block for block, _ in seen]), x[kept])
        np.testing.assert_array_equal(np.concatenate([labels for _, labels in seen]), y[kept])
    assert rows.n_rows == 40


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


def test_pattern_of_a_canary_never_in_or_never_out_weighs_all_steps_alike() -> None:
    learnt = np.random.default_rng(SEED).standard_normal((6, 4, 3))
    inside = np.array([[True, False, bool(run % 2)] for run in range(6)])
    tested = np.ones((1, 4, 3))
    found = patterned(inside, learnt, tested)
    assert found[0, :2] == pytest.approx(2.0)
    assert 0 < found[0, 2] <= 2


def test_one_step_has_no_differences_and_no_pattern() -> None:
    generator = np.random.default_rng(SEED)
    inside = generator.random((4, 50)) < 0.5
    trials = Trials(inside, generator.standard_normal((4, 1, 50)) + 3 * inside[:, None])
    assert [test["name"] for test in lower_bounds(trials, 1e-5, 0.95)] == ["sum", "one run"]


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
        # two (epsilon, delta)-DP algorithms: with probability delta each answer is the truth, or all answers are
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


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"method": "only-public"}, UsageError, "allowed: noisy-gd, adamix"),
        ({"runs": 1}, ParameterError, "allowed: a whole number from 2"),
        ({"canaries": 5}, ParameterError, "allowed: a whole number from 10 to 1000"),
        ({"confidence": 1.0}, ParameterError, "below 1, for example 0.999"),
        ({"confidence": float("nan")}, ParameterError, "confidence is nan"),
        ({"sampling_rate": 0.5}, UsageError, "does nothing for noisy-gd"),
        ({"runs": 10_000, "canaries": 1000}, ParameterError, "allowed: a product of at most"),
        ({"epsilon": 0.0}, ParameterError, "epsilon is 0"),
        ({"delta": 0.01}, PrivacyError, "below 1/N"),
    ],
)
def test_wrong_requests_are_refused(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    fail: Callable[..., Any] = audit
    with pytest.raises(error, match=words):
        fail(AuditRequest(**{"method": "noisy-gd", "epsilon": 1.0, **wrong}), Silent())
