"""Noisy class counts: sensitivity on neighbouring data, cost, what follows from them, and what is refused."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from linprobe import AdaMix, NoisyGD, Prototypes
from linprobe.accounting.figures import largest_mu
from linprobe.data import rows as rows_module
from linprobe.data.blocks import ArraySource, Preprocessing
from linprobe.data.dataset import Dataset
from linprobe.data.rows import Rows, prepare_shard
from linprobe.errors import UsageError
from linprobe.methods.class_counts import (
    CLASS_COUNTS,
    ClassCounts,
    class_shares,
    class_sums,
    shift_between,
)
from linprobe.parallel.process_group import ALONE, Group, in_group
from linprobe.training.execute import Runtime, execute
from linprobe.training.plan import COUNTS_SHARE, plan_run
from tests.conftest import mostly_nightly

G = np.random.default_rng(2)
N, CLASSES = 300, 4
X = G.normal(size=(N, 5)).astype(np.float32)
Y = np.minimum(G.geometric(0.5, N) - 1, CLASSES - 1)
LABELS = (G.random((N, CLASSES)) < 0.6).astype(np.uint8)
SIZES = np.resize([1, 2, 7], 90)  # rows of each person


def rows_of(y: Any, sizes: Any = None, *, streamed: bool = False) -> Rows:
    bounds = None if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
    n = len(y) if bounds is None else bounds[-1]
    x = np.resize(X, (n, X.shape[1]))
    return prepare_shard(ArraySource(x, y[:n]), bounds, Preprocessing(), "float32", ALONE, streamed=streamed)


@pytest.mark.parametrize(
    ("of", "streamed"),
    mostly_nightly(
        product(["rows", "people", "labels", "labels of people"], [False, True]),
        lambda case: case[1] == ("people" in case[0]),
    ),
)
def test_neighbours_differ_by_at_most_the_sensitivity(of: str, streamed: bool) -> None:
    labels, people = "labels" in of, "people" in of
    y = np.resize(LABELS if labels else Y, (1000, CLASSES) if labels else 1000)
    y[:10] = 1  # the longest row of labels
    rows = rows_of(y, SIZES if people else None, streamed=streamed)
    counted = class_sums(rows, CLASSES, labels)
    assert counted.sensitivity == (math.nextafter(2.0, 3) if labels else 1.0)
    moved = []
    for place in range(rows.n_local):
        without = class_sums(rows.emptied(np.arange(rows.n_local) != place), CLASSES, labels)
        moved.append(float(np.linalg.norm(counted.value - without.value)))
        assert counted.contributions[place] * counted.sensitivity >= moved[-1]
        assert without.contributions[place] <= 2**-10  # the margin for rounding alone
        assert np.array_equal(np.delete(without.contributions, place), np.delete(counted.contributions, place))
    assert 0.9 * counted.sensitivity < max(moved) <= counted.sensitivity
    assert counted.contributions.max() <= 1


@example([0, 1, 2, 3, 3, 3, 3], 0)  # to the nearest step, sevenths add up to more than 1
@given(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=200), st.integers(0, 2**31))
def test_a_person_counts_by_shares_whatever_the_number_of_rows(classes: list[int], seed: int) -> None:
    others = np.random.default_rng(seed).integers(0, CLASSES, 50)
    y, sizes = np.concatenate([classes, others]), np.array([len(classes), *[5] * 10])
    rows = rows_of(y, sizes)
    with_person = class_sums(rows, CLASSES, False).value[:, 0]
    alone = with_person - class_sums(rows.emptied(np.arange(11) > 0), CLASSES, False).value[:, 0]
    np.testing.assert_allclose(alone, np.bincount(classes, minlength=CLASSES) / len(classes), atol=1e-6)
    assert alone.sum() <= 1
    assert np.linalg.norm(alone) <= 1


def test_the_sum_has_the_same_bits_in_any_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "SHARD_ROWS", 32)
    bounds = np.concatenate([[0], np.cumsum(SIZES)])
    y = np.resize(Y, bounds[-1])
    source = ArraySource(np.resize(X, (bounds[-1], 5)), y)

    def counted(group: Group) -> Any:
        rows = prepare_shard(source, bounds, Preprocessing(), "float32", group)
        return class_sums(rows, CLASSES, False, all_reduce=group.all_reduce).value

    (whole,) = in_group(1, counted)
    for parts in in_group(2, counted):
        np.testing.assert_array_equal(parts, whole)


def test_counts_cost_the_stated_share_and_the_run_no_more_than_asked() -> None:
    fits = [
        NoisyGD(epsilon=1, classes=range(CLASSES), n_steps=5, condition="none", class_counts=word).fit(X, Y)
        for word in ("no", "yes")
    ]
    plain, counted = (fit.privacy_ for fit in fits)
    release = next(one for one in counted["releases"] if one["purpose"] == CLASS_COUNTS)
    mu = largest_mu(1.0, 1e-5)
    assert (release["count"], release["sampling_rate"]) == (1, 1.0)
    assert 1 / release["noise_multiplier"] ** 2 == pytest.approx(COUNTS_SHARE * mu**2, rel=1e-6)
    assert counted["epsilon"] <= 1
    ratio = counted["noise_multiplier"] / plain["noise_multiplier"]
    assert ratio == pytest.approx(1 / math.sqrt(1 - COUNTS_SHARE), rel=1e-3)
    assert not hasattr(fits[0], "class_counts_")
    assert np.abs(fits[1].class_counts_ - np.bincount(Y)).max() < 6 * release["noise_multiplier"]
    losses = fits[1].private_record_losses_.epsilon(1e-5)
    assert losses.max() <= counted["epsilon"]
    # each record adds 1 to a count, in full
    assert fits[1].private_record_losses_.mu.min() >= 1 / release["noise_multiplier"]


def test_balanced_scores_are_the_scores_of_training_minus_the_log_shares() -> None:
    facts: dict[str, Any] = {"epsilon": 8, "classes": range(CLASSES), "n_steps": 20, "insecure_seed": 3}
    plain = NoisyGD(class_counts="yes", **facts).fit(X, Y)
    balanced = NoisyGD(class_weight="balanced", **facts).fit(X, Y)
    np.testing.assert_array_equal(plain.class_counts_, balanced.class_counts_)
    np.testing.assert_array_equal(plain.coef_, balanced.coef_)
    std = next(one for one in plain.privacy_["releases"] if one["purpose"] == CLASS_COUNTS)["noise_multiplier"]
    shares = class_shares(ClassCounts(plain.class_counts_, std), N)
    shift = balanced.intercept_ - plain.intercept_
    np.testing.assert_allclose(shift, np.log(1 / CLASSES) - np.log(shares), rtol=1e-5)
    assert (shift[1:] > shift[0]).all()  # the other classes are rarer


@given(st.lists(st.floats(-1e4, 1e5), min_size=2, max_size=100), st.floats(0.1, 1e4), st.integers(1, 10**6))
def test_shares_are_bounded_whatever_the_noise(counts: list[float], std: float, n_units: int) -> None:
    shares = class_shares(ClassCounts(np.array(counts), std), n_units)
    assert shares.sum() == pytest.approx(1)
    assert (shares > 0).all()
    assert shares.max() / shares.min() <= (n_units + sum(map(abs, counts)) * 2 + std) / std


def test_shares_estimate_large_counts_and_forget_noise() -> None:
    true = np.array([9000.0, 800.0, 200.0])
    np.testing.assert_allclose(class_shares(ClassCounts(true, 5.0), 10_000), true / 10_000, rtol=0.01)
    # equal classes below the noise: the estimate is nearer to equal ones than the noisy counts are
    errors = []
    for _ in range(200):
        noisy = 64 + 60 * G.normal(size=102)
        shares = class_shares(ClassCounts(noisy, 60.0), 6528)
        errors.append(np.abs(np.log(102 * shares)).mean())
    assert np.mean(errors) < 0.1
    lost = class_shares(ClassCounts(np.array([1000.0, -50.0]), 20.0), 950)
    assert lost[1] == pytest.approx(20 / 1020, rel=0.1)  # the count below its noise is clamped


def test_shifts_follow_bayes_rule() -> None:
    own, wanted = np.array([0.9, 0.1]), np.array([0.3, 0.7])
    likelihood = np.array([0.2, 0.5])
    scores = np.log(likelihood * own) + shift_between(own, wanted)
    np.testing.assert_allclose(np.exp(scores) / np.exp(scores).sum(), likelihood * wanted / (likelihood @ wanted))


def test_people_and_a_mean_and_counts_are_one_budget() -> None:
    data = Dataset(ArraySource(X, Y), CLASSES, bounds=np.arange(0, N + 1, 3))
    plan = plan_run(NoisyGD(epsilon=2, n_steps=3, condition="mean", class_weight="balanced").settings(), data)
    assert [release.purpose for release in plan.budget.releases] == ["mean", CLASS_COUNTS, "gradient"]
    for budget in plan.budgets:
        assert CLASS_COUNTS in {release.purpose for release in budget.others}
    trained = execute(plan, data, Runtime())
    assert trained.privacy.unit == "owner"
    assert trained.class_counts is not None
    assert trained.losses is not None
    assert trained.losses.mu.max() <= (trained.privacy.gdp_mu or 0) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("estimator", "how", "told"),
    [
        (NoisyGD, {"class_weight": "balanced", "class_counts": "no"}, "needs class counts"),
        (Prototypes, {"class_weight": "balanced"}, "log-odds"),
        (AdaMix, {"class_weight": "balanced", "variant": "theory"}, "log-odds"),
    ],
)
def test_what_balanced_scores_do_not_fit_is_refused(estimator: Any, how: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        estimator(epsilon=3, classes=range(CLASSES), **how).fit(X, Y, X[:8] + 1, np.arange(8) % 4)


def test_balanced_scores_beside_weights_of_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="these rows have weights"):
        NoisyGD(epsilon=3, classes=range(CLASSES), class_weight="balanced").fit(X, Y, sample_weight=np.ones(N))
