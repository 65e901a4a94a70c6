"""Rows with several labels: the loss, its clipped sums on every path, and neighbours within the clip norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from linprobe.data.blocks import ArraySource, Preprocessing
from linprobe.data.row_weights import RowWeights
from linprobe.data.rows import ArrayRows, Rows, StreamedRows, prepare
from linprobe.gradients import backend as host
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import loss_gradient_and_norms, residuals_of
from linprobe.parallel.process_group import Group, in_group

pytestmark = pytest.mark.usefixtures("sums_by")
N, D, C, TAU = 90, 7, 5, 0.4
G = np.random.default_rng(4)
X = (G.normal(size=(N, D)) / 2).astype(np.float32)
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = (G.random((N, C)) < 0.4).astype(np.uint8)
W = 2 * G.normal(size=(D, C))
BOUNDS = np.array([0, 1, 4, 6, 30, 31, 47, 64, 90])  # two of these people have more rows than are paired
SAMPLED = G.random(N) < 0.4


def in_memory(keep: Any = slice(None)) -> ArrayRows:
    return ArrayRows(X[keep], Y[keep])


def streamed(keep: Any = slice(None)) -> StreamedRows:
    return StreamedRows(ArraySource(X[keep], Y[keep]).blocks, len(Y[keep]), D, Preprocessing())  # type: ignore[arg-type]


def with_empty(rows: Any, place: int) -> Rows:
    """The rows with an empty place: a row of zeros, whose gradient is zero whatever its labels are."""
    x, y = X.copy(), Y.copy()
    x[place], y[place] = 0, 0
    if rows is in_memory:
        return ArrayRows(x, y)
    return StreamedRows(ArraySource(x, y).blocks, N, D, Preprocessing())  # type: ignore[arg-type]


def gradients() -> Any:
    """Gradients of all rows, (N, D, C)."""
    narrow = W.astype(np.float32).astype(np.float64)
    return np.einsum("nd,nc->ndc", X.astype(np.float64), expit(X @ narrow) - Y)


def clipped(parts: Any) -> Any:
    lengths = np.linalg.norm(parts, axis=(1, 2))
    return np.einsum("n,ndc->dc", np.minimum(1, TAU / lengths), parts)


def test_residuals_are_the_derivative_of_the_loss() -> None:
    scores = G.normal(size=(6, C)) * [[1], [1], [30], [30], [500], [0]]
    y, step = Y[:6], 1e-6
    found, value = residuals_of(scores.copy(), y, "sigmoid", with_loss=True)
    np.testing.assert_allclose(found, expit(scores) - y, atol=1e-15)
    exact = np.logaddexp(0, scores) - y * scores
    assert value == pytest.approx(exact.sum(), rel=1e-12)
    for label in range(C):
        moved = [scores.copy() for _ in range(2)]
        moved[0][:, label] += step
        moved[1][:, label] -= step
        up, down = (residuals_of(one[:4], y[:4], "sigmoid", with_loss=True)[1] for one in moved)
        assert (up - down) / (2 * step) == pytest.approx(found[:4, label].sum(), abs=1e-4)
    weights = G.random(6)
    weighted, weighted_value = residuals_of(scores.copy(), y, "sigmoid", with_loss=True, weights=weights)
    np.testing.assert_allclose(weighted, weights[:, None] * found)
    assert weighted_value == pytest.approx(float(weights @ exact.sum(axis=1)), rel=1e-12)


@pytest.mark.parametrize("classes_of_kernel", [1, 48])
@pytest.mark.parametrize("rows", [in_memory, streamed])
def test_the_sum_is_that_of_clipped_gradients(rows, classes_of_kernel, monkeypatch) -> None:
    monkeypatch.setattr(host, "FEW_CLASSES", classes_of_kernel)
    found, parts = clipped_sum(rows(), W, TAU, loss="sigmoid"), gradients()
    np.testing.assert_allclose(found.value, clipped(parts), atol=0.02)
    lengths = np.linalg.norm(parts, axis=(1, 2))
    assert (lengths > TAU).any()
    np.testing.assert_allclose(found.contributions, np.minimum(1, lengths / TAU), atol=0.01)
    wide = clipped_sum(rows(), W, 1e6, loss="sigmoid").value
    np.testing.assert_allclose(loss_gradient_and_norms(rows(), W, "sigmoid")[1], wide, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [in_memory, streamed])
@pytest.mark.parametrize("observed", [None, True, False], ids=["all rows", "observed", "unobserved"])
def test_neighbours_differ_by_at_most_the_clip_norm(rows, observed) -> None:
    def summed(given: Rows) -> Any:
        sample = given if observed is None else given.sample(SAMPLED, 0.4, observed=observed)
        return clipped_sum(sample, W, TAU, loss="sigmoid")

    whole = summed(rows())
    for place in range(0, N, 3):
        moved = np.linalg.norm(whole.value - summed(with_empty(rows, place)).value)
        taken = observed is None or SAMPLED[place]
        assert moved <= TAU
        if not taken:
            assert moved == 0
        elif len(whole.contributions):
            assert moved <= whole.contributions[place] * TAU + 1e-9


def test_people_who_leave_move_the_sum_by_at_most_the_clip_norm() -> None:
    weights = RowWeights(np.ones(C), np.where(np.arange(N) % 9 == 0, 1e6, 1.0))

    def summed(keep: Any, sizes: Any) -> Any:
        rows = ArrayRows(X[keep], Y[keep], weights=weights.of(0, Y)[keep])
        return clipped_sum(rows.of_people(np.concatenate([[0], np.cumsum(sizes)])), W, TAU, loss="sigmoid").value

    whole = summed(slice(None), np.diff(BOUNDS))
    for person in range(len(BOUNDS) - 1):
        keep, sizes = np.ones(N, dtype=bool), np.diff(BOUNDS)
        keep[BOUNDS[person] : BOUNDS[person + 1]], sizes[person] = False, 0
        assert np.linalg.norm(whole - summed(keep, sizes)) <= TAU


def test_processes_and_devices_find_the_same_sum(monkeypatch) -> None:
    monkeypatch.setattr("linprobe.data.rows.SHARD_ROWS", 64)
    from linprobe.data.rows import prepare_shard

    source = ArraySource(np.tile(X, (10, 1)), np.tile(Y, (10, 1)))  # type: ignore[arg-type]

    def member(group: Group) -> Any:
        rows = prepare_shard(source, None, Preprocessing(), "float32", group)
        return clipped_sum(rows, W, TAU, loss="sigmoid", all_reduce=group.all_reduce).value

    alone = in_group(1, member)[0]
    for found in in_group(2, member):
        np.testing.assert_allclose(found, alone, atol=1e-4)
    torch = pytest.importorskip("torch")
    from linprobe.gradients import gpu

    backend = gpu.GpuBackend(torch.device("cpu"))
    placed = backend.place(prepare(source, Preprocessing()))
    on_device = clipped_sum(placed, backend.put(W), TAU, loss="sigmoid", backend=backend).value
    np.testing.assert_allclose(np.asarray(on_device), alone, atol=0.06)
