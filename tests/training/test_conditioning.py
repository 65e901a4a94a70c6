"""A noisy private mean in place of the public one: when it is released, what it costs, and what it is worth."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from linprobe.accounting.events import Releases
from linprobe.api.estimators import ESTIMATORS, AdaMix, NoisyGD, OnlyPublic
from linprobe.data.blocks import ArraySource, Preprocessing, normalise_rows
from linprobe.data.dataset import Dataset
from linprobe.data.rows import ArrayRows
from linprobe.errors import ParameterError, UsageError
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import Run, Schedule
from linprobe.methods.private_mean import (
    ENOUGH_OWN,
    LEAST_OWN,
    MEAN,
    expected_squared_norm,
    largest_noise,
    longer_steps,
    released_mean,
    shrunk_mean,
)
from linprobe.options import CENTRED_STEPS, DEFAULT_DELTA, DEFAULT_STEPS, MOMENTUM_STEPS
from linprobe.training import execute as execute_module
from linprobe.training import plan as plan_module
from linprobe.training.plan import (
    ENOUGH_NOISE,
    MEAN_SHARE,
    MOST_NOISE,
    MOST_SHARE,
    Settings,
    paid_by,
    plan_run,
    settled,
)

CLASSES, N, WIDTH = 3, 3000, 20


def rows_with_a_mean(n: int = N, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of three classes around a mean that is longer than the distance between classes."""
    g = np.random.default_rng(seed)
    y = g.integers(CLASSES, size=n)
    centres = np.random.default_rng(9).normal(size=(CLASSES, WIDTH))
    x = 20 + 0.7 * centres[y] + 0.9 * g.normal(size=(n, WIDTH))
    return x.astype(np.float32), y


def fitted(method: type[NoisyGD] = NoisyGD, **given: Any) -> Any:
    x, y = rows_with_a_mean()
    return method(epsilon=1.0, classes=list(range(CLASSES)), **given).fit(x, y)


def settings(**given: Any) -> Settings:
    return NoisyGD(epsilon=1.0, **given).settings()


def test_the_mean_is_one_release_within_epsilon() -> None:
    privacy = fitted(condition="mean").privacy_
    (mean,) = [release for release in privacy["releases"] if release["purpose"] == MEAN]
    assert mean["count"] == 1
    assert mean["noise_multiplier"] == paid_by(MEAN_SHARE, DEFAULT_DELTA, N, MEAN).noise_multiplier
    assert privacy["epsilon"] <= 1


def test_a_share_of_epsilon_costs_little_of_the_noise() -> None:
    spent = fitted(condition="mean", n_steps=50).privacy_["noise_multiplier"]
    free = fitted(condition="none", n_steps=50).privacy_["noise_multiplier"]
    assert 1 < spent / free < 1.01


@pytest.mark.parametrize("method", ["noisy-gd", "fully-private"])
def test_rows_far_from_the_origin_are_learned_better(method: str) -> None:
    x, y = rows_with_a_mean(1000, seed=1)
    centred, plain = (
        fitted(ESTIMATORS[method], condition=condition, insecure_seed=5) for condition in ("auto", "none")
    )
    assert (centred.centre_, plain.centre_) == ("private", "none")
    assert centred.score(x, y) > 0.2 + plain.score(x, y)


def decided(n: int, most: float = MOST_NOISE) -> Settings:
    return settled(settings(), n, WIDTH, known=None, most=most)


def noise_of(release: Releases, n: int) -> float:
    """The length of the noise of a mean of n rows."""
    return math.sqrt(WIDTH) * release.noise_multiplier / n


@cache
def paid(share: float) -> Releases:
    return paid_by(share, DEFAULT_DELTA, N, MEAN)


def around(mean: float, classes: int = 8) -> NDArray[np.float64]:
    """Orthonormal vectors, each with `mean` times one common vector, of any length."""
    return 7 * (np.eye(WIDTH)[:, :classes] + mean * np.eye(WIDTH)[:, -1:])


