"""Weighted clipped sums: the gradient of a row is weighted, then clipped, on every path; neighbours stay within tau."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from linprobe.data.blocks import ArraySource, Preprocessing
from linprobe.data.row_weights import RowWeights, weights_in_people
from linprobe.data.rows import ArrayRows, Rows, StreamedRows, join, prepare_shard
from linprobe.gradients import backend as host
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import PLAIN, Geometry, Origin, loss_and_gradient, loss_gradient_and_norms, residuals
from linprobe.parallel.process_group import Group, in_group

pytestmark = pytest.mark.usefixtures("sums_by")
N, D, C, TAU = 90, 7, 5, 0.4
G = np.random.default_rng(3)
X = (G.normal(size=(N, D)) / 3).astype(np.float32)
Y = G.integers(0, C, N)
W = G.normal(size=(D, C))
WEIGHTS = RowWeights(np.array([1.0, 0.1, 0.5, 0.0, 1.0]), np.where(np.arange(N) % 9 == 0, 1e6, G.random(N)))
BOUNDS = np.array([0, 1, 4, 6, 30, 31, 47, 64, 90])  # two of these people have more rows than are paired
SAMPLED = G.random(N) < 0.4


def in_memory(keep: Any = slice(None)) -> ArrayRows:
    return ArrayRows(X[keep], Y[keep], weights=WEIGHTS.of(0, Y)[keep])


def streamed(x: Any = X, y: Any = Y, weights: RowWeights = WEIGHTS) -> StreamedRows:
    return StreamedRows(ArraySource(x, y).blocks, len(y), D, Preprocessing(), weights=weights)


def gradients(x: Any, loss: str = "softmax") -> Any:
    """Weighted gradients of all rows, (N, D, C)."""
    wide = x.astype(np.float64)
    r = residuals(wide, Y, W.astype(np.float32).astype(np.float64), loss)
    return np.einsum("nd,nc->ndc", wide, r * WEIGHTS.of(0, Y)[:, None])


def clipped(parts: Any, origin: Any = 0.0) -> Any:
    """The sum of `parts` (n, D, C), each clipped around the origin."""
    moved = parts - origin
    lengths = np.linalg.norm(moved, axis=(1, 2))
    return np.einsum("n,ndc->dc", np.minimum(1, TAU / np.maximum(lengths, 1e-300)), moved) + len(parts) * origin


ORIGIN = 0.05 * G.normal(size=(D, C))
GEOMETRIES: dict[str, tuple[Geometry, Any]] = {"plain": (PLAIN, 0.0), "origin": (Origin(ORIGIN), ORIGIN)}


@pytest.mark.parametrize("classes_of_kernel", [1, 48])
@pytest.mark.parametrize("loss", ["softmax", "squared"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_weights_multiply_gradients_before_the_clip(classes_of_kernel, loss, geometry, monkeypatch) -> None:
    monkeypatch.setattr(host, "FEW_CLASSES", classes_of_kernel)
    form, origin = GEOMETRIES[geometry]
    found = clipped_sum(in_memory(), W, TAU, geometry=form, loss=loss)
    parts = gradients(X, loss)
    if geometry == "plain":
        np.testing.assert_allclose(found.value, clipped(parts), atol=0.02)
    else:  # what each row adds besides the origin is clipped; factors multiply the origin
        moved = parts - origin
        factors = np.minimum(1, TAU / np.linalg.norm(moved, axis=(1, 2)))
        np.testing.assert_allclose(found.value, np.einsum("n,ndc->dc", factors, moved), atol=0.02)
    lengths = np.linalg.norm(parts - origin, axis=(1, 2))
    np.testing.assert_allclose(found.contributions, np.minimum(1, lengths / TAU), atol=0.02)


@pytest.mark.parametrize("rows", [in_memory, streamed])
@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("units", [True, False])
def test_samples_are_weighted_alike(rows, observed, units) -> None:
    whole: Rows = rows().of_people(BOUNDS) if units else rows()
    sampled = SAMPLED[: whole.n_rows]
    found = clipped_sum(whole.sample(sampled, 0.4, observed=observed), W, TAU).value
    # streamed rows are normalised
    x = X if rows is in_memory else X / np.linalg.norm(X, axis=1, keepdims=True)
    parts = gradients(x)
    if units:
        parts = np.stack([parts[first:stop].sum(axis=0) for first, stop in pairwise(BOUNDS)])
        spread = [  # people whose rows cancel are clipped more
            np.linalg.norm(gradients(x)[first:stop], axis=(1, 2)).sum() / 4 for first, stop in pairwise(BOUNDS)
        ]
        lengths = np.linalg.norm(parts, axis=(1, 2))
        parts *= (lengths / np.maximum(lengths, spread))[:, None, None]
        allowed = 0.2  # people with many rows have no second bound
    else:
        allowed = 0.02
    np.testing.assert_allclose(found, clipped(parts[sampled]), atol=allowed)


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize(
    ("bounds", "even"),
    [(None, False), (np.arange(0, 901, 3), False), (np.arange(0, 901, 3), True)],
    ids=["rows", "people", "even people"],
)
def test_processes_have_the_weights_of_their_rows(n_ranks, bounds, even, monkeypatch) -> None:
    monkeypatch.setattr("linprobe.data.rows.SHARD_ROWS", 64)
    source = ArraySource(np.tile(X, (10, 1)), np.tile(Y, 10))
    weights = RowWeights(WEIGHTS.by_class, np.random.default_rng(0).random(900))

    def member(group: Group) -> Any:
        rows = prepare_shard(source, bounds, Preprocessing(), "float32", group, weights, even=even)
        return clipped_sum(rows, W, TAU, all_reduce=group.all_reduce).value

    (alone,) = in_group(1, member)
    for found in in_group(n_ranks, member):
        np.testing.assert_allclose(found, alone, atol=1e-4)  # blocks begin at other rows in shards as small as these


def test_rows_of_a_person_of_one_class_have_small_weights() -> None:
    bounds = np.array([0, 16, 17, 21, 21, 25, 29])
    y = np.array([2] * 16 + [0] + [0, 0, 1, 1] + [0, 0, 0, 1] + [3, 3, 3, 3])
    sizes, power = np.diff(bounds), 0.75 * np.array([1, 1, 0, 0, 2 * (9 + 1) / 16 - 1, 1])
    expected = np.repeat(np.maximum(sizes, 1) ** -power, sizes)
    np.testing.assert_allclose(weights_in_people(bounds, y, None), expected)
    given = np.linspace(0, 3, len(y))
    np.testing.assert_allclose(weights_in_people(bounds, y, given), given * expected)
    for place, (first, stop) in enumerate(pairwise(bounds)):  # whatever the rows of the others are
        others = np.where((np.arange(len(y)) >= first) & (np.arange(len(y)) < stop), y, 4)
        found = weights_in_people(bounds, others, None)
        assert found is not None
        np.testing.assert_allclose(found[first:stop], expected[first:stop], err_msg=str(place))
    assert weights_in_people(np.arange(30), y, None) is None
    assert weights_in_people(bounds, np.eye(4, dtype=np.uint8)[y], None) is None


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alone", "beside weights"])
def test_streamed_rows_of_people_have_the_weights_of_rows_in_memory(observed, weights) -> None:
    source, sums = ArraySource(X, Y // 3), []
    for again in (False, True):
        rows = prepare_shard(source, BOUNDS, Preprocessing(), "float32", Group(), weights, even=True, streamed=again)
        sums += [clipped_sum(rows, W, 4.0).value]
        sums += [clipped_sum(rows.sample(SAMPLED[: rows.n_rows], 0.4, observed=observed), W, 4.0).value]
    np.testing.assert_array_equal(sums[0], sums[2])
    np.testing.assert_array_equal(sums[1], sums[3])
    plain = prepare_shard(source, BOUNDS, Preprocessing(), "float32", Group(), weights)
    assert np.abs(clipped_sum(plain, W, 4.0).value - sums[0]).max() > 0.01


@pytest.mark.parametrize(("units", "even"), [(False, False), (True, False), (True, True)])
def test_neighbours_differ_by_at_most_the_clip_norm_whatever_the_weights(units, even) -> None:
    whole = clipped_sum(in_memory().of_people(BOUNDS, even=even) if units else in_memory(), W, TAU)
    for place in range(len(BOUNDS) - 1 if units else 30):
        gone = slice(BOUNDS[place], BOUNDS[place + 1]) if units else slice(place, place + 1)
        keep = np.ones(N, dtype=bool)
        keep[gone] = False
        sizes = np.diff(BOUNDS)
        sizes[place if units else 0] = 0 if units else sizes[0]
        left: Rows = in_memory(keep)
        if units:
            left = left.of_people(np.concatenate([[0], np.cumsum(sizes)]), even=even)  # type: ignore[arg-type]
        moved = np.linalg.norm(whole.value - clipped_sum(left, W, TAU).value)
        assert moved <= TAU
        assert moved <= whole.contributions[place] * TAU + 1e-9


def test_a_device_weighs_as_the_host_does() -> None:
    torch = pytest.importorskip("torch")
    from linprobe.gradients import gpu

    backend = gpu.GpuBackend(torch.device("cpu"))
    for rows in (in_memory(), in_memory().of_people(BOUNDS), in_memory().of_people(BOUNDS, even=True)):
        placed = backend.place(rows)
        found = clipped_sum(placed, backend.put(W), TAU, backend=backend).value
        np.testing.assert_allclose(np.asarray(found), clipped_sum(rows, W, TAU).value, atol=0.06)


@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_weighted_loss_is_that_of_repeated_rows(loss) -> None:
    counts = G.integers(0, 4, N)
    once = ArrayRows(X, Y, weights=counts.astype(np.float64))
    often = ArrayRows(np.repeat(X, counts, axis=0), np.repeat(Y, counts))
    mine, theirs = (loss_and_gradient(rows, W, loss) for rows in (once, often))
    assert mine[0] == pytest.approx(theirs[0], rel=1e-5)
    np.testing.assert_allclose(mine[1], theirs[1], atol=1e-4)
    np.testing.assert_allclose(
        np.concatenate(loss_gradient_and_norms(once, W, loss)[2]),
        counts * np.concatenate(loss_gradient_and_norms(ArrayRows(X, Y), W, loss)[2]),
        rtol=1e-5,
    )


def test_joined_rows_keep_their_weights() -> None:
    joined = join(in_memory(), ArrayRows(X, Y))
    assert joined.weights is not None
    np.testing.assert_array_equal(joined.weights, np.append(WEIGHTS.of(0, Y), np.ones(N)))
    assert join(ArrayRows(X, Y)).weights is None
