"""Sensitivity: the largest effect of one record on a clipped sum, in production arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.data.blocks import BLOCK_ROWS, STORAGE, narrowed, widened
from linprobe.data.rows import ArrayRows
from linprobe.gradients.backend import products
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import Scale, loss_and_gradient, loss_gradient_and_norms
from linprobe.gradients.rounding import FLOAT32_ROUNDING, LEAST_ROWS, SUM_ROWS, ExactSum, arithmetic
from linprobe.mechanisms.gaussian import clip_factors
from linprobe.methods._directions import top_left_subspace
from tests.conftest import mostly_nightly
from tests.methods.test_subspace import projected
from tests.small_blocks import SmallBlocks

pytestmark = pytest.mark.usefixtures("sums_by")


def random_rows(seed: int, n: int, d: int, c: int, scale: float = 1.0):
    g = np.random.default_rng(seed)
    x = (scale * g.normal(size=(n, d)) * np.exp(g.normal(size=(n, 1)))).astype(np.float32)
    y = g.integers(0, c, n)
    return x, y, g.normal(size=(d, c)) * 3


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 60),
    d=st.integers(1, 20),
    c=st.integers(2, 8),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    clip_norm=st.floats(1e-3, 10),
    block_rows=st.sampled_from([1, 7, 1024]),
)
def test_neighbours_differ_by_at_most_sensitivity(seed, n, d, c, scale, clip_norm, block_rows) -> None:
    x, y, weights = random_rows(seed, n, d, c, scale)
    removed = seed % n
    keep = np.arange(n) != removed
    whole = clipped_sum(SmallBlocks(x, y, block_rows), weights, clip_norm)
    without = clipped_sum(SmallBlocks(x[keep], y[keep], block_rows), weights, clip_norm)
    moved = np.linalg.norm(whole.value - without.value)
    assert moved <= whole.sensitivity == clip_norm
    # and by at most what the record is charged for
    assert moved <= whole.contributions[removed] * clip_norm


@pytest.mark.parametrize("seed", [0, 1])
def test_rounding_of_sums_stays_inside_the_margin_when_a_whole_block_rounds_anew(seed) -> None:
    # two rows in turn: removing the first shifts all the others of its block by one
    pair = np.random.default_rng(seed).normal(size=(2, 16)).astype(np.float32)
    pair /= np.linalg.norm(pair, axis=1, keepdims=True)
    n = BLOCK_ROWS
    x, y = np.tile(pair, (n // 2, 1)), np.zeros(n, dtype=int)
    weights = np.zeros((16, 2))
    whole = clipped_sum(ArrayRows(x, y), weights, 0.5)
    without = clipped_sum(ArrayRows(x[1:], y[1:]), weights, 0.5)
    assert np.linalg.norm(whole.value - without.value) <= 0.5


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize(
    ("d", "c", "rate"),
    mostly_nightly(
        [(512, 20, 0.9), (64, 20, 0.9), (512, 20, 0.15), (256, 10, 0.5)], lambda case: case[1:] != (20, 0.9)
    ),
)
@pytest.mark.parametrize("size", [1e2, 1e6])
def test_one_who_joins_a_sample_changes_nothing_of_the_others(d, c, rate, size, observed) -> None:
    # like rows with large scores, which a product rounds according to their place
    g = np.random.default_rng(0)
    direction = g.normal(size=d)
    x = (direction + 0.02 * g.normal(size=(4096, d))).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    weights = size * direction[:, None] / np.linalg.norm(direction) + 0.1 * g.normal(size=(d, c))
    weights += 1e-3 * size * g.normal(size=(d, 1))
    rows, joined = ArrayRows(x, np.zeros(len(x), dtype=int)), g.random(len(x)) < rate
    sums = []
    for joins in (True, False):
        joined[5] = joins
        sampled = rows.sample(joined.copy(), rate, observed=observed)
        sums.append(clipped_sum(sampled, weights, 0.5, per_record=observed).value)
    assert 0.99 * 0.5 < np.linalg.norm(sums[0] - sums[1]) <= 0.5


def test_an_uneven_scale_does_not_magnify_the_grid_of_exact_sums() -> None:
    g = np.random.default_rng(0)
    d, c = 512, 80
    scale = np.full((d, c), 1e-6)
    scale[0, 0] = 1.0
    x = g.normal(size=(1, d)).astype(np.float32)
    x /= np.linalg.norm(x)
    rows = ArrayRows(x, [0])
    rows.n_rows = 10**7  # elsewhere
    rows.__class__ = OneOfMany
    found = clipped_sum(rows, np.zeros((d, c)), 0.5, geometry=Scale(scale))
    assert 0.98 * 0.5 < np.linalg.norm(found.value) <= found.contributions[0] * 0.5


class OneOfMany(ArrayRows):
    """A row at the first of many places; the other places are empty."""

    n_local = 1

    def lazy_blocks(self):
        yield lambda: self._block(0, 1)


def hard_blocks():
    """Blocks of rows with the largest float32 errors: all terms round in one direction, grow, or nearly cancel."""
    g = np.random.default_rng(5)
    n, d = SUM_ROWS, 8
    first = np.full((n, d), 1 + 2.0**-12 - 2.0**-23)
    yield first, np.full((n, 2), 1 / 3)
    yield first * np.where(np.arange(n) < n // 2, 1.0, 2.0**-12)[:, None], np.full((n, 2), 0.7)
    yield first * np.where(np.arange(n) % 2, 1.0, -1.0)[:, None], g.uniform(0.5, 1, size=(n, 2))
    yield g.uniform(0.5, 1, size=(n, d)), g.uniform(0.5, 1, size=(n, 3))
    yield g.normal(size=(n, d)), g.normal(size=(n, 40))


@pytest.mark.parametrize("size", [1e3, 1e5, 1e7])
def test_residuals_of_large_weights_are_clipped_like_all_others(size: float) -> None:
    x, y, weights = random_rows(3, 200, 12, 4)
    clipped = clipped_sum(ArrayRows(x, y), size * weights, 0.5, loss="squared")
    lengths = np.minimum(1.0, size * np.linalg.norm(x @ weights, axis=1) * np.linalg.norm(x, axis=1) / 0.5)
    np.testing.assert_allclose(clipped.contributions, lengths, rtol=2e-3)
    assert 0 < np.linalg.norm(clipped.value) <= 0.5 * len(x)


def test_the_margin_covers_all_that_float32_sums_can_lose() -> None:
    unit = FLOAT32_ROUNDING
    worst = 0.0
    for x, r in hard_blocks():
        x, r = x.astype(np.float32), r.astype(np.float32)
        longest = (np.linalg.norm(x, axis=1) * np.linalg.norm(r, axis=1)).max()
        taken = products(np.zeros((r.shape[1], x.shape[1]), np.float32))
        exact = ExactSum(taken.zeros(), np.array(np.inf), len(x))
        taken.add(exact, r, x)
        lost = np.linalg.norm(exact.total - r.T.astype(np.float64) @ x.astype(np.float64)) / longest
        assert lost <= SUM_ROWS * (SUM_ROWS + 3) / 2 * unit
        worst = max(worst, lost)
    assert worst > 10 * unit  # check that the blocks have large errors
    for n_classes, n_rows in ((2, 10**3), (1000, 10**9), (1000, 10**10)):
        rounding = arithmetic(1.0, 1024 * n_classes, n_rows)
        # twice the loss of a sum, norms of residuals, four roundings of factors, and a grid step an entry
        step = 2.0 * n_rows * 2.0**-53 * (1024 * n_classes) ** 0.5
        assert rounding.margin >= (SUM_ROWS * (SUM_ROWS + 3) + 17 + 16) * unit + step
        assert rounding.dtype is np.float32
    assert arithmetic(1e3).dtype is np.float64


@pytest.mark.parametrize("precision", STORAGE)
@pytest.mark.parametrize("clip_norm", [1e-3, 0.3])
def test_an_emptied_place_moves_the_sum_by_at_most_the_clip_norm_in_every_precision(precision, clip_norm) -> None:
    g = np.random.default_rng(11)
    n, d, c, removed = BLOCK_ROWS + 300, 24, 5, 700
    same = np.tile(g.normal(size=(1, d)), (n, 1))
    for rows in (same, same * (1 + 1e-3 * g.normal(size=(n, 1))), g.normal(size=(n, d))):
        x = narrowed(np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32), precision)
        y, weights = g.integers(0, c, n), g.normal(size=(d, c))
        without = x.copy()
        without[removed] = 0
        whole = clipped_sum(ArrayRows(x, y), weights, clip_norm)
        moved = np.linalg.norm(whole.value - clipped_sum(ArrayRows(without, y), weights, clip_norm).value)
        assert 0.99 * clip_norm < moved <= whole.contributions[removed] * clip_norm <= clip_norm


def test_clip_factors_are_of_the_rounded_rows() -> None:
    row = np.full((1, 5), 0.3001, dtype=np.float32)
    for precision in ("bfloat16", "float16"):
        x = narrowed(row, precision)
        clipped = clipped_sum(ArrayRows(x, [0]), np.zeros((5, 2)), 1e6)
        exact = np.outer(widened(x)[0].astype(np.float64), [-0.5, 0.5])
        np.testing.assert_allclose(clipped.value, exact, rtol=1e-7)
        assert clipped.contributions[0] * 1e6 >= np.linalg.norm(exact)


def test_an_exact_sum_does_not_depend_on_the_order_of_blocks() -> None:
    g = np.random.default_rng(2)
    blocks = [g.normal(size=(3, 4)) * 10.0 ** g.integers(-9, 2) for _ in range(50)]
    sums = []
    for order in (range(50), reversed(range(50)), g.permutation(50)):
        total = ExactSum(np.zeros((3, 4)), np.array(1e3), 50_000)
        for place in order:
            total.add(blocks[place].copy())
        sums.append(total.total)
    assert np.array_equal(sums[0], sums[1])
    assert np.array_equal(sums[0], sums[2])
    np.testing.assert_allclose(sums[0], sum(blocks), atol=50 * 1e3 * 50_000 * 2.0**-52)


def test_a_block_is_rounded_to_the_grid_of_the_shortest_sum() -> None:
    """A part of more than a quarter of the bound would leave the numbers next to the shift."""
    assert 4 * BLOCK_ROWS <= LEAST_ROWS
    total = ExactSum(np.zeros(1000), np.array(1.0), 1)
    total.add(np.random.default_rng(0).uniform(-BLOCK_ROWS, BLOCK_ROWS, 1000))
    assert not (total.total % np.spacing(total.shift)).any()


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e7])
def test_a_record_that_leaves_its_place_empty_changes_no_other_block(scale) -> None:
    # with 100 classes, the rounding of scores depends on the position of a row; large weights amplify it
    g = np.random.default_rng(0)
    n, removed = 8 * BLOCK_ROWS, 5
    x = g.normal(size=(n, 64)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[removed] = 0
    rows, weights = ArrayRows(x, g.integers(0, 100, n)), scale * g.normal(size=(64, 100))
    others = np.arange(n) != removed
    whole = clipped_sum(rows, weights, 0.5)
    without = clipped_sum(rows.sample(others, 1.0, observed=True), weights, 0.5)
    assert np.linalg.norm(whole.value - without.value) <= whole.contributions[removed] * 0.5


def test_rounding_stays_inside_the_margin_where_every_coordinate_rounds_the_same_way() -> None:
    n = BLOCK_ROWS
    # rows of one value each, so that the error of one coordinate is that of all
    for seed in (1, 4, 60, 108, 134):
        g = np.random.default_rng(seed)
        first = 0.5 + g.random()
        second = first * (1 + 1e-3 * g.normal()) if seed % 2 else 0.5 + g.random()
        pair = np.stack([np.full(4, first), np.full(4, second)]).astype(np.float32) / 2
        x, y = np.tile(pair, (n // 2, 1)), np.zeros(n, dtype=int)
        clip_norm = float(np.linalg.norm(pair[0])) * 0.5**0.5
        whole = clipped_sum(ArrayRows(x, y), np.zeros((4, 2)), clip_norm)
        without = clipped_sum(ArrayRows(x[1:], y[1:]), np.zeros((4, 2)), clip_norm)
        assert np.linalg.norm(whole.value - without.value) <= clip_norm


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), d=st.integers(1, 15), c=st.integers(2, 6))
def test_closed_form_equals_per_example_gradients(seed, n, d, c) -> None:
    x, y, weights = random_rows(seed, n, d, c)
    clip_norm = 0.7
    total, norms = np.zeros((d, c)), []
    for row, label in zip(x.astype(np.float64), y, strict=True):
        scores = row @ weights
        p = np.exp(scores - scores.max())
        gradient = np.outer(row, p / p.sum() - np.eye(c)[label])
        norms.append(np.linalg.norm(gradient))
        total += gradient * min(1, clip_norm / max(norms[-1], 1e-300))
    rows = ArrayRows(x, y)
    scale = 1 + np.abs(x).max() * n
    np.testing.assert_allclose(clipped_sum(rows, weights, clip_norm).value, total, atol=2e-3 * clip_norm * n)
    (found,) = loss_gradient_and_norms(rows, weights)[2]
    np.testing.assert_allclose(found, norms, atol=2e-5 * scale)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 50))
def test_block_size_does_not_change_the_sum(seed, n) -> None:
    x, y, weights = random_rows(seed, n, 6, 4)
    one = clipped_sum(ArrayRows(x, y), weights, 1.0)
    many = clipped_sum(SmallBlocks(x, y, 3), weights, 1.0)
    np.testing.assert_allclose(one.value, many.value, atol=1e-5 * n)
    np.testing.assert_allclose(one.contributions, many.contributions, atol=1e-5)


def test_infinite_clip_gives_the_plain_gradient() -> None:
    x, y, weights = random_rows(3, 500, 9, 5)
    rows = ArrayRows(x, y)
    np.testing.assert_allclose(
        clipped_sum(rows, weights, np.inf).value, loss_and_gradient(rows, weights)[1], rtol=1e-4, atol=1e-3
    )


def test_gradient_is_the_derivative_of_the_loss() -> None:
    x, y, weights = random_rows(4, 50, 5, 3)
    rows = ArrayRows(x.astype(np.float32), y)
    _, gradient = loss_and_gradient(rows, weights)
    step = 1e-2
    for place in ((0, 0), (2, 1), (4, 2)):
        moved = np.zeros_like(weights)
        moved[place] = step
        slope = (loss_and_gradient(rows, weights + moved)[0] - loss_and_gradient(rows, weights - moved)[0]) / (2 * step)
        assert slope == pytest.approx(gradient[place], rel=2e-2, abs=2e-2)


def test_a_zero_gradient_is_left_alone() -> None:
    assert clip_factors(np.zeros(3), 1.0, 0.01).tolist() == [1.0, 1.0, 1.0]


@given(seed=st.integers(0, 10**6), dim=st.integers(1, 12))
def test_projected_contribution_is_the_length_inside_the_subspace(seed, dim) -> None:
    x, y, weights = random_rows(seed, 30, 12, 4)
    rows = ArrayRows(x, y)
    subspace = top_left_subspace(loss_and_gradient(rows, weights)[1], dim, max_rank=3)
    whole = clipped_sum(rows, weights, 0.5)
    if subspace is None:
        assert dim == 12
        return
    inside = clipped_sum(rows, weights, 0.5, subspace=subspace)
    np.testing.assert_array_equal(inside.value, whole.value)
    projector = projected(subspace, np.eye(12))
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-9)
    assert np.trace(projector) == pytest.approx(dim, abs=1e-6)
    lengths = np.linalg.norm(x @ projector, axis=1) / np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(inside.contributions, whole.contributions * lengths, atol=3e-3)
    assert (inside.contributions <= whole.contributions).all()


@pytest.mark.parametrize("clip_norm", [1e-9, 1e6])
@pytest.mark.parametrize("weight", [1e-20, 1.0, 1e6, 7.2e8, 9e8])
def test_residuals_of_any_size_contribute_at_most_the_clip_norm(clip_norm: float, weight: float) -> None:
    """Squared loss with weights up to the limit and rows up to the largest intercept: factors down to 1e-21."""
    g = np.random.default_rng(4)
    x = np.concatenate([g.normal(size=(40, 5)), np.full((40, 1), 1000.0)], axis=1).astype(np.float32)
    x[7:, :] /= 1000
    y, weights = g.integers(0, 3, 40), np.full((6, 3), weight / 5)
    for removed in (0, 3, 20):
        keep = np.arange(40) != removed
        whole = clipped_sum(ArrayRows(x, y), weights, clip_norm, loss="squared")
        without = clipped_sum(ArrayRows(x[keep], y[keep]), weights, clip_norm, loss="squared")
        assert np.linalg.norm(whole.value - without.value) <= whole.contributions[removed] * clip_norm <= clip_norm