@pytest.mark.parametrize("most", [MOST_NOISE, 0.3])
def test_auto_weighs_the_noise_of_the_mean(most: float) -> None:
    enough = next(n for n in range(10, N) if noise_of(paid(MOST_SHARE), n) <= most)
    assert (decided(enough - 1, most).condition, decided(enough, most).condition) == ("none", MEAN)
    assert decided(enough - 1, most).others == ()
    assert settled(settings(condition=MEAN), enough - 1, WIDTH, known=None, most=most).condition == MEAN


def test_the_share_of_the_mean_follows_from_its_noise() -> None:
    few, some, many = (
        next(n for n in range(10, N) if noise_of(paid(MEAN_SHARE), n) <= noise) for noise in (2, 0.5, 0.2)
    )
    assert decided(few).others == (paid(MOST_SHARE),)
    (between,) = decided(some).others
    assert noise_of(between, some) == pytest.approx(ENOUGH_NOISE, rel=0.1)
    assert paid(MOST_SHARE).noise_multiplier < between.noise_multiplier < paid(MEAN_SHARE).noise_multiplier
    assert decided(many).others == (paid(MEAN_SHARE),)
    for n in (few, some):
        plan = plan_run(settings(), Dataset(ArraySource(*rows_with_a_mean(n)), CLASSES))
        assert plan.budget.accountant.epsilon(plan.budget.releases, DEFAULT_DELTA) <= 1


