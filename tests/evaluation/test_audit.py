"""The audit detects broken mechanisms, passes the real one, and its statistics have their stated error rates.

Seeds are fixed, so no test fails by chance. Sizes leave a wide margin anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest

from linprobe.accounting.accountants import PLD
from linprobe.accounting.calibrate import Budget
from linprobe.data.blocks import ArraySource
from linprobe.data.dataset import Dataset
from linprobe.data.rows import ArrayRows, Rows, StreamedRows
from linprobe.errors import ParameterError, PrivacyError, Silent, UsageError
from linprobe.evaluation.audit import HOST_PATHS, Subject, _trained, audit, check_audit, plant, play
from linprobe.evaluation.audit_bounds import ALL, Trials, lower_bounds
from linprobe.gradients.clipped_sum import _Worker, clipped_sum
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS
from linprobe.methods.private_mean import MEAN
from linprobe.options.requests import AuditRequest
from linprobe.training.plan import Settings, plan_run
from tests.conftest import mostly_nightly

SEED, DELTA = 5, 1e-5
SAMPLES = Budget(3.3, DELTA, 50, 1.35, 0.1, PLD)
FEW_SAMPLES = Budget(2.3, DELTA, 20, 1.35, 0.1, PLD)  # which show faults that concern every step
PATHS = [str(path) for path in HOST_PATHS]
OBSERVED = {path for path in PATHS if path.endswith(", observed")}
UNOBSERVED = set(PATHS) - OBSERVED


def audited(method: str, epsilon: float, mechanism: Any = GaussianMechanism, **sizes: Any) -> dict[str, Any]:
    few = {} if METHODS[method].one_step else {"steps": 10}
    request = AuditRequest(
        method=method, epsilon=epsilon, **{"runs": 24, "canaries": 80, "confidence": 0.95, **few, **sizes}
    )
    return audit(request, Silent(), mechanism=mechanism, insecure_seed=SEED)


def toy(n_rows: int, people: Any = None) -> Dataset:
    """Unit rows (n_rows, 8) of four classes, around one direction per class."""
    labels = np.arange(n_rows) % 4
    x = 3 * np.eye(4, 8)[labels] + np.random.default_rng(SEED).standard_normal((n_rows, 8))
    bounds = None if people is None else np.r_[0, np.cumsum(people)]
    return Dataset(ArraySource(x.astype(np.float32), labels), 4, bounds=bounds)


def played(
    method: str, budget: Budget, *, canaries: int, people: Any = None, paths: Any = HOST_PATHS, **options: Any
) -> Trials:
    """A few canaries among toy rows."""
    planted = plant(toy(60, people), canaries)
    asked = {"epsilon": 1.0, "condition": "none", "intercept": 0.0}
    settings = Settings.of_given(METHODS[method], asked)
    plan = replace(plan_run(settings, planted.dataset), budget=budget)
    return play(Subject(plan, planted, paths, _trained, 1.0), on_run=int, insecure_seed=SEED, **options)


@cache
def claim_on_samples(budget: Budget = SAMPLES) -> float:
    """Epsilon of dp-sgd, about 3 at `SAMPLES`, 2 at `FEW_SAMPLES`; noise known beforehand saves the search for it."""
    return PLD.epsilon(budget.releases, DELTA)


def audited_samples(
    runs: int = 12, canaries: int = 20, *, budget: Budget = SAMPLES, **options: Any
) -> list[dict[str, Any]]:
    """The tests of dp-sgd."""
    return lower_bounds(played("dp-sgd", budget, runs=runs, canaries=canaries, **options), DELTA, 0.95)


def bound_of(tests: list[dict[str, Any]], name: str, path: str = ALL) -> float:
    return float(next(test["epsilon_lower_bound"] for test in tests if (test["name"], test["path"]) == (name, path)))


def caught(tests: list[dict[str, Any]], claim: float) -> set[str]:
    """The paths on which a test has a bound above the claim."""
    return {test["path"] for test in tests if test["epsilon_lower_bound"] > claim} - {ALL}


class _Quieter:
    """A noise source that adds `share` of the noise, whatever the event states."""

    def __init__(self, source: Any) -> None:
        self._source, self.share = source, 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def add_noise(self, value: Any, std: float) -> Any:
        return self._source.add_noise(value, self.share * std) if self.share else value + 0.0


class Quiet(GaussianMechanism):
    """States an event in full, and adds a share of its noise."""

    def __init__(self, source: NoiseSource, *others: Any, **named: Any) -> None:
        super().__init__(_Quieter(source), *others, **named)  # type: ignore[arg-type]

    def share(self, purpose: str) -> float:
        raise NotImplementedError

    def release(self, clipped: Any, noise_multiplier: float, *, purpose: str, **others: Any) -> Any:
        self._source.share = self.share(purpose)  # type: ignore[attr-defined]
        return super().release(clipped, noise_multiplier, purpose=purpose, **others)


class HalfNoise(Quiet):
    """Adds half of the noise."""

    def share(self, purpose: str) -> float:
        return 0.5


class QuietMean(Quiet):
    """Adds a twentieth of the noise to the private mean, and all of it to the steps."""

    def share(self, purpose: str) -> float:
        return 0.05 if purpose == MEAN else 1.0


class SameNoise(GaussianMechanism):
    """Uses the same noise at every step."""

    def __init__(self, source: NoiseSource, *others: Any, **named: Any) -> None:
        class Stuck:
            key, draws, ratchet, next_draw = source.key, 0, source.ratchet, source.next_draw

            drawn: ClassVar[dict[tuple[int, ...], Any]] = {}

            def add_noise(self, value: Any, std: float) -> Any:
                if value.shape not in self.drawn:
                    self.drawn[value.shape] = source.add_noise(np.zeros_like(value), 1.0)
                return value + std * self.drawn[value.shape]

        super().__init__(Stuck(), *others, **named)  # type: ignore[arg-type]


class NoNoise(Quiet):
    """Releases the sum without noise."""

    def share(self, purpose: str) -> float:
        return 0.0


class SharedNoise(Quiet):
    """Every rank is thought to add its part of the noise, and only one does."""

    def share(self, purpose: str) -> float:
        return 1 / self._group.size**2


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


def test_real_noise_on_all_rows_passes_and_its_bound_is_near_the_claim() -> None:
    epsilon = 3.0
    result = audited("noisy-gd", epsilon, runs=36, canaries=200)
    check_audit(result)
    assert result["epsilon"] == pytest.approx(epsilon, rel=1e-6)
    assert 0.4 * epsilon < result["epsilon_lower_bound"] <= result["epsilon"]
    assert bound_of(result["tests"], "one run") < bound_of(result["tests"], "one run f-DP")
    assert 0.15 * epsilon < bound_of(result["tests"], "one run f-DP") < bound_of(result["tests"], "sum")
    assert bound_of(result["tests"], "difference") < 0.2 * epsilon


def test_real_noise_on_poisson_samples_passes() -> None:
    tests = audited_samples(24, 80)
    assert 0.4 * claim_on_samples() < max(test["epsilon_lower_bound"] for test in tests) < claim_on_samples()


@pytest.mark.parametrize(
    ("method", "sizes"),
    mostly_nightly(
        [("noisy-gd", {}), ("adamix", {}), ("dp-newton", {"steps": 2, "runs": 48})], lambda case: case[0] == "noisy-gd"
    ),
)
def test_half_the_noise_is_caught_on_every_path(method: str, sizes: dict[str, int]) -> None:
    result = audited(method, 3.0, mechanism=HalfNoise, **sizes)
    assert bound_of(result["tests"], "sum") > 4
    assert caught(result["tests"], 3.0) == set(PATHS)
    with pytest.raises(PrivacyError, match=r"allowed: at most the 3 claimed"):
        check_audit(result)


@pytest.mark.parametrize("method", mostly_nightly(["noisy-gd", "dpsgd-f"], "noisy-gd".__eq__))
def test_too_little_noise_on_the_mean_alone_is_caught_on_every_path(method: str) -> None:
    result = audited(method, 3.0, mechanism=QuietMean, steps=5)
    assert result["epsilon_lower_bound"] < 3
    claimed = result["others"][MEAN]["epsilon"]
    assert claimed == pytest.approx(0.45 if method == "dpsgd-f" else 0.75, rel=1e-6)  # 15 and 25 % of epsilon
    assert all(bound_of(result["tests"], MEAN, path) > claimed for path in PATHS)
    with pytest.raises(PrivacyError, match="epsilon of the private mean"):
        check_audit(result)


def test_gradients_left_unclipped_are_caught_on_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linprobe.methods._base.clipped_sum", unclipped)
    result = audited("noisy-gd", 3.0, runs=48)
    assert bound_of(result["tests"], "sum") > 4
    assert caught(result["tests"], 3.0) == set(PATHS)
    with pytest.raises(PrivacyError):
        check_audit(result)


@pytest.mark.parametrize("method", mostly_nightly(["noisy-gd", "adamix"], "noisy-gd".__eq__))
def test_noise_used_again_is_caught_on_every_path(method: str) -> None:
    result = audited(method, 3.0, mechanism=SameNoise, runs=12)
    assert bound_of(result["tests"], "sum") < 3 < 10 < bound_of(result["tests"], "difference")
    assert caught(result["tests"], 3.0) == set(PATHS)
    with pytest.raises(PrivacyError):
        check_audit(result)


def test_fixed_batches_claimed_as_samples_are_caught() -> None:
    tests = audited_samples(120, sampler=Cyclic, paths=HOST_PATHS[1:2])
    assert bound_of(tests, "pattern") > 1.5 * claim_on_samples()
    assert bound_of(tests, "sum") < claim_on_samples()


@pytest.mark.parametrize("concerned", [OBSERVED, UNOBSERVED], ids=["observed", "unobserved"])
def test_all_rows_summed_whatever_the_sample_are_caught(concerned: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Rows.sample

    def all_rows(rows: Rows, mask: Any, rate: float, *, observed: bool) -> Rows:
        return sample(rows, mask | (observed == (concerned == OBSERVED)), rate, observed=observed)

    monkeypatch.setattr(Rows, "sample", all_rows)
    tests, claim = audited_samples(canaries=60, budget=FEW_SAMPLES), claim_on_samples(FEW_SAMPLES)
    assert caught(tests, claim) == concerned
    assert max(test["epsilon_lower_bound"] for test in tests) > 5 * claim


def test_a_mask_lost_on_the_way_into_the_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _Worker.take
    monkeypatch.setattr(_Worker, "take", lambda self, block: real(self, replace(block, sampled=None)))
    unread = {"streamed, unobserved"}  # whose blocks have zeros outside the sample
    tests = audited_samples(canaries=60, budget=FEW_SAMPLES)
    assert caught(tests, claim_on_samples(FEW_SAMPLES)) == (OBSERVED | UNOBSERVED) - unread


def test_rows_in_memory_that_do_not_look_at_the_mask_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArrayRows, "_sampled", lambda self, sampled: self._whole())
    tests = audited_samples(canaries=60, budget=FEW_SAMPLES)
    assert caught(tests, claim_on_samples(FEW_SAMPLES)) == {"memory, unobserved", "two ranks, unobserved"}


def test_wrong_norms_of_streamed_rows_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StreamedRows._block

    def short(self: StreamedRows, *given: Any) -> Any:
        block = real(self, *given)
        return replace(block, norms=block.norms / 8)

    monkeypatch.setattr(StreamedRows, "_block", short)
    result = audited("noisy-gd", 3.0, runs=36)
    assert caught(result["tests"], 3.0) == {"streamed, observed", "streamed, unobserved"}


def test_noise_that_every_rank_leaves_to_the_others_is_caught() -> None:
    result = audited("noisy-gd", 3.0, mechanism=SharedNoise)
    assert caught(result["tests"], 3.0) == {"two ranks, observed", "two ranks, unobserved"}


def test_scores_are_the_canarys_share_in_units_of_the_noise_and_nothing_else() -> None:
    trials = played("noisy-gd", Budget(100.0, DELTA, 4, 2.0), runs=6, canaries=8, mechanism=NoNoise)
    assert trials.scores.shape == (6, 4, 8)
    assert list(trials.paths) == PATHS
    everywhere = np.broadcast_to(trials.inside[:, None], trials.scores.shape)
    assert not trials.scores[~everywhere].any()
    assert trials.scores[:, 0][trials.inside] == pytest.approx(0.5, rel=2e-3)
    assert trials.scores.max() <= 0.5


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"method": "only-public"}, UsageError, "allowed: noisy-gd, adamix"),
        ({"runs": 11}, ParameterError, "allowed: 12 to 10000"),
        ({"device": "gpu"}, ParameterError, "device is 'gpu'"),
        ({"method": "dpsgd-f", "device": "cuda"}, UsageError, "on a GPU: noisy-gd"),
        ({"canaries": 5}, ParameterError, "allowed: 10 to 1000"),
        ({"confidence": 1.0}, ParameterError, "at least 0.5, below 1"),
        ({"confidence": float("nan")}, ParameterError, "confidence is nan"),
        ({"sampling_rate": 0.5}, UsageError, "does nothing for noisy-gd"),
        ({"runs": 10_000, "canaries": 1000}, ParameterError, "allowed: a product of at most"),
        ({"epsilon": 0.0}, ParameterError, "eps is 0"),
        ({"delta": 0.01}, PrivacyError, "below 1/N"),
    ],
)
def test_wrong_requests_are_refused(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    fail: Callable[..., Any] = audit
    with pytest.raises(error, match=words):
        fail(AuditRequest(**{"method": "noisy-gd", "epsilon": 1.0, **wrong}), Silent())


@pytest.mark.parametrize("name", ["", MEAN])
def test_a_bound_just_above_a_claim_is_refused(name: str) -> None:
    claims = {one: {"epsilon": 3.0, "epsilon_lower_bound": 3.001 if one == name else 3.0} for one in ("", MEAN)}
    with pytest.raises(PrivacyError, match="at most the 3 claimed"):
        check_audit({"method": "noisy-gd", "confidence": 0.9, **claims[""], "others": {MEAN: claims[MEAN]}})
