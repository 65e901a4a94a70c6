"""The joint sum of gradients and Hessians: its sensitivity, its bits, and what it unpacks to."""

import itertools

import numpy as np
import pytest

from linprobe.data.rows import ArrayRows
from linprobe.gradients import second_order as module
from linprobe.gradients.loss import residuals
from linprobe.gradients.second_order import lower_triangle, newton_sum, parts_of
from linprobe.methods.dp_newton import LARGEST_Q

D, C, SCALE = 7, 3, 2.0


def rows_of(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels and weights."""
    g = np.random.default_rng(seed)
    x = (g.normal(size=(n, D)) * np.exp(g.normal(size=(n, 1)))).astype(np.float32)
    return x, g.integers(0, C, n), g.normal(size=(D, C))


def summand(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Gradient and Hessians of some rows, shape (D C + C D D,)."""
    x = x.astype(np.float64)
    r = residuals(x, y, weights)
    q = (r + np.eye(C)[y]) * (1 - r - np.eye(C)[y])
    hessians = [SCALE * (x * q[:, [c]]).T @ x for c in range(C)]
    return np.concatenate([(x.T @ r).ravel(), *(hessian.ravel() for hessian in hessians)])


def unpacked(value: np.ndarray) -> np.ndarray:
    """A `newton_sum` in the form of `summand`."""
    gradient, hessians = parts_of(value, D, C)
    lower = [lower_triangle(packed[:, None], D) for packed in hessians]
    return np.concatenate([gradient.ravel(), *((low + np.tril(low, -1).T).ravel() for low in lower)])


@pytest.mark.parametrize("clip_norm", [0.3, 1e4])
@pytest.mark.parametrize("sizes", [(1,) * 40, (3, 1, 0, 20, 5)])
def test_it_is_the_sum_of_jointly_clipped_gradients_and_hessians(clip_norm, sizes) -> None:
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    x, y, weights = rows_of(bounds[-1])
    rows = ArrayRows(x, y) if max(sizes) == 1 else ArrayRows(x, y).of_people(bounds)
    found = newton_sum(rows, weights, clip_norm, SCALE)
    expected = np.zeros(D * C + C * D * D)
    for first, stop in itertools.pairwise(bounds):
        one = summand(x[first:stop], y[first:stop], weights)
        expected += one * min(1.0, clip_norm / max(np.linalg.norm(one), 1e-300))
    assert found.sensitivity == clip_norm
    np.testing.assert_allclose(unpacked(found.value), expected, rtol=6e-3, atol=6e-3 * np.abs(expected).max())


@pytest.mark.parametrize("clip_norm", [0.3, 1.0, 50.0])
@pytest.mark.parametrize("record", [np.ones(D), 1e3 * np.eye(D)[1], 3e38 * np.eye(D)[0], 1e-42 * np.ones(D)])
def test_one_record_moves_the_sum_by_its_contribution_and_at_most_by_the_sensitivity(clip_norm, record) -> None:
    x, y, weights = rows_of(1500)
    x[7] = record
    gone = x.copy()
    gone[7] = 0
    one, other = (newton_sum(ArrayRows(each, y), weights, clip_norm, SCALE) for each in (x, gone))
    moved = np.linalg.norm(one.value - other.value)
    assert moved <= one.contributions[7] * clip_norm <= clip_norm
    assert one.contributions[7] * clip_norm <= moved + 2e-2 * clip_norm


@pytest.mark.parametrize("removed", range(4))
def test_one_person_moves_the_sum_by_at_most_the_sensitivity(removed) -> None:
    sizes = np.array([3, 1, 1030, 6])
    x, y, weights = rows_of(sizes.sum())
    keep = np.repeat(np.arange(4) != removed, sizes)
    without = np.where(np.arange(4) == removed, 0, sizes)
    whole, gone = (
        newton_sum(ArrayRows(x[mask], y[mask]).of_people(np.append(0, np.cumsum(counts))), weights, 0.5, SCALE)
        for mask, counts in ((np.ones_like(keep), sizes), (keep, without))
    )
    assert np.linalg.norm(whole.value - gone.value) <= 0.5 * whole.contributions[removed] <= 0.5


def test_rows_of_one_person_that_cancel_keep_their_bound() -> None:
    x, y, weights = rows_of(2)
    x[1], y[:] = -x[0], 0  # equal and opposite gradients at zero weights
    rows = ArrayRows(x, y).of_people(np.array([0, 2]))
    found = newton_sum(rows, 0 * weights, 0.1, 1e-9)
    assert np.linalg.norm(found.value) < 1e-9
    assert found.contributions[0] >= 1 / module.MOST_CANCELLATION


def test_the_sum_has_the_same_bits_for_any_number_of_threads_and_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, weights = rows_of(5000)
    whole = newton_sum(ArrayRows(x, y), weights, 0.5, SCALE).value
    monkeypatch.setattr(module, "n_threads", lambda: 3)
    np.testing.assert_array_equal(newton_sum(ArrayRows(x, y), weights, 0.5, SCALE).value, whole)
    seen: list[list[np.ndarray]] = []
    for first, stop in ((0, 4096), (4096, 5000)):
        seen.append([])
        shard = ArrayRows(x[first:stop], y[first:stop]).as_shard(first, len(x))
        newton_sum(shard, weights, 0.5, SCALE, all_reduce=lambda total: seen[-1].append(total) or total)
    sums = iter([one + other for one, other in zip(*seen, strict=True)])
    reduced = newton_sum(ArrayRows(x, y), weights, 0.5, SCALE, all_reduce=lambda total: next(sums)).value
    np.testing.assert_array_equal(reduced, whole)


def test_no_probabilities_have_a_longer_q() -> None:
    scores = np.random.default_rng(1).normal(size=(20000, 6)) * np.linspace(0, 9, 20000)[:, None]
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert np.linalg.norm(p * (1 - p), axis=1).max() <= LARGEST_Q
    assert np.linalg.norm(np.full(3, 1 / 3 * 2 / 3)) == pytest.approx(LARGEST_Q)