def test_a_mean_takes_a_share_of_what_noisy_test_figures_leave() -> None:
    few = Dataset(ArraySource(*rows_with_a_mean(N // 10)), CLASSES)
    found = []
    for tests in (None, 0.5, 0.96):
        asked = replace(settings(), test_epsilon=tests, n_test=N, n_classes=CLASSES, condition=MEAN)
        releases = {one.purpose: one for one in plan_run(asked, few).budget.releases}
        mean, steps = (releases[what].count / releases[what].noise_multiplier ** 2 for what in (MEAN, "gradient"))
        found.append(mean)
        assert mean < 0.15 * steps  # as much as with all of epsilon, or less
    assert found[0] > found[1] > 2 * found[2]


@pytest.mark.parametrize(("mean", "most"), [(0.0, math.sqrt(7 / 8)), (1.0, math.sqrt(7 / 16)), (30.0, 0.4)])
def test_text_vectors_say_how_much_noise_a_mean_may_have(mean: float, most: float) -> None:
    assert largest_noise(around(mean)) == pytest.approx(0.75 * most, rel=1e-6)


def test_a_run_from_text_decides_by_its_vectors() -> None:
    n = next(n for n in range(10, N) if noise_of(paid(MOST_SHARE), n) <= 0.4)
    x, y = rows_with_a_mean(n)
    found = []
    for text in (None, around(0.0, CLASSES), around(30.0, CLASSES)):
        dataset = Dataset(ArraySource(x, y), CLASSES, text_weights=text)
        found.append(plan_run(settings(), dataset).settings.condition)
    assert found == [MEAN, MEAN, "none"]


def test_descent_around_a_mean_is_longer_where_classes_have_many_rows() -> None:
    x, y = rows_with_a_mean()
    public = dict(zip(("X_public", "y_public"), rows_with_a_mean(30, seed=1), strict=True))
    assert NoisyGD(epsilon=1.0).fit(x, y, **public).n_iter_ == CENTRED_STEPS
    assert NoisyGD(epsilon=1.0).fit(x[:750], y[:750], **public).n_iter_ == CENTRED_STEPS
    assert NoisyGD(epsilon=1.0).fit(x[:749], y[:749], **public).n_iter_ == DEFAULT_STEPS
    assert fitted(condition="mean").n_iter_ == CENTRED_STEPS


@pytest.mark.parametrize("centre", ["public", "private"])
def test_text_weights_around_a_mean_give_the_scores_that_they_give_without(centre: str) -> None:
    x, y = rows_with_a_mean()
    text = np.random.default_rng(1).normal(size=(WIDTH, CLASSES)) + 1
    public = rows_with_a_mean(30, seed=1) if centre == "public" else ()
    given = {"init": "text", "learning_rate": 1e-12, "text_scale": 5.0, "classes": list(range(CLASSES))}
    started = NoisyGD(epsilon=1.0, **given).fit(x, y, *public, text_weights=text)
    assert started.centre_ == centre
    scores = normalise_rows(x) @ (5 * text / np.linalg.norm(text, axis=0))
    found = started.decision_function(x)
    np.testing.assert_allclose(found - found[:, :1], scores - scores[:, :1], atol=1e-4)


@pytest.mark.parametrize("epsilon", [0.05, 0.3])  # too little for a mean; enough for a noisy one
def test_a_run_on_rows_that_are_nearly_alike_keeps_what_text_knows(epsilon: float) -> None:
    g = np.random.default_rng(0)
    directions, y = g.normal(size=(32, 2)), g.integers(2, size=2000)
    x = 30 + directions.T[y] + g.normal(size=(2000, 32))
    text = x[:8].mean(axis=0)[:, None] + directions / 2
    given = {"classes": [0, 1], "insecure_seed": 3}
    start = ESTIMATORS["zero-shot"](classes=[0, 1]).fit(x, y, text_weights=text).score(x, y)
    for method in ("noisy-gd", "dp-sgd"):
        assert ESTIMATORS[method](epsilon=epsilon, **given).fit(x, y, text_weights=text).score(x, y) > start - 0.02


@pytest.mark.parametrize("epsilon", [0.2, 0.3])  # too little for a mean; the noise along it is larger than the start
def test_a_run_on_raw_rows_keeps_what_text_knows(epsilon: float) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    unit = normalise_rows(x.astype(np.float32))
    text = {"text_weights": np.stack([unit[y == label][:4].mean(axis=0) for label in (0, 1)], axis=1)}
    start = ESTIMATORS["zero-shot"](classes=[0, 1]).fit(x, y, **text).score(x, y)
    for method in ("noisy-gd", "dp-sgd"):
        trained = ESTIMATORS[method](classes=[0, 1], epsilon=epsilon, insecure_seed=0).fit(x, y, **text)
        assert (trained.centre_, trained.score(x, y) > start - 0.02) == ("none", True)


def test_a_short_mean_says_that_rows_are_not_as_alike_as_text_vectors() -> None:
    g = np.random.default_rng(0)
    directions, y = g.normal(size=(32, 4)), g.integers(4, size=2000)
    directions -= directions.mean(axis=1, keepdims=True)
    x, text = directions.T[y] + g.normal(size=(2000, 32)), directions[:, ::-1] + 30 * g.normal(size=(32, 1))  # wrong
    given = {"classes": range(4), "epsilon": 1.0, "insecure_seed": 3}
    trained = NoisyGD(**given, init="text").fit(x, y, text_weights=text)
    blind = NoisyGD(**given, condition="none", init="text").fit(x, y, text_weights=text)
    assert (trained.centre_, blind.centre_) == ("none", "none")
    assert trained.score(x, y) > 0.9 > blind.score(x, y)


def test_text_weights_without_an_intercept_stay_uncentred() -> None:
    x, y = rows_with_a_mean()
    text = {"text_weights": np.random.default_rng(1).normal(size=(WIDTH, CLASSES))}
    classes = list(range(CLASSES))
    assert NoisyGD(epsilon=1.0, classes=classes, intercept=0).fit(x, y, **text).centre_ == "none"
    with pytest.raises(UsageError, match="condition is 'mean', but there are text weights and no intercept"):
        NoisyGD(epsilon=1.0, classes=classes, intercept=0, condition="mean").fit(x, y, **text)
    with pytest.raises(UsageError, match="init 'text' around a centre needs an intercept"):
        NoisyGD(epsilon=1.0, classes=classes, intercept=0, init="text", centre="public").fit(
            x, y, *rows_with_a_mean(30, seed=1), **text
        )


def test_large_steps_around_a_mean_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows_with_a_mean()
    alone = Dataset(ArraySource(x, y), CLASSES)
    around_public = Dataset(ArraySource(x, y), CLASSES, public=ArraySource(x[:30], y[:30]))
    size = len(x) * WIDTH * CLASSES
    per_class = len(x) // CLASSES

    def steps(large: float, asked: Settings, dataset: Dataset, many: int = per_class) -> list[int]:
        for name in ("LARGE_STEP", "LARGE_STEP_WITH_MOMENTUM"):
            monkeypatch.setattr(plan_module, name, large)
        monkeypatch.setattr(plan_module, "MANY_ROWS", many)
        return [budget.n_steps for budget in plan_run(asked, dataset).budgets]

    private = settings(condition=MEAN)
    assert steps(size, private, alone, per_class + 1) == [CENTRED_STEPS, DEFAULT_STEPS]  # not above `LARGE_STEP`
    assert steps(size - 1, private, alone, per_class + 1) == [DEFAULT_STEPS, DEFAULT_STEPS]
    assert steps(size - 1, private, alone) == [MOMENTUM_STEPS, DEFAULT_STEPS]
    assert steps(size - 1, settings(condition=MEAN, learning_rate=1e-3), alone) == [CENTRED_STEPS, DEFAULT_STEPS]
    for method, few in (("noisy-gd", DEFAULT_STEPS), ("adamix", DEFAULT_STEPS), ("ngd", CENTRED_STEPS)):
        asked = ESTIMATORS[method](epsilon=1.0).settings()
        assert steps(size, asked, around_public) == [CENTRED_STEPS]
        assert steps(size - 1, asked, around_public) == [few]
        assert steps(size - 1, asked, around_public, per_class + 1) == [DEFAULT_STEPS]


def test_the_number_of_steps_does_not_depend_on_the_rows_of_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows_with_a_mean()
    people = np.arange(1, len(x) + 1 - 9)  # the last person has ten rows, or one

    def steps(bounds: NDArray[np.intp], **given: Any) -> list[int]:
        rows = ArraySource(x[: bounds[-1]], y[: bounds[-1]])
        dataset = Dataset(rows, CLASSES, bounds=bounds, public=ArraySource(x[:30], y[:30]) if not given else None)
        return [budget.n_steps for budget in plan_run(settings(**given), dataset).budgets]

    one, ten = np.append(0, people), np.append(0, [*people[:-1], len(x)])
    for name in ("LARGE_STEP", "LARGE_STEP_WITH_MOMENTUM"):
        monkeypatch.setattr(plan_module, name, (len(x) - 5) * WIDTH * CLASSES)
    monkeypatch.setattr(plan_module, "MANY_ROWS", len(x))
    assert steps(one) == steps(ten)
    assert steps(one, condition=MEAN) == steps(ten, condition=MEAN)


@pytest.mark.parametrize("given", [{"learning_rate": 1e-3}, {"schedule": "theory"}])
def test_large_steps_without_momentum_are_many(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    x, y = rows_with_a_mean()
    monkeypatch.setattr(plan_module, "LARGE_STEP_WITH_MOMENTUM", 1)
    dataset = Dataset(ArraySource(x, y), CLASSES, public=ArraySource(x[:30], y[:30]))
    assert plan_run(settings(**given), dataset).schedule.n_steps == CENTRED_STEPS


@pytest.mark.parametrize("condition", ["nonee", "Mean", ""])
def test_an_unknown_condition_is_refused(condition: str) -> None:
    x, y = rows_with_a_mean()
    with pytest.raises(ParameterError, match="allowed: auto, none, mean"):
        NoisyGD(epsilon=1.0, classes=list(range(CLASSES)), condition=condition).fit(x, y)


def test_public_rows_make_a_private_mean_idle() -> None:
    x, y = rows_with_a_mean()
    public = dict(zip(("X_public", "y_public"), rows_with_a_mean(30, seed=1), strict=True))
    model = NoisyGD(epsilon=1.0).fit(x, y, **public)
    assert model.centre_ == "public"
    with pytest.raises(UsageError, match="public rows"):
        NoisyGD(epsilon=1.0, condition="mean").fit(x, y, **public)


def test_rows_around_the_origin_stay_as_they_are() -> None:
    g = np.random.default_rng(0)
    x, y = g.normal(size=(N, WIDTH)).astype(np.float32), g.integers(CLASSES, size=N)
    probe = NoisyGD(epsilon=1.0, classes=list(range(CLASSES))).fit(x, y)
    assert (probe.centre_, probe.n_iter_) == ("none", DEFAULT_STEPS)
    assert [release["purpose"] for release in probe.privacy_["releases"]] == [MEAN, "gradient"]
    assert 0.999 < probe.privacy_["epsilon"] <= 1


def test_without_noise_the_mean_is_that_of_unit_rows() -> None:
    x, _ = rows_with_a_mean(50)
    unit = normalise_rows(x).astype(np.float64)
    np.testing.assert_allclose(shrunk_mean(unit.sum(axis=0), 0.0, 50), unit.mean(axis=0), rtol=1e-12)


def test_the_margin_of_a_sum_does_not_shorten_the_released_mean() -> None:
    x, _ = rows_with_a_mean(50)
    unit, mechanism = normalise_rows(x), GaussianMechanism(NoiseSource(1), lambda _: None)
    run = Run(Schedule(1, 1.0, 1.0, others={MEAN: 1e-9}), mechanism, lambda: None)
    found = released_mean(ArrayRows(unit, np.zeros(50, np.int64)), run)
    np.testing.assert_allclose(found, unit.mean(axis=0, dtype=np.float64), rtol=1e-6)


def test_a_mean_that_is_noise_is_dropped() -> None:
    g = np.random.default_rng(0)
    noise = g.normal(size=(200, WIDTH)) * 100
    shrunk = [np.linalg.norm(shrunk_mean(total, 100.0, 1000)) for total in noise]
    assert np.mean(shrunk) < 0.3 * np.linalg.norm(noise / 1000, axis=1).mean()


def test_steps_are_longer_where_rows_are_nearly_alike_around_a_noisy_mean() -> None:
    g, sigma, n = np.random.default_rng(0), 20.0, 1000
    direction = np.eye(WIDTH)[0]
    found = {
        length: [
            longer_steps(shrunk_mean(n * length * direction + sigma * g.normal(size=WIDTH), sigma, n), sigma / n)
            for _ in range(100)
        ]
        for length in (0.3, 0.7, 0.999)
    }
    assert np.max(found[0.3]) == 1
    assert 1 <= np.mean(found[0.7]) < 1.1
    assert np.mean(found[0.999]) > 2
    assert np.max(found[0.999]) == pytest.approx(ENOUGH_OWN / LEAST_OWN)
    assert longer_steps(0.9 * direction, 0.0) == 1  # an exact mean
    assert longer_steps(direction, 0.0) > 1  # equal rows


@pytest.mark.parametrize("method", ["noisy-gd", "dp-sgd", "fully-private"])
def test_a_start_from_zero_takes_the_longer_steps_and_another_start_does_not(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rows_with_a_mean(400)
    text = np.random.default_rng(1).normal(size=(WIDTH, CLASSES)).astype(np.float32)
    starts: list[dict[str, Any]] = [{}, {"text_weights": text}, {"X_unlabelled": x[:50] + 1}]

    def rates() -> list[float]:
        probe = ESTIMATORS[method](epsilon=1.0, classes=list(range(CLASSES)), condition="mean", insecure_seed=5)
        known = starts[:1] if method == "fully-private" else starts
        return [probe.fit(x, y, **given).history_[0]["learning_rate"] for given in known]

    monkeypatch.setattr(execute_module, "longer_steps", lambda mean, error: 1.0)
    plain = rates()
    monkeypatch.setattr(execute_module, "longer_steps", lambda mean, error: 1.5)
    assert rates() == pytest.approx([1.5 * plain[0], *plain[1:]])


def test_folded_weights_give_the_scores_of_training_space() -> None:
    x, _ = rows_with_a_mean(40)
    g = np.random.default_rng(2)
    mean = normalise_rows(x).mean(axis=0, dtype=np.float64)
    space = Preprocessing(intercept=0.5).around(mean, expected_squared_norm(mean, 1e-3))
    weights = g.normal(size=(WIDTH + 1, CLASSES))
    folded, bias = space.fold(weights)
    around = normalise_rows(x).astype(np.float64) - space.centre
    expected = around @ weights[:-1] / space.centred_norm + 0.5 * weights[-1]
    np.testing.assert_allclose(normalise_rows(x) @ folded + bias, expected, atol=1e-4)


def test_rows_close_to_their_mean_keep_the_balance_of_weights_and_bias() -> None:
    g = np.random.default_rng(3)
    x = g.normal(size=(2000, WIDTH)) / 50 + np.eye(WIDTH)[0]
    unit = normalise_rows(x.astype(np.float32)).astype(np.float64)
    space = Preprocessing(intercept=0.5).around(unit.mean(axis=0), expected_squared_norm(unit.mean(axis=0), 1e-3))
    weights = g.normal(size=(WIDTH + 1, CLASSES))
    folded, bias = space.fold(weights)
    answers = (space.apply(x) @ weights).argmax(axis=1)
    assert np.mean((unit @ folded + bias).argmax(axis=1) == answers) > 0.998


def test_share_is_a_share() -> None:
    assert 0 < MEAN_SHARE < 0.1


def with_public(counts: tuple[int, ...], seed: int = 2) -> Dataset:
    """Private rows, and as many public rows of each class as `counts` says."""
    x, y = rows_with_a_mean(seed=seed)
    public, labels = rows_with_a_mean(seed=seed + 1)
    taken = np.concatenate([np.flatnonzero(labels == label)[:count] for label, count in enumerate(counts)])
    return Dataset(ArraySource(x, y), CLASSES, public=ArraySource(public[taken], labels[taken]))


@pytest.mark.parametrize(
    ("counts", "given", "column"),
    [
        ((5, 5, 5), {}, 0.0),
        ((5, 5, 3), {}, 0.0),
        ((6, 5, 3), {}, 0.5),
        ((5, 0, 0), {}, 0.5),
        ((5, 0, 0), {"intercept": 0.25}, 0.25),
        ((5, 0, 0), {"intercept": 0.0}, 0.0),
    ],
)
def test_unequal_public_rows_leave_the_bias_to_private_rows(
    counts: tuple[int, ...], given: dict[str, float], column: float
) -> None:
    data = with_public(counts)
    plan = plan_run(AdaMix(epsilon=1.0, **given).settings(), data)
    assert plan.preprocessing.intercept == column
    (x, y), centre = next(data.public.blocks()), plan.preprocessing.centre
    unit = normalise_rows(x).astype(np.float64)
    halfway = (unit.mean(axis=0) + np.mean([unit[y == label].mean(axis=0) for label in set(y)], axis=0)) / 2
    np.testing.assert_allclose(centre, halfway if max(counts) >= 2 * min(counts) else unit.mean(axis=0), rtol=1e-12)


def test_public_rows_tell_nothing_about_the_bias() -> None:
    x, y = next(with_public((20, 2, 2)).public.blocks())
    model = OnlyPublic(classes=range(CLASSES)).fit(*rows_with_a_mean(), X_public=x, y_public=y)
    centre = Preprocessing.centred_on(x, y).centre
    np.testing.assert_allclose(model.intercept_, -model.coef_ @ centre, atol=1e-4)


@pytest.mark.parametrize("counts", [(40, 0), (40, 3)])
@pytest.mark.parametrize("method", [AdaMix, NoisyGD])
def test_public_rows_of_one_class_do_not_move_the_threshold(method: type[Any], counts: tuple[int, int]) -> None:
    g = np.random.default_rng(3)
    y = np.arange(4000) % 2
    x = g.normal(size=(4000, 16)) + np.where(y, 1.0, -1.0)[:, None] * np.eye(16)[0] * 2
    public = np.concatenate([np.flatnonzero(y == label)[:count] for label, count in enumerate(counts)])
    private, test = np.arange(100, 2500), np.arange(2500, 4000)
    model = method(epsilon=3.0, classes=[0, 1], insecure_seed=4)
    model.fit(x[private], y[private], X_public=x[public], y_public=y[public])
    assert model.score(x[test], y[test]) > 0.94
