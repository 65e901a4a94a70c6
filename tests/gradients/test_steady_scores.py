"""Scores of others when a record or person leaves, at weights just below the largest allowed.

BLAS rounds a row according to the shape of the call. At such weights the rounding of scores is of the size of the
residuals that these tests make, so that it would turn the clipped gradients of all others.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from linprobe.data.blocks import BLOCK_ROWS, ArraySource, Preprocessing, normalise_rows
from linprobe.data.rows import ArrayRows, StreamedRows
from linprobe.gradients.backend import HOST, products
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.gpu import DeviceProducts, GpuBackend
from linprobe.gradients.loss import LARGEST_WEIGHTS, PLAIN, Geometry, Origin, Scale, residuals_of
from linprobe.gradients.rounding import ROW_BITS, SteadyProducts
from linprobe.gradients.second_order import newton_sum
from linprobe.options import Loss
from linprobe.parallel.process_group import in_group

D, CLIP_NORM = 512, 1e-9
DEVICE = GpuBackend(torch.device("cpu"))
# where OpenBLAS changes its order of additions: one row or several, whole groups of four, and its small products
SHAPES = [(2, 20), (4, 10), (8, 3), (98, 20), (196, 10)]
sums_by = pytest.mark.usefixtures("sums_by")


def hard_rows(n: int, n_classes: int) -> tuple[Any, Any, Any]:
    """Rows (u, -u), weights (v, v) with scores of 0 up to rounding, and targets of the size of that rounding."""
    g = np.random.default_rng(n)
    v, u = g.normal(size=(D // 2, n_classes)), g.normal(size=(n, D // 2)).astype(np.float32)
    weights = np.concatenate([v, v])
    weights *= 0.999 * LARGEST_WEIGHTS / np.linalg.norm(weights)
    x = normalise_rows(np.concatenate([u, -u], axis=1))
    return x, (1e-8 * g.normal(size=(n, n_classes))).astype(np.float32), weights


def labels_for(loss: Loss, y: Any) -> Any:
    return {"squared": y, "softmax": np.zeros(len(y), dtype=int), "sigmoid": (y > 0).astype(np.uint8)}[loss]


def moved(whole: Any, without: Any, clip_norm: float = CLIP_NORM) -> float:
    return float(np.linalg.norm(np.asarray(whole) - np.asarray(without)) / clip_norm)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 300),
    d=st.sampled_from([1, 2, 3, 64, 513, 5000]),
    c=st.integers(1, 12),
    size=st.sampled_from([1e-30, 1.0, 1e9]),
    spread=st.sampled_from([0.0, 3.0]),
)
@example(seed=6742, n=35, d=2, c=11, size=1e-30, spread=3.0)  # rows and columns are rounded: above d 2^-ROW_BITS
def test_neither_the_order_of_additions_nor_other_rows_change_a_bit(seed, n, d, c, size, spread) -> None:
    g = np.random.default_rng(seed)
    x = (g.normal(size=(n, d)) * np.exp(spread * g.normal(size=(n, d)))).astype(np.float32)
    matrix = size * g.normal(size=(d, c)) * np.exp(spread * g.normal(size=(d, c)))
    found, order, some = SteadyProducts(matrix).of(x), g.permutation(d), g.random(n) < 0.5
    assert np.array_equal(found, SteadyProducts(matrix[order]).of(x[:, order]))
    assert np.array_equal(found[some], SteadyProducts(matrix).of(x[some]))
    assert np.array_equal(found, SteadyProducts(torch.from_numpy(matrix)).of(torch.from_numpy(x)).numpy())
    most = np.outer(abs(x).max(axis=1), abs(matrix).max(axis=0))
    assert (abs(found - x.astype(np.float64) @ matrix) <= d * (2.0 ** (1 - ROW_BITS) + 2.0**-50) * most).all()


@pytest.mark.parametrize("n_classes", [1, 2, 10, 1000])
@pytest.mark.parametrize("put", [np.asarray, torch.from_numpy])
def test_the_order_of_classes_changes_no_bit_of_a_residual(n_classes, put) -> None:
    g = np.random.default_rng(n_classes)
    scores, order = 30 * g.normal(size=(50, n_classes)), g.permutation(n_classes)
    y = g.integers(0, n_classes, 50)
    found = residuals_of(put(scores.copy()), put(y), "softmax")[0]
    other = residuals_of(put(scores[:, order].copy()), put(np.argsort(order)[y]), "softmax")[0]
    assert np.array_equal(np.asarray(found)[:, order], np.asarray(other))
    wanted = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted /= wanted.sum(axis=1, keepdims=True)
    wanted[np.arange(50), y] -= 1
    np.testing.assert_allclose(found, wanted, atol=n_classes * 2.0**-50)


def test_rows_of_zeros_have_scores_of_zero() -> None:
    assert not SteadyProducts(np.full((3, 2), 1e9)).of(np.zeros((2, 3), np.float32)).any()
    assert not SteadyProducts(np.zeros((3, 2))).of(np.ones((2, 3), np.float32)).any()


@sums_by
@pytest.mark.parametrize("loss", ["squared", "softmax", "sigmoid"])
@pytest.mark.parametrize(("way", "sampled"), [*product(("memory", "stream"), (False, True)), ("device", False)])
def test_a_person_who_leaves_turns_nobody_elses_gradient(loss, way, sampled) -> None:
    for n, n_classes in SHAPES:
        assert 0.98 < _moved_by_a_person(n, n_classes, loss, way, sampled) <= 1, (n, n_classes)


def _moved_by_a_person(n: int, n_classes: int, loss: Loss, way: str, sampled: bool) -> float:
    x, y, weights = hard_rows(n, n_classes)
    y, backend = labels_for(loss, y), DEVICE if way == "device" else HOST
    sums = []
    for first in (0, 1):
        bounds = np.maximum(np.arange(n + 1) - first, 0)
        rows = ArrayRows(x[first:], y[first:])
        if way == "stream":
            source = ArraySource(x[first:], y[first:])
            rows = StreamedRows(source.blocks, n - first, D, Preprocessing())  # type: ignore[assignment]
        rows = backend.place(rows.of_people(bounds))
        if sampled:
            rows = rows.sample(np.ones(n, dtype=bool), 0.9, observed=False)
        total = clipped_sum(rows, backend.put(weights), CLIP_NORM, loss=loss, per_record=False, backend=backend)
        sums.append(total.value)
    return moved(*sums)


@sums_by
@pytest.mark.parametrize("loss", ["squared", "softmax", "sigmoid"])
@pytest.mark.parametrize("geometry", ["plain", "origin", "scale"])
def test_a_record_that_leaves_a_sample_turns_no_other_gradient(loss, geometry) -> None:
    for n, n_classes in SHAPES:
        assert 0.9 < _moved_by_a_record(n, n_classes, loss, geometry) <= 1, (n, n_classes)


def _moved_by_a_record(n: int, n_classes: int, loss: Loss, geometry: str) -> float:
    x, y, weights = hard_rows(n, n_classes)
    rows, g, joined = ArrayRows(x, labels_for(loss, y)), np.random.default_rng(1), np.ones(n, dtype=bool)
    origin, scale = CLIP_NORM * g.normal(size=weights.shape) / D, np.exp(g.normal(size=weights.shape))
    shape: Geometry = {"plain": PLAIN, "origin": Origin(origin), "scale": Scale(scale)}[geometry]
    sums = []
    for joins in (True, False):
        joined[0] = joins
        sample = rows.sample(joined.copy(), 0.9, observed=False)
        sums.append(clipped_sum(sample, weights, CLIP_NORM, loss=loss, per_record=False, geometry=shape).value)
    return moved(*sums)


@sums_by
@pytest.mark.parametrize("geometry", ["plain", "origin", "scale"])
@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_what_a_person_contributes_depends_on_nobody_else(geometry, loss) -> None:
    x, y, weights = hard_rows(197, 10)
    g, bounds = np.random.default_rng(2), np.concatenate([[0], np.arange(1, 198, 2)])
    y, clip_norm = labels_for(loss, y), 1e-8 if loss == "squared" else 1.0  # about the median length
    origin, scale = clip_norm * g.normal(size=weights.shape) / D, np.exp(g.normal(size=weights.shape))
    shape: Geometry = {"plain": PLAIN, "origin": Origin(origin), "scale": Scale(scale)}[geometry]
    shares = [
        clipped_sum(
            ArrayRows(x[k:], y[k:]).of_people(ends), weights, clip_norm, loss=loss, geometry=shape
        ).contributions
        for k, ends in ((0, bounds), (1, np.maximum(bounds - 1, 0)))
    ]
    assert np.array_equal(shares[0][1:], shares[1][1:])


@sums_by
def test_processes_turn_nobody_elses_gradient() -> None:
    n_local = 98
    n = 2 * n_local
    x, y, weights = hard_rows(n, 20)

    def total(first: int) -> Any:
        def member(group: Any) -> Any:
            bounds = np.maximum(np.arange(n + 1) - first, 0)
            own = bounds[group.rank * n_local : (group.rank + 1) * n_local + 1]
            shard = ArrayRows(x[first:][own[0] : own[-1]], y[first:][own[0] : own[-1]]).of_people(own - own[0])
            rows = shard.as_shard(group.rank * n_local, n)
            return clipped_sum(rows, weights, CLIP_NORM, loss="squared", all_reduce=group.all_reduce).value

        return next(iter(in_group(2, member)))

    assert 0.98 < moved(total(0), total(1)) <= 1


@pytest.mark.parametrize(("n", "n_classes"), [(2, 3), (2, 10), (4, 3)])
def test_newton_turns_nobody_elses_summand(n, n_classes) -> None:
    x, _, weights = hard_rows(n, n_classes)
    x, weights = x[:, ::16] * 2**30, weights[::16]  # long rows, so that scores are rounded by about 1
    weights *= 0.999 * LARGEST_WEIGHTS / np.linalg.norm(weights)
    y, sums = np.zeros(n, dtype=int), []
    for first in (0, 1):
        bounds = np.maximum(np.arange(n + 1) - first, 0)
        rows = ArrayRows(x[first:], y[first:]).of_people(bounds)
        sums.append(newton_sum(rows, weights, CLIP_NORM, 1.0).value)
    assert 0.9 < moved(*sums) <= 1


@pytest.mark.parametrize("n", [1, 7, 98, 300, BLOCK_ROWS])
@pytest.mark.parametrize("n_classes", [1, 3, 10, 100])
@pytest.mark.parametrize("by", ["kernel", "numpy", "torch"])
def test_a_place_that_is_emptied_changes_no_bit_of_other_scores(n, n_classes, by, monkeypatch) -> None:
    """What the proof assumes of BLAS, at the places of memory that a run may have."""
    x, _, weights = hard_rows(n, n_classes)
    narrow, without = np.ascontiguousarray(weights.T, np.float32), x.copy()
    without[n // 2] = 0
    if by == "torch":
        score = DeviceProducts(torch.from_numpy(narrow)).scores
        found = [score(torch.from_numpy(rows)).numpy() for rows in (x, without)]
    else:
        if by == "numpy":
            monkeypatch.setattr("linprobe.gradients.backend.LIBRARY", None)
        memory = np.empty(x.size + 1, np.float32)
        elsewhere = memory[1:].reshape(x.shape)  # not aligned to a vector
        elsewhere[:] = without
        found = [products(narrow).scores(rows) for rows in (x, without, elsewhere)]
    others = np.arange(n) != n // 2
    for scores in found[1:]:
        assert np.array_equal(found[0][others], scores[others])
