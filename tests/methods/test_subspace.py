"""The projection on public directions is exact, has the requested dimension, and never understates a length."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.data.blocks import Block, row_norms
from linprobe.gradients import backend as host
from linprobe.methods._directions import OrthonormalSubspace, top_left_subspace

D, C = 64, 10
BEYOND = (0, 1, 2, 32 - C, 55 - C, 60 - C, 63 - C)


def projected(subspace: OrthonormalSubspace, matrix: np.ndarray) -> np.ndarray:
    """U U^T matrix."""
    return subspace.embed(subspace.coordinates(matrix))


def _block(x: Any, start: int = 0) -> Block:
    return Block(start, x, np.zeros(len(x), dtype=np.int64), row_norms(x))


def _gradient(kind: str, n_features: int = D, n_classes: int = C) -> Any:
    g = np.random.default_rng(3)
    full = g.normal(size=(n_features, n_classes))
    full -= full.mean(axis=1, keepdims=True)
    few = np.zeros_like(full)
    if kind == "random":
        return full
    if kind == "zero":
        return few
    if kind == "first axes only":
        few[:6] = full[:6]
    elif kind == "last axes only":
        few[-6:] = full[-6:]
    elif kind == "one axis":
        few[-1] = full[-1]
    elif kind == "axes in opposite pairs":
        few[:8], few[-8:] = full[:8], -full[:8]
    elif kind == "nearly one axis":
        return 1e-6 * full + np.eye(n_features)[:, [-1]] * full[0]
    elif kind == "mostly last axes":
        return np.concatenate([1e-9 * full[:-6], full[-6:]])
    elif kind == "rank 3":
        return full[:, :3] @ g.normal(size=(3, n_classes))
    elif kind == "equal columns":
        return full[:, [0, 0, 1, 1, 2, 3, 4, 4, 0, 2]]
    elif kind == "falling":
        return np.linalg.qr(full[:, :-1])[0] @ np.diag(np.logspace(0, -4, n_classes - 1)) @ full[: n_classes - 1]
    elif kind == "constant in parts":
        return np.repeat(full[:8], n_features // 8, axis=0)
    return few


KINDS = (
    "random",
    "zero",
    "first axes only",
    "last axes only",
    "one axis",
    "axes in opposite pairs",
    "nearly one axis",
    "mostly last axes",
    "rank 3",
    "equal columns",
    "falling",
    "constant in parts",
)


def _rank(matrix: Any, max_rank: int) -> int:
    singular = np.linalg.svd(matrix, compute_uv=False)
    return min(max_rank, int((singular > singular.max() * len(matrix) * np.finfo(np.float32).eps).sum()))


def _subspace(matrix: Any, dim: int, max_rank: int = C - 1) -> OrthonormalSubspace:
    subspace = top_left_subspace(matrix, dim, max_rank)
    assert subspace is not None
    return subspace


@pytest.mark.parametrize("kind", KINDS)
def test_a_projector_of_exactly_the_dimension_asked_for_holds_the_whole_range(kind: str) -> None:
    gradient = _gradient(kind)
    rank = _rank(gradient, C - 1)
    for dim in {dim for beyond in BEYOND for dim in (rank + beyond, min(C + beyond, D - 1))}:
        projector = projected(_subspace(gradient, dim), np.eye(D))
        assert np.trace(projector) == pytest.approx(dim, abs=1e-8)
        np.testing.assert_allclose(projector, projector.T, atol=1e-10)
        np.testing.assert_allclose(projector @ projector, projector, atol=1e-10)
        left, singular, _ = np.linalg.svd(gradient)
        held = left[:, :rank] * singular[:rank]
        np.testing.assert_allclose(projector @ held, held, atol=1e-10 * max(1.0, singular[0]))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zero"])
def test_within_the_rank_it_is_the_top_singular_vectors(kind: str) -> None:
    gradient = _gradient(kind)
    left, singular, _ = np.linalg.svd(gradient)
    for dim in range(1, _rank(gradient, C - 1) + 1):
        if dim < C and singular[dim] > 0.999 * singular[dim - 1]:
            continue
        top = left[:, :dim]
        np.testing.assert_allclose(projected(_subspace(gradient, dim), np.eye(D)), top @ top.T, atol=1e-8)


def test_rank_is_told_by_the_rounding_of_float32_and_by_its_bound() -> None:
    g = np.random.default_rng(0)
    left, right = np.linalg.qr(g.normal(size=(D, 4)))[0], np.linalg.qr(g.normal(size=(4, 4)))[0]
    tolerance = D * np.finfo(np.float32).eps
    for last, rank in ((2.0, 4), (0.4, 3)):
        matrix = left @ np.diag([1.0, 0.5, 0.1, last * tolerance]) @ right
        projector = projected(_subspace(matrix, 30, 4), np.eye(D))
        np.testing.assert_allclose(projector @ left[:, :rank], left[:, :rank], atol=1e-9)
        assert np.linalg.norm(projector @ left[:, 3]) < 0.999 or rank == 4
    rounded = left @ np.diag([1.0, 0.5, 2 * tolerance, 2 * tolerance]) @ right
    projector = projected(_subspace(rounded, 30, 2), np.eye(D))
    np.testing.assert_allclose(projector @ left[:, :2], left[:, :2], atol=4 * tolerance)
    assert np.linalg.norm(projector @ left[:, 3]) < 0.999


@pytest.mark.parametrize("n_rows", [40, 64, 500])
@pytest.mark.parametrize("dim", [5, 40, 50, 63])
def test_public_rows_fewer_or_more_than_features_give_their_top_directions(n_rows: int, dim: int) -> None:
    rows = np.random.default_rng(n_rows).normal(size=(n_rows, D)) * np.logspace(0, -2, D)
    top = np.linalg.svd(rows.T)[0][:, : min(dim, n_rows)]
    projector = projected(_subspace(rows.T, dim, n_rows), np.eye(D))
    np.testing.assert_allclose(projector @ top, top, atol=1e-9)
    assert np.trace(projector) == pytest.approx(dim, abs=1e-8)


def test_there_is_nothing_to_project_on_all_features() -> None:
    gradient = _gradient("random")
    assert top_left_subspace(gradient, D, C - 1) is None
    assert top_left_subspace(gradient, D + 1, C - 1) is None
    assert top_left_subspace(gradient, D - 1, C - 1) is not None


def _unit(x: Any) -> Any:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)


def _rows(subspace: OrthonormalSubspace, n_features: int) -> Any:
    """Dense, sparse and constant rows, and rows inside, outside and almost outside the subspace."""
    g = np.random.default_rng(9)
    dense = g.normal(size=(40, n_features))
    constant = np.repeat(g.uniform(0.5, 1, size=(40, 8)), n_features // 8, axis=1)
    rows = [_unit(dense), _unit(np.maximum(dense - 1.3, 0)), _unit(constant), np.zeros((1, n_features))]
    for part in (dense, constant):
        inside = projected(subspace, part.T).T
        rows += [_unit(inside), *(_unit(part - (1 - share) * inside) for share in (0.0, 1e-3, 0.03, 0.1, 0.3))]
    return np.concatenate(rows).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_no_length_is_understated_and_hardly_any_overstated(kind: str) -> None:
    for dim, scale in product((3, 9, 10, 11, 32, 56, 63), (1.0, 40.0)):
        subspace = _subspace(_gradient(kind), dim)
        x = np.float32(scale) * _rows(subspace, D)
        norms = row_norms(x)
        exact = np.linalg.norm(projected(subspace, x.T.astype(np.float64)), axis=0)
        found = subspace.row_norms(_block(x))
        assert np.all(found <= norms)
        # never below, except for the rounding of full norms, which are upper bounds
        assert np.all(found >= exact - 1e-6 * norms)
        assert np.all(found[found < norms] >= exact[found < norms])
        assert np.all(found <= exact + 1.6e-4 * norms)
        long = exact > 0.5 * norms
        np.testing.assert_allclose(found[long], exact[long], rtol=2e-4)


@pytest.mark.parametrize("kind", ["random", "constant in parts"])
@pytest.mark.parametrize("dim", [99, 100, 500, 2000])
def test_long_rows_do_not_round_beyond_the_slack(kind: str, dim: int) -> None:
    subspace = _subspace(_gradient(kind, 2048, 100), dim, 99)
    x = _rows(subspace, 2048)
    norms = row_norms(x)
    exact = np.linalg.norm(projected(subspace, x.T.astype(np.float64)), axis=0)
    found = subspace.row_norms(_block(x))
    assert np.all((found >= exact) | (found == norms))
    assert np.all((found >= exact - 1e-6 * norms) & (found <= exact + 1.6e-4 * norms))


@pytest.mark.parametrize("on_axes", [0.0, 0.035, 1.0])
@pytest.mark.parametrize("outside", [0.0, 0.1])
def test_rows_whose_terms_all_round_one_way_are_not_understated(on_axes: float, outside: float) -> None:
    g = np.random.default_rng(0)
    n = 1024
    for first in np.linspace(0.72, 0.99, 40):
        # many equal terms after a large one
        direction = np.full((n, 1), np.sqrt((1 - first**2) / (n - 1)))
        direction[0] = first
        subspace = OrthonormalSubspace(direction, n)
        away = g.normal(size=(5, n))
        away -= away @ direction @ direction.T
        x = np.concatenate([on_axes * _unit(g.normal(size=(5, n))), direction.T + outside * _unit(away)], axis=1)
        x = x.astype(np.float32)
        exact = np.linalg.norm(projected(subspace, x.T.astype(np.float64)), axis=0)
        norms = row_norms(x)
        found = subspace.row_norms(_block(x))
        assert np.all((found >= exact) | (found == norms))
        assert np.all((found >= exact - 1e-6 * norms) & (found <= exact + 1.6e-4 * norms))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("n", "n_directions"), [(768, 1), (4096, 1), (4096, 60), (1 << 17, 1)])
def test_rows_each_of_whose_terms_is_lost_beside_the_first_are_not_understated(
    n: int, n_directions: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(host, "LIBRARY", None)
    direction = np.full((n, 1), np.sqrt(0.499 * 2.0**-23))  # squared, a little less than half of what one can gain
    direction[:2] = 1
    direction /= np.linalg.norm(direction)
    first = direction[0, 0] ** 2
    row = direction.T * (2.0 ** np.ceil(np.log2(first)) / first * 1.00001)
    row[0, -2:] += -0.02, 0.02  # partly outside, so that the full norm is not reached
    x = row.astype(np.float32)
    others = np.random.default_rng(0).normal(size=(n, n_directions - 1))
    directions = np.linalg.qr(np.concatenate([direction, others], axis=1))[0]
    exact, norms = np.linalg.norm(x.astype(np.float64) @ directions, axis=1), row_norms(x)
    found = OrthonormalSubspace(directions, 0).row_norms(_block(x))
    assert np.all((found >= exact) & (found <= exact + 1.6e-4 * max(1, n / 4096) * norms))


@pytest.mark.parametrize("scale", [1.0, 1e-17, 1e-20, 1e-30, 1e30])
def test_what_is_tiny_has_a_range_too(scale: float) -> None:
    for seed in range(50):
        matrix = np.zeros((8, 7))
        matrix[5:7] = scale * np.random.default_rng(seed).normal(size=(2, 7))
        projector = projected(_subspace(matrix, 6, 5), np.eye(8))
        assert np.trace(projector) == pytest.approx(6, abs=1e-8)
        np.testing.assert_allclose(projector @ projector, projector, atol=1e-10)
        np.testing.assert_allclose(projector @ matrix, matrix, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_energy_is_what_a_projection_leaves(kind: str) -> None:
    for dim in (3, 9, 32, 63):
        subspace, matrix = _subspace(_gradient(kind), dim), np.random.default_rng(2).normal(size=(D, 5))
        left = np.linalg.norm(projected(subspace, matrix)) ** 2 / np.linalg.norm(matrix) ** 2
        assert subspace.energy(matrix) == pytest.approx(left, abs=1e-12)
        assert subspace.energy(np.zeros((D, 5))) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_captures_of_its_own_matrix_is_told_without_a_projection(kind: str) -> None:
    for dim, scale in product((1, 3, 9, 10, 32, 63), (1.0, 1e-12)):
        matrix = scale * _gradient(kind)
        subspace = _subspace(matrix, dim)
        assert 0 <= subspace.captured <= 1
        assert subspace.captured == pytest.approx(subspace.energy(matrix), abs=1e-9)
        singular = np.linalg.svd(matrix, compute_uv=False)
        if dim < _rank(matrix, C - 1):
            assert subspace.captured == pytest.approx((singular[:dim] ** 2).sum() / (singular**2).sum(), abs=1e-9)


@pytest.mark.parametrize("dim", [20, 60, 99, 180])
def test_the_basis_is_canonical_and_spans_what_the_singular_vectors_span(dim: int) -> None:
    g = np.random.default_rng(dim)
    matrix = g.normal(size=(200, 100)) * np.logspace(0, -2, 100)
    matrix -= matrix.mean(axis=1, keepdims=True)
    subspace, n_axes = _subspace(matrix, dim, 99), max(0, dim - 99)
    basis = subspace.embed(np.eye(dim))
    top = np.linalg.svd(matrix)[0][:, : min(dim, 99)]
    np.testing.assert_allclose(basis @ (basis.T @ top), top, atol=1e-9)
    np.testing.assert_allclose(basis.T @ basis, np.eye(dim), atol=1e-12)
    corner = basis[n_axes:dim, n_axes:]
    assert np.array_equal(np.triu(corner, 1), np.zeros_like(corner))
    assert np.diagonal(corner).min() > 0


@given(seed=st.integers(0, 10**6), n_features=st.integers(2, 30), n_classes=st.integers(2, 12), data=st.data())
def test_any_shape_gives_a_projector_and_the_lengths_inside_it(
    seed: int, n_features: int, n_classes: int, data: Any
) -> None:
    g = np.random.default_rng(seed)
    gradient = g.normal(size=(n_features, n_classes)) * (g.random((n_features, 1)) < g.random())
    gradient -= gradient.mean(axis=1, keepdims=True)
    dim = data.draw(st.integers(1, n_features - 1))
    subspace = _subspace(gradient, dim, n_classes - 1)
    projector = projected(subspace, np.eye(n_features))
    assert np.trace(projector) == pytest.approx(dim, abs=1e-8)
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-10)
    x = g.normal(size=(20, n_features)).astype(np.float32)
    exact = np.linalg.norm(x.astype(np.float64) @ projector, axis=1)
    norms = row_norms(x)
    found = subspace.row_norms(_block(x))
    assert np.all((found >= exact - 1e-6 * norms) & (found <= exact + 1.6e-4 * norms))


@pytest.mark.parametrize("dim", [12, 56])
def test_what_is_kept_of_a_block_is_of_that_block_and_that_many_axes(dim: int) -> None:
    g = np.random.default_rng(7)
    x, squares = g.normal(size=(40, D)).astype(np.float32), {}
    for n in (dim, dim + 1, dim, dim):
        subspace = top_left_subspace(_gradient("random"), n, C - 1, squares)
        assert subspace is not None
        for start in (0, 20):
            block = _block(x[start : start + 20], start)
            alone = OrthonormalSubspace(subspace._directions, subspace._n_axes)
            assert np.array_equal(subspace.row_norms(block), alone.row_norms(block))
        assert sorted(squares) == [(n - C + 1, start) for start in (0, 20)]


@pytest.mark.parametrize("n_features", [64, 300])
@pytest.mark.parametrize("dim", [5, 140, 200])
def test_a_gradient_of_nothing_leaves_the_axes(n_features: int, dim: int) -> None:
    subspace = top_left_subspace(np.zeros((n_features, C)), min(dim, n_features - 1), C - 1)
    assert subspace is not None
    block = _block(np.random.default_rng(1).normal(size=(9, n_features)).astype(np.float32))
    exact = np.linalg.norm(block.x[:, : min(dim, n_features - 1)].astype(np.float64), axis=1)
    np.testing.assert_allclose(subspace.row_norms(block), exact, rtol=2e-3)


@pytest.mark.parametrize("kind", ["random", "inside", "equal in all classes"])
def test_coordinates_of_a_sum_are_off_by_few_units_of_its_length(kind: str) -> None:
    # the rounding of a sum over very many rows must stay below the margin: docs/proofs/gaussian.md, lemma 5
    g = np.random.default_rng(5)
    axes = np.linalg.qr(g.normal(size=(512, 9)))[0]
    sums = {"random": g.normal(size=(512, C)), "inside": axes @ g.normal(size=(9, C))}
    matrix = sums.get(kind, np.outer(axes[:, 0], np.ones(C)))
    subspace = OrthonormalSubspace(axes, 0)
    exact = subspace._directions.T.astype(np.longdouble) @ matrix.astype(np.longdouble)
    off = np.linalg.norm((subspace.coordinates(matrix) - exact).astype(np.float64))
    assert off <= 32 * 2.0**-53 * np.linalg.norm(matrix)
