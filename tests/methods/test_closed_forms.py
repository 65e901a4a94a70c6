"""Methods with a closed form: without noise they give it exactly."""

import numpy as np
import pytest

from linprobe.data.rows import ArrayRows
from linprobe.errors import UsageError
from linprobe.gradients.second_order import parts_of
from linprobe.methods import METHODS, Problem
from linprobe.methods._base import initial_weights
from linprobe.methods.dp_newton import LARGEST_Q
from linprobe.parallel import available_memory
from tests.methods.test_contract import STEPS, C, D, SpyMechanism, fit, problem


def rows_and_indicators() -> tuple[np.ndarray, np.ndarray]:
    private = problem().private
    return private.x.astype(np.float64), np.eye(C)[private.y]


@pytest.mark.parametrize("weight_decay", [1e-2, 3.0])
def test_dp_ls_without_noise_is_ridge_regression(weight_decay: float) -> None:
    x, indicators = rows_and_indicators()
    weights = fit(METHODS["dp-ls"], {"weight_decay": weight_decay}, problem(), SpyMechanism(), sigma=0.0).weights
    ridge = np.linalg.solve(x.T @ x + weight_decay * np.eye(D), x.T @ indicators)
    np.testing.assert_allclose(weights, ridge, rtol=1e-2, atol=1e-3)  # rows are shortened by the margin for rounding


def test_dp_ls_ridge_is_in_units_of_the_noise() -> None:
    spy = SpyMechanism()
    fitted = fit(METHODS["dp-ls"], {"noise_ridge": 0.5, "weight_decay": 2.0}, problem(), spy, sigma=5.0)
    assert fitted.history == [{"step": 1, "ridge": 2 + 0.5 * 5 * (2 * D) ** 0.5}]
    assert [event.purpose for event in spy.events] == ["covariance", "gradient"]


def test_dp_ls_uses_no_negative_eigenvalue() -> None:
    weights = fit(
        METHODS["dp-ls"], {"noise_ridge": 1.0, "weight_decay": 1e-9}, problem(), SpyMechanism(), sigma=1e4
    ).weights
    assert np.linalg.norm(weights) <= 10 * (C * D) ** 0.5 / (2 * D) ** 0.5


def test_prototypes_without_noise_are_the_directions_of_the_class_means() -> None:
    x, indicators = rows_and_indicators()
    weights = fit(METHODS["prototypes"], {}, problem(), SpyMechanism(), sigma=0.0).weights
    means = x.T @ indicators
    np.testing.assert_allclose(weights, means / np.linalg.norm(means, axis=0), atol=1e-5)


def test_a_class_without_rows_has_no_prototype_without_noise() -> None:
    data = problem()
    data.private.y[data.private.y == 2] = 1
    weights = fit(METHODS["prototypes"], {}, data, SpyMechanism(), sigma=0.0).weights
    assert np.all(weights[:, 2] == 0)


