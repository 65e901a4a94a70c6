"""The kernel's clipped sums over people, against float64, and what they may depend on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from linprobe.data import blocks
from linprobe.data.blocks import PAIRED_ROWS, STORAGE, Block, narrowed, normalise_rows, pairs_of, row_norms, widened
from linprobe.data.rows import ArrayRows
from linprobe.gradients import backend as host
from linprobe.gradients.backend import KernelProducts, products
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import residuals
from linprobe.gradients.rounding import SUM_ROWS, ExactSum
from tests.conftest import mostly_nightly

pytestmark = pytest.mark.skipif(host.LIBRARY is None, reason="the kernel is not built")
SIZES = (1, 0, 3, PAIRED_ROWS, PAIRED_ROWS + 1, 10, 0, 16, 12, 1, 2000, *[2] * 40, 16, 16, 1)
SHAPES = [(1, 1), (16, 2), (77, 10), (130, 48), (64, 49), (200, 102)]
MOST = 4.0
MANY = (PAIRED_ROWS + 1, 20, 50, 300)  # rows of people whose gradients are formed


def block_of(sizes: Any, d: int, c: int, seed: int = 0, precision: Any = "float32", weighted: bool = False) -> Block:
    """People with these numbers of rows."""
    g = np.random.default_rng(seed)
    n = int(np.sum(sizes))
    x = narrowed(normalise_rows(g.normal(size=(n, d)).astype(np.float32)), precision)
    weights = g.uniform(0, 3, n) if weighted else None
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Block(0, x, g.integers(0, c, n), row_norms(widened(x)), bounds=bounds, weights=weights)


def summed(taken: KernelProducts, block: Block, bound: float) -> tuple[Any, Any, Any]:
    """The sum without a grid, factors and lengths."""
    total = ExactSum(taken.zeros(), np.array(np.inf), 1)
    return total.total, *taken.add_units(total, block, bound, MOST)


def weights_of(d: int, c: int) -> Any:
    return 3 * np.random.default_rng(9).normal(size=(c, d)).astype(np.float32)


def expected(block: Block, weights: Any, bound: float) -> tuple[Any, Any, Any]:
    """The same from the gradients themselves."""
    n_units = block.n_units
    total, factors, lengths = np.zeros(weights.shape), np.zeros(n_units), np.zeros(n_units)
    for unit, (first, stop) in enumerate(pairwise(block.bounds.tolist())):
        if first == stop:
            continue
        x = widened(block.stored[first:stop]).astype(np.float64)
        r = residuals(x, block.y[first:stop], weights.T.astype(np.float64))
        if block.weights is not None:
            r *= block.weights[first:stop, None]
        gradient, spread = r.T @ x, (np.linalg.norm(x, axis=1) * np.linalg.norm(r, axis=1)).sum()
        spread *= stop - first <= PAIRED_ROWS  # rows of others may cancel
        lengths[unit] = np.linalg.norm(gradient)
        longest = max(lengths[unit], spread / MOST)
        factors[unit] = 1.0 if longest <= bound else bound / longest
        if block.sampled is None or block.sampled[unit]:
            total += factors[unit] * gradient
    return total, factors, lengths


def check(block: Block, weights: Any, bound: float) -> None:
    taken = products(weights)
    assert isinstance(taken, KernelProducts)
    wanted = expected(block, weights, bound)
    for _ in range(2):  # the second call must not see the first
        for found, want in zip(summed(taken, block, bound), wanted, strict=True):
            np.testing.assert_allclose(found, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("d", "c", "weighted"),
    mostly_nightly(
        [(*shape, weighted) for shape in SHAPES for weighted in (False, True)],
        lambda case: case[2] == SHAPES.index(case[:2]) % 2,
    ),
)
@pytest.mark.parametrize("precision", STORAGE)
def test_sums_over_people_match_float64(d: int, c: int, weighted: bool, precision: Any) -> None:
    block, weights = block_of(SIZES, d, c, precision=precision, weighted=weighted), weights_of(d, c)
    for bound in (0.3, np.inf):
        check(block, weights, bound)
        check(replace(block, sampled=np.arange(block.n_units) % 3 > 0), weights, bound)


@pytest.mark.parametrize("sizes", [(), (0, 0), (1,), (PAIRED_ROWS,), (PAIRED_ROWS + 1,), (64, 65), (9, 9, 9, 9)])
@pytest.mark.parametrize("c", [10, 60])
def test_few_people_nobody_and_empty_samples(sizes: Any, c: int) -> None:
    block, weights = block_of(sizes, 33, c), weights_of(33, c)
    check(block, weights, 0.3)
    nobody = replace(block, sampled=np.zeros(len(sizes), bool))
    check(nobody, weights, 0.3)
    assert not summed(products(weights), nobody, 0.3)[0].any()


@pytest.mark.parametrize(("d", "c"), SHAPES)
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("size", [7, *MANY])
def test_a_person_has_the_same_bits_at_every_place_and_in_every_company(
    d: int, c: int, precision: Any, size: int
) -> None:
    taken = products(weights_of(d, c))
    person = block_of((size,), d, c, 1, precision)
    alone = summed(taken, person, 0.3)
    for seed in range(6):
        g = np.random.default_rng(seed)
        before, after = (block_of(g.integers(0, 24, g.integers(0, 9)), d, c, seed + end, precision) for end in (2, 9))
        parts = (before, person, after)
        sizes = np.concatenate([np.diff(part.bounds) for part in parts])
        stored, y, norms = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("stored", "y", "norms")
        )
        joined = np.arange(len(sizes)) == before.n_units
        together = Block(0, stored, y, norms, joined, np.concatenate([[0], np.cumsum(sizes)]))
        total, factors, lengths = summed(taken, together, 0.3)
        assert np.array_equal(total, alone[0])
        assert (factors[joined], lengths[joined]) == (alone[1], alone[2])


@pytest.mark.parametrize(("d", "c"), SHAPES)
def test_people_outside_the_sample_change_no_bit_of_the_sum(d: int, c: int) -> None:
    taken, block = products(weights_of(d, c)), block_of(SIZES, d, c)
    joined = np.random.default_rng(3).random(block.n_units) < 0.6
    rows = np.repeat(joined, np.diff(block.bounds))
    sampled = replace(block, sampled=joined)
    others = replace(sampled, stored=np.where(rows[:, None], block.stored, np.float32(7)), y=block.y * rows)
    sizes = np.diff(block.bounds) * joined
    only = Block(0, block.stored[rows], block.y[rows], block.norms[rows], bounds=np.r_[0, np.cumsum(sizes)])
    want = summed(taken, only, 0.3)
    for one in (sampled, others):
        found = summed(taken, one, 0.3)
        assert np.array_equal(found[0], want[0])
        assert all(np.array_equal(here[joined], there[joined]) for here, there in zip(found[1:], want[1:], strict=True))


@pytest.mark.parametrize("size", [1, 3, PAIRED_ROWS])
@pytest.mark.parametrize("c", [2, 60])
def test_at_most_sum_rows_are_summed_in_float32(size: int, c: int) -> None:
    n = 6 * SUM_ROWS // size * size
    x, y = np.ones((n, 130), np.float32), np.zeros(n, np.int64)
    x[0] = 2.0**24
    block = Block(0, x, y, np.ones(n), bounds=np.arange(0, n + 1, size))
    total, *_ = summed(products(np.zeros((c, 130), np.float32)), block, np.inf)
    lost = (2.0**24 + n - 1) / c - total[1]
    assert np.abs(lost).max() <= SUM_ROWS


@pytest.mark.parametrize("size", MANY)
@pytest.mark.parametrize(("d", "c"), [(64, 10), (130, 60)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("precision", STORAGE)
def test_a_person_with_many_rows_takes_one_clipped_matrix_away(
    size: int, d: int, c: int, weighted: bool, precision: Any
) -> None:
    """On a grid, where sums are exact: the bits of all others stay."""
    taken, n, bound = products(weights_of(d, c)), 9, 0.3
    sizes = np.array([3, 40, 1, size, 17, 2, 0, 16, 5])
    block = block_of(sizes, d, c, precision=precision, weighted=weighted)
    block = replace(block, stored=block.stored.copy())
    sums = []
    for joined in (np.ones(n, bool), np.arange(n) != 3, np.arange(n) == 3):
        total = ExactSum(taken.zeros(), np.array(bound), n)
        taken.add_units(total, replace(block, sampled=joined), bound, MOST, np.array([n]))
        sums.append(total.total)
    whole, rest, alone = sums
    assert np.array_equal(whole - rest, alone)
    assert bound * (1 - 1e-9) < np.linalg.norm(alone) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("c", [2, 60])
@pytest.mark.parametrize("entry", [1e37, 3e38])
def test_a_gradient_that_leaves_float32_is_not_added(c: int, entry: float) -> None:
    taken, sizes = products(np.zeros((c, 8), np.float32)), (400, 3, 20)
    block = block_of(sizes, 8, c)
    x = block.stored.copy()
    x[:400] = entry
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    total, factors, lengths = summed(taken, replace(block, stored=x, y=block.y % 1, norms=norms), 0.3)
    assert np.isfinite(total).all()
    assert factors[0] == lengths[0] == 0
    assert (factors[1:] > 0).all()


def test_inner_products_of_the_kernel_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    for precision in STORAGE:
        block = block_of(SIZES, 77, 3, precision=precision)
        pairs = pairs_of(block.bounds)
        found = blocks.inner_products(block.stored, pairs)
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "LIBRARY", None)
            np.testing.assert_allclose(found, blocks.inner_products(block.stored, pairs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("c", [5, 60])
def test_what_would_leave_memory_is_refused(c: int) -> None:
    taken, block = products(weights_of(20, c)), block_of((3, 2, 1), 20, c)
    wrong: list[dict[str, Any]] = [
        {"bounds": np.array([0, 3, 5, 7])},
        {"bounds": np.array([1, 3, 5, 6])},
        {"bounds": np.array([0, 5, 3, 6])},
        {"y": block.y[:-1]},
        {"norms": block.norms[:-1]},
        {"weights": np.ones(5)},
        {"sampled": np.ones(2, bool)},
        {"stored": block.stored[:, :-1]},
        {"pairs": replace(blocks.paired(block), inner=np.zeros(3))},
    ]
    for change in wrong:
        with pytest.raises(ValueError, match="fit"):
            summed(taken, replace(block, **change), 0.3)
    for label in (-1, c):
        with pytest.raises(IndexError, match="allowed"):
            summed(taken, replace(block, y=np.full(6, label)), 0.3)


@pytest.mark.parametrize(("d", "c"), [(64, 10), (64, 60)])
@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_a_person_who_leaves_a_sample_takes_one_gradient_with_them(d: int, c: int, rate: float) -> None:
    """Rows outside a sample may hold anything, and the sum moves by the person's gradient."""
    g = np.random.default_rng(4)
    sizes = g.integers(1, 6, 3000)
    block = block_of(sizes, d, c)
    joined = g.random(len(sizes)) < rate
    joined[1500] = True
    x, y, bounds = block.stored.copy(), block.y, block.bounds
    sums = []
    for present in (True, False):
        joined[1500] = present
        rows = ArrayRows(x, y).of_people(bounds)
        batch = rows.sample(joined, rate, observed=False)
        sums.append(clipped_sum(batch, weights_of(d, c).T.astype(np.float64), 0.5, per_record=False).value)
        x[bounds[1500] : bounds[1501]] = 5  # outside the sample, rows may hold anything
    whole, without = sums
    alone = clipped_sum(
        ArrayRows(block.stored[bounds[1500] : bounds[1501]], y[bounds[1500] : bounds[1501]]).of_people(
            np.array([0, sizes[1500]])
        ),
        weights_of(d, c).T.astype(np.float64),
        0.5,
    ).value
    assert 0 < np.linalg.norm(whole - without) <= 0.5
    np.testing.assert_allclose(whole - without, alone, atol=1e-4)


def test_cells_end_float32_sums_at_public_places() -> None:
    """A coarse grid shows each float32 sum that ends."""
    c, d, sizes = 10, 16, np.full(300, 2)
    block, taken = block_of(sizes, d, c), products(weights_of(d, c))
    joined = np.ones(300, bool)
    joined[::7] = False
    for cells in ([300], [10, 11, 300], [64, 128, 192, 299, 300]):
        found, want = (ExactSum(taken.zeros(), np.array(0.3), 10**12) for _ in range(2))
        ends = np.array(cells)
        taken.add_units(found, replace(block, sampled=joined), 0.3, MOST, ends)
        for first, stop in pairwise([0, *cells]):
            here = (np.arange(300) >= first) & (np.arange(300) < stop)
            taken.add_units(want, replace(block, sampled=joined & here), 0.3, MOST, np.array([300]))
        assert np.array_equal(found.total, want.total)
