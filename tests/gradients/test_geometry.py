"""Shifted and scaled gradients: closed forms match autograd, and one record changes a sum by at most the clip norm."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from linprobe.data.blocks import row_norms
from linprobe.data.rows import ArrayRows
from linprobe.errors import LinprobeError, ParameterError
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import PLAIN, Geometry, Origin, Scale, loss_and_gradient, mean_squared_gradient, residuals
from linprobe.gradients.rounding import arithmetic
from tests.small_blocks import SmallBlocks

N, D, C = 23, 9, 5
LOSSES = ("softmax", "squared")
KINDS = ("plain", "origin", "scale")


def problem(loss: str, seed: int = 0):
    """Rows, labels or targets, weights, and gradients of every row by autograd in float64, shape (N, D, C)."""
    g = np.random.default_rng(seed)
    x = (g.normal(size=(N, D)) / 3).astype(np.float32)
    y = g.integers(0, C, N) if loss == "softmax" else g.normal(size=(N, C)).astype(np.float32)
    weights = 2 * g.normal(size=(D, C))

    def one(w, row, target):
        scores = row @ w
        return cross_entropy(scores, target) if loss == "softmax" else ((scores - target) ** 2).sum() / 2

    narrow = torch.tensor(weights.astype(np.float32), dtype=torch.float64)
    targets = torch.tensor(y) if loss == "softmax" else torch.tensor(y, dtype=torch.float64)
    gradients = vmap(grad(one), in_dims=(None, 0, 0))(narrow, torch.tensor(x, dtype=torch.float64), targets)
    return x, y, weights, gradients.numpy()


def geometry_of(kind: str, seed: int = 0) -> tuple[Geometry, object]:
    """A geometry, and the map of gradients that it implements."""
    g = np.random.default_rng(seed + 100)
    if kind == "origin":
        origin = g.normal(size=(D, C)).astype(np.float32).astype(np.float64) / 4
        return Origin(origin), lambda gradients: gradients - origin
    if kind == "scale":
        scale = np.exp(g.normal(size=(D, C)))
        return Scale(scale), lambda gradients: gradients / scale
    return PLAIN, lambda gradients: gradients


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_norms_are_those_of_per_example_gradients(kind, loss) -> None:
    x, y, weights, gradients = problem(loss)
    geometry, transform = geometry_of(kind)
    (block,) = ArrayRows(x, y).blocks()
    r = residuals(x, block.y, weights.astype(np.float32), loss)
    found = geometry.norms(block, r, row_norms(r))
    expected = np.linalg.norm(transform(gradients), axis=(1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (found >= expected * (1 - 1e-5)).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip_norm", [0.05, 0.7, 100.0])
def test_clipped_sums_are_sums_of_clipped_per_example_gradients(kind, loss, clip_norm) -> None:
    x, y, weights, gradients = problem(loss)
    geometry, transform = geometry_of(kind)
    moved = transform(gradients)
    lengths = np.linalg.norm(moved, axis=(1, 2))
    expected = (moved * np.minimum(1, clip_norm / lengths)[:, None, None]).sum(axis=0)
    for block_rows in (4, 1024):
        found = clipped_sum(SmallBlocks(x, y, block_rows), weights, clip_norm, geometry=geometry, loss=loss)
        margin = arithmetic(geometry.amplification(clip_norm)).margin
        short = margin * clip_norm * (lengths > clip_norm * (1 - margin)).sum()
        assert np.linalg.norm(found.value - expected) <= 1.01 * short + 1e-4
        np.testing.assert_allclose(
            found.contributions, np.minimum(1, lengths / clip_norm), atol=1.01 * margin + 1e-4 / clip_norm
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_second_moment_is_the_mean_square_of_per_example_gradients(loss) -> None:
    x, y, weights, gradients = problem(loss)
    expected = (gradients**2).mean(axis=0)
    np.testing.assert_allclose(
        mean_squared_gradient(SmallBlocks(x, y, 4), weights, loss), expected, rtol=1e-4, atol=1e-6
    )


def test_second_moment_is_finite_until_weights_diverge() -> None:
    x, y, weights, _ = problem("squared")
    rows = SmallBlocks(x, y, 4)
    large = 1e7 * weights
    residuals_there = x @ large.astype(np.float32)  # so large that the targets do not matter
    expected = np.square(x.astype(np.float64)).T @ np.square(residuals_there.astype(np.float64)) / len(x)
    np.testing.assert_allclose(mean_squared_gradient(rows, large, "squared"), expected, rtol=1e-4)
    for bad in (1e10, np.nan):
        with pytest.raises(LinprobeError, match="training diverged"):
            mean_squared_gradient(rows, np.full(weights.shape, bad), "squared")


def moved_by(geometry, x, y, weights, clip_norm, removed: int, loss: str = "softmax", block_rows: int = 1024):
    """Change of the clipped sum when one place becomes empty, and the contribution charged to the record."""
    everybody = np.ones(len(x), dtype=bool)
    others = np.arange(len(x)) != removed
    whole, without = (
        clipped_sum(
            SmallBlocks(x, y, block_rows).sample(joined, 0.5, observed=True),
            weights,
            clip_norm,
            geometry=geometry,
            loss=loss,
        )
        for joined in (everybody, others)
    )
    assert whole.sensitivity == clip_norm
    return np.linalg.norm(whole.value - without.value), whole.contributions[removed] * clip_norm


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 40),
    kind=st.sampled_from(["far", "near", "scale"]),
    loss=st.sampled_from(LOSSES),
    clip_norm=st.sampled_from([1e-4, 1e-3, 1e-2, 0.3, 5.0]),
    block_rows=st.sampled_from([1, 7, 1024]),
)
def test_neighbours_differ_by_at_most_sensitivity_in_every_geometry(seed, n, kind, loss, clip_norm, block_rows) -> None:
    g = np.random.default_rng(seed)
    d, c = int(g.integers(1, 40)), int(g.integers(2, 40))
    # rows nearly alike have gradients nearly alike, and around their own mean almost everything cancels
    spread = 10.0 ** g.uniform(-6, 0)
    x = (g.normal(size=d) + spread * g.normal(size=(n, d))).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.zeros(n, dtype=int) if loss == "softmax" else np.ones((n, c), dtype=np.float32)
    weights = g.normal(size=(d, c))
    if kind == "scale":
        geometry: Geometry = Scale(10.0 ** g.uniform(-2, 2, size=(d, c)))
    else:
        origin = loss_and_gradient(ArrayRows(x, y), weights, loss)[1] / n
        geometry = Origin(origin if kind == "near" else 30 * g.normal(size=(d, c)) / np.sqrt(d * c))
    moved, charged = moved_by(geometry, x, y, weights, clip_norm, seed % n, loss, block_rows)
    assert moved <= clip_norm
    assert moved <= charged


@pytest.mark.parametrize(("width", "n_classes"), [(16, 1000), (900, 10), (2048, 20)])
def test_rounding_of_an_inner_product_that_cancels_cannot_hide_a_gradient(width, n_classes) -> None:
    # a constant row makes every partial sum round in the same direction. The computed distance of a row near the origin
    # is then too small, by more than the square root of the number of terms suggests
    worst = 0.0
    for seed in range(50):
        g = np.random.default_rng(seed)
        row = np.full(width, np.float32(0.5 + g.random()) / np.float32(width) ** np.float32(0.5), dtype=np.float32)
        target = np.full(n_classes, -np.float32(0.5 + g.random()), dtype=np.float32)
        x, y = np.stack([row, -row]), np.stack([target, target])
        clip_norm = 3e-5 * np.linalg.norm(row) * np.linalg.norm(target)
        own = np.outer(row.astype(np.float64), -target.astype(np.float64))
        origin = Origin(own * (1 - 10 ** g.uniform(-3, -2.2)))
        worst = max(worst, moved_by(origin, x, y, np.zeros(own.shape), clip_norm, 0, "squared", 1)[0] / clip_norm)
    assert 0.1 < worst <= 1


@pytest.mark.parametrize(
    ("n", "clip_norm"),
    [(1024, 0.5), (1024, 0.05), (1024, 1e-2), (1024, 1e-3), (1024, 1e-4), (50_000, 1e-3)],
)
@pytest.mark.parametrize("seed", range(3))
def test_rounding_of_shifted_sums_stays_inside_the_margin_when_its_block_rounds_anew(n, clip_norm, seed) -> None:
    # two rows in turn: without the first, all the others of its block are summed one place earlier. Their gradients
    # are up to thousands of clip norms long before the origin, as long and two clip norms away, is taken from them.
    g = np.random.default_rng(seed)
    pair = np.full((2, 16), 0.25) * (1 + clip_norm * g.normal(size=(2, 1 if seed else 16)))
    pair = (pair / np.linalg.norm(pair, axis=1).max()).astype(np.float32)
    x, y = np.tile(pair, (n // 2, 1)), np.zeros(n, dtype=int)
    weights = np.zeros((16, 2))
    own = loss_and_gradient(ArrayRows(pair, [0, 0]), weights)[1] / 2
    origin = own * (1 + 2 * clip_norm / np.linalg.norm(own))
    moved, charged = moved_by(Origin(origin), x, y, weights, clip_norm, 0)
    assert moved <= charged <= clip_norm


@pytest.mark.parametrize("n", [1024, 50_000])
@pytest.mark.parametrize("spread", [3.0, 1e5])
def test_rounding_of_scaled_sums_stays_inside_the_margin_when_its_block_rounds_anew(n, spread) -> None:
    for seed in range(2):
        g = np.random.default_rng(seed)
        pair = g.normal(size=(2, 16)).astype(np.float32)
        scale = np.exp(g.uniform(0, np.log(spread), size=(16, 2)))
        scale[0], scale[1] = 1.0, spread
        pair[0, 0] = 0.01
        moved, charged = moved_by(
            Scale(scale), np.tile(pair, (n // 2, 1)), np.zeros(n, dtype=int), np.zeros((16, 2)), 0.5, 0
        )
        assert moved <= charged <= 0.5


def test_residuals_of_large_weights_are_clipped_in_a_scale() -> None:
    x, y, weights, _ = problem("squared")
    clipped = clipped_sum(ArrayRows(x, y), 1e7 * weights, 0.5, loss="squared", geometry=Scale(np.ones(weights.shape)))
    np.testing.assert_allclose(clipped.contributions, 1, rtol=1e-6)
    assert 0 < np.linalg.norm(clipped.value) <= 0.5 * len(x)


def test_sums_are_taken_in_double_precision_where_single_would_cost_too_much() -> None:
    assert arithmetic().dtype is np.float32
    assert 2**-9 < arithmetic().margin < 2**-9 * 1.02
    assert arithmetic(50.0).dtype is np.float32
    assert arithmetic(100.0).dtype is np.float64


def test_no_sum_in_double_precision_is_rounded_to_single() -> None:
    x = np.random.default_rng(0).normal(size=(1, D)).astype(np.float32)
    rows = ArrayRows(np.tile(x, (4096, 1)), np.zeros(4096, dtype=int))
    how = {"clip_norm": 0.01, "geometry": Origin(np.full((D, C), 1 / np.sqrt(D * C)))}  # of 100 clip norms
    some, every = (
        clipped_sum(rows.emptied(np.arange(4096) < n), np.zeros((D, C)), **how).value / n for n in (1000, 4096)
    )
    np.testing.assert_allclose(every, some, rtol=1e-10)


def test_an_origin_too_long_for_any_precision_is_refused() -> None:
    with pytest.raises(ParameterError, match="raise --clip-norm"):
        arithmetic(1e6)
    x, y, weights, _ = problem("softmax")
    with pytest.raises(ParameterError, match="times the clip norm"):
        clipped_sum(ArrayRows(x, y), weights, 1e-6, geometry=Origin(np.ones((D, C))))


def test_a_scale_too_uneven_for_single_precision_is_refused() -> None:
    for scale in ([1.0, 1e-7], [1.0, 0.0], [0.0, 0.0], [np.nan, 1.0]):
        with pytest.raises(ParameterError, match="--scale-floor"):
            Scale(np.array([scale]))