def test_dp_fc_without_noise_is_preconditioned_gradient_descent() -> None:
    x, indicators = rows_and_indicators()
    options = {"init": "zero", "output": "last", "learning_rate": 0.1, "weight_decay": 1e-9, "clip_norm": 100.0}
    weights = fit(METHODS["dp-fc"], options, problem(), SpyMechanism(), sigma=0.0).weights
    moment = x.T @ x
    inverse = np.linalg.inv(moment + np.eye(D))
    inverse *= np.sqrt(np.trace(moment) / np.trace(inverse @ moment @ inverse))
    expected = np.zeros((D, C))
    for _ in range(STEPS):
        scores = np.exp(x @ expected)
        expected -= 0.1 * inverse @ x.T @ (scores / scores.sum(axis=1, keepdims=True) - indicators)
    np.testing.assert_allclose(weights, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


def test_the_noise_of_a_dp_fc_run_in_the_score_of_a_row_is_what_was_asked_for() -> None:
    x = np.random.default_rng(4).normal(size=(4000, 60)) * np.geomspace(3, 0.1, 60)
    rows = ArrayRows((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), np.zeros(4000, np.int64))
    data = Problem(60, C, private=rows)
    options = {"init": "zero", "output": "last", "score_noise": 0.7, "weight_decay": 1e-9}
    first = SpyMechanism(seed=5)
    fit(METHODS["dp-fc"], options, data, first)
    covariance, *gradients = first.values
    noise = [value - total for value, total in zip(gradients, first.sums[1:], strict=True)]
    weights = fit(METHODS["dp-fc"], options, data, SpyMechanism(replay=[covariance, *noise])).weights
    assert (rows.x @ weights).std() == pytest.approx(0.7, rel=0.15)


def test_dp_newton_without_noise_is_newtons_method_on_the_blocks_of_each_class() -> None:
    x, indicators = rows_and_indicators()
    options = {"init": "zero", "weight_decay": 0.1, "clip_norm": 100, "hessian_share": 1e-6}
    fitted = fit(METHODS["dp-newton"], options, problem(), SpyMechanism(), sigma=0.0)
    expected = np.zeros((D, C))
    for _ in range(STEPS):
        p = np.exp(x @ expected)
        p /= p.sum(axis=1, keepdims=True)
        gradient = x.T @ (p - indicators) + 0.1 * expected
        for c in range(C):
            hessian = (x * (p * (1 - p))[:, [c]]).T @ x + 0.1 * np.eye(D)
            expected[:, c] -= (1 - 1 / C) * np.linalg.solve(hessian, gradient[:, c])
    np.testing.assert_allclose(fitted.weights, expected, rtol=1e-3, atol=1e-3)
    p = np.exp(x @ fitted.weights)
    left = x.T @ (p / p.sum(axis=1, keepdims=True) - indicators) + 0.1 * fitted.weights
    assert np.linalg.norm(left) < 1e-2 * np.linalg.norm(x.T @ (1 / C - indicators))


def test_dp_newton_ridge_is_in_units_of_the_noise_and_directions_of_negative_curvature_are_not_used() -> None:
    options = {"noise_ridge": 0.5, "weight_decay": 2.0, "clip_norm": 1.0, "hessian_share": 0.25, "init": "zero"}
    spy = SpyMechanism()
    fitted = fit(METHODS["dp-newton"], options, problem(), spy, sigma=1e6)
    noise = 1e6 * (2 * D) ** 0.5 * LARGEST_Q / 0.5
    assert fitted.history[0] == {"step": 1, "clip_norm": 1.0, "ridge": pytest.approx(2 + 0.5 * noise)}
    gradient = parts_of(spy.values[0], D, C)[0]
    first = spy.events[0]
    assert (first.purpose, first.sensitivity) == ("gradient", 1.0)
    assert np.linalg.norm(fitted.weights) <= STEPS * 2 * np.linalg.norm(gradient) / (0.5 * noise)


def test_dp_newton_refuses_more_hessians_than_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available_memory, "available", lambda: 2 * 24 * C * D**2 - 2)
    with pytest.raises(UsageError, match=r"4 Hessians of 7 features need .* use dp-fc"):
        fit(METHODS["dp-newton"], {}, problem(), SpyMechanism())


def test_dp_fc_keeps_a_public_start_where_the_budget_is_small() -> None:
    data = problem()
    start = fit(METHODS["dp-fc"], {"learning_rate": 1e-30}, data, SpyMechanism(), sigma=1.0).weights
    moved = [
        np.linalg.norm(fit(METHODS["dp-fc"], {}, data, SpyMechanism(), sigma=sigma).weights - start)
        for sigma in (1e2, 1e4)
    ]
    assert moved[1] < 0.1 * moved[0]


def test_dp_newton_keeps_a_public_start_where_the_budget_is_small() -> None:
    data = problem()
    start = initial_weights(data, init="public", weight_decay=1e-2)
    moved = [
        np.linalg.norm(fit(METHODS["dp-newton"], {"init": "public"}, data, SpyMechanism(), sigma=sigma).weights - start)
        for sigma in (1e2, 1e4)
    ]
    assert moved[1] < 0.1 * moved[0]
