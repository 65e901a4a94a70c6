"""The products of BLAS and of the kernel, against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from linprobe import native
from linprobe.data import blocks
from linprobe.data.blocks import CACHE_LINE, STORAGE, Block, StoredRows, Translation, aligned_empty, narrowed, widened
from linprobe.gradients import backend as host
from linprobe.gradients.backend import (
    FEW_CLASSES,
    FusedProducts,
    KernelProducts,
    Part,
    Products,
    products,
)
from linprobe.gradients.rounding import SUM_ROWS, ExactSum, Sample
from tests.conftest import mostly_nightly
from tests.gradients import test_kernel_people
from tests.narrow_kernel import narrow_kernel, needs_compiler

RNG = np.random.default_rng(5)
ROUNDING = 2.0**-24
WAYS = [
    "blas",
    pytest.param("native", marks=pytest.mark.skipif(host.LIBRARY is None, reason="the kernel is not built")),
]
ROWS = [0, 1, 5, 63, 64, 65, 127, 128, 129, 1000, 1024]
CLASSES = [1, 2, 3, 4, 5, 6, 7, 10, 13, 16, 17, 33, 64, 100, 203]
FEATURES = [1, 12, 13, 64, 255, 1024, 1025, 2048]


needs_kernel = pytest.mark.skipif(host.LIBRARY is None, reason="the kernel is not built")


@pytest.fixture
def room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the largest number of classes it has room for."""
    monkeypatch.setattr(host, "FEW_CLASSES", 64)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, room_for_all: None) -> str:
    """The implementation under test; skips shapes with more classes than the kernel supports."""
    if request.param == "blas":
        monkeypatch.setattr(host, "LIBRARY", None)
    return str(request.param)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, dtype=np.float32)


def unrounded(taken: Products) -> ExactSum:
    """A sum without a grid."""
    return ExactSum(taken.zeros(), np.array(np.inf), 1)


def summed(taken: Products, r: Any, x: Any, sample: Sample | None = None) -> Any:
    """The sum for these rows."""
    total = unrounded(taken)
    taken.add(total, r, x, sample)
    return total.total


class Clipped(NamedTuple):
    """The sum of clipped gradients, and what else was computed."""

    total: Any
    r_norms: Any
    factors: Any
    scores: list[Any]


def block_of(x: Any, y: Any, lengths: Any) -> Block:
    rows = x if isinstance(x, StoredRows) else StoredRows(x)
    return Block(0, rows.x, y, lengths, translation=rows.translation)


def clipped(taken: Products, x: Any, y: Any, lengths: Any, *given: Any, **how: Any) -> Clipped:
    total = unrounded(taken)
    assert isinstance(taken, KernelProducts)
    block = taken.clip_block(total, block_of(x, y, lengths), *given, **how)
    return Clipped(total.total, block.r_norms, block.factors, block.scores)


def clipped_sample(taken: Products, x: Any, y: Any, lengths: Any, *given: Any) -> Any:
    """The sum of the clipped gradients of a sample whose other rows are not observed."""
    total = unrounded(taken)
    assert isinstance(taken, KernelProducts)
    taken.add_chosen(total, taken.chosen(block_of(x, y, lengths), *given))
    return total.total


def check(x: Any, weights: Any, r: Any) -> None:
    """Each entry is within the rounding bound of a sum of its terms in any order: one rounding per term."""
    taken = products(weights)
    scores, wide = taken.scores(x), weights.astype(np.float64)
    assert scores.dtype == np.float32
    assert scores.shape == (len(x), len(weights))
    assert (np.abs(scores - x @ wide.T) <= (x.shape[1] + 2) * ROUNDING * (np.abs(x) @ np.abs(wide).T)).all()
    for _ in range(2):  # the second call must not see the first
        total = summed(taken, r, x)
        assert total.dtype == np.float64
        assert total.shape == weights.shape
        wide_r = r.astype(np.float64)
        bound = (SUM_ROWS + 2) * ROUNDING * (np.abs(wide_r).T @ np.abs(x))
        assert (np.abs(total - wide_r.T @ x) <= bound).all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n_classes", CLASSES)
def test_products_match_float64_for_every_number_of_rows(n_classes: int) -> None:
    for n_rows in ROWS:
        check(normal(n_rows, 77), normal(n_classes, 77), normal(n_rows, n_classes))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n_features", FEATURES)
def test_products_match_float64_for_every_width(n_features: int) -> None:
    for n_classes in CLASSES:
        check(normal(131, n_features), normal(n_classes, n_features), normal(131, n_classes))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("offset", range(16))
def test_rows_may_begin_anywhere_in_memory(offset: int) -> None:
    x = normal(40 * 300 + 16)[offset : offset + 40 * 300].reshape(40, 300)
    check(x, normal(10, 300), normal(40, 10))


@pytest.mark.usefixtures("way")
def test_factors_and_rows_need_not_lie_together() -> None:
    x, r = normal(400, 150), normal(400, 20)
    weights = normal(10, 150)
    check(x[100:300], weights, r[100:300, 5:15])
    check(x[::2], weights, r[::2, ::2])
    check(x[::-1], weights, r[::-1, :10])
    check(np.asfortranarray(x), weights, np.asfortranarray(r[:, :10]))
    check(x, np.asfortranarray(weights), np.broadcast_to(r[:1, :10], (400, 10)))
    check(x.astype(np.float64), weights, r[:, :10].astype(np.float64))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n_classes", [10, 150])
def test_a_sum_of_a_sample_is_one_of_each_of_its_runs(n_classes: int) -> None:
    x, r = normal(900, 77), normal(900, n_classes)
    taken, expected = products(normal(n_classes, 77)), np.zeros((n_classes, 77))
    sample = Sample.of(RNG.random(900) < 0.4, 0.4)
    assert len(sample.ends) == 4
    for run in sample.runs():
        places = sample.places[run]
        expected += summed(taken, r[places], x[places])
    assert np.array_equal(summed(taken, r, x, sample), expected)
    nobody = Sample.of(np.zeros(900, bool), 0.4)
    assert not summed(taken, r, x, nobody).any()


TRANSLATION = Translation(normal(77), 0.5)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("precision", STORAGE)
@pytest.mark.parametrize("translation", [None, TRANSLATION], ids=["as they are", "translated"])
@pytest.mark.parametrize("n_classes", [3, 10, 70])
def test_a_sample_is_clipped_where_it_lies_as_if_it_were_copied(
    n_classes: int, translation: Translation | None, precision: Any
) -> None:
    """Its runs are summed by themselves, with rows, factors and sums of the same bits."""
    x, y = narrowed(normal(700, 77), precision), RNG.integers(0, n_classes, 700)
    stored = StoredRows(x, translation=translation)
    wide, sample = stored.wide(), Sample.of(RNG.random(700) < 0.3, 0.3)
    assert np.array_equal(replace(stored, places=sample.places).wide(), wide[sample.places])
    lengths, taken = np.linalg.norm(wide.astype(np.float64), axis=1), products(normal(n_classes, wide.shape[1]))
    found = clipped_sample(taken, stored, y, lengths, 0.3, sample)
    x[~np.isin(np.arange(700), sample.places)] = 0
    assert np.array_equal(found, clipped_sample(taken, stored, y, lengths, 0.3, sample))  # other rows are not read
    observed = clipped(taken, wide, y, lengths, 0.3, sample=sample)
    assert len(observed.factors) == 700
    assert np.array_equal(found, observed.total)
    expected = np.zeros_like(found)
    for run in sample.runs():
        rows = sample.places[run]
        expected += clipped(taken, wide[rows], y[rows], lengths[rows], 0.3).total
    assert np.array_equal(found, expected)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("n_features", [1, 77, 1040, 2100])
@pytest.mark.parametrize("n_classes", [1, 10, 64, 100])
def test_scores_of_a_row_have_the_same_bits_at_every_position(n_classes: int, n_features: int) -> None:
    x = normal(300, n_features)
    taken = products(normal(n_classes, n_features))
    assert isinstance(taken, KernelProducts)
    scores = taken.scores(x)
    for _ in range(5):
        chosen = RNG.permutation(300)[: RNG.integers(1, 300)]
        assert np.array_equal(taken.scores(x[chosen]), scores[chosen])


@pytest.mark.usefixtures("way")
def test_a_row_with_zero_factors_adds_nothing() -> None:
    """An empty place and a row with factor zero give the same bits."""
    x, r = normal(300, 200), normal(300, 10)
    r[137] = 0
    emptied = x.copy()
    emptied[137] = 0
    taken = products(normal(10, 200))
    before = summed(taken, r, x)
    assert (summed(taken, r, emptied) == before).all()


@pytest.mark.usefixtures("way")
def test_at_most_sum_rows_are_summed_in_float32() -> None:
    """In float32, 2^24 + 1 = 2^24: a run that contains 2^24 loses the ones of its own run only."""
    x, r = np.ones((4 * SUM_ROWS, 130), np.float32), np.ones((4 * SUM_ROWS, 3), np.float32)
    x[0] = 2.0**24
    lost = 2.0**24 + len(x) - 1 - summed(products(normal(3, 130)), r, x)
    assert lost.min() > 0  # otherwise the bound below would not test float32
    assert lost.max() <= SUM_ROWS


def softmax_residuals(scores: Any, y: Any) -> Any:
    r = np.exp(scores - scores.max(axis=1, keepdims=True))
    r /= r.sum(axis=1, keepdims=True)
    r[np.arange(len(y)), y] -= 1
    return r


def check_clipped(x: Any, weights: Any, y: Any, lengths: Any, bound: float) -> None:
    """It is scores, residuals, norms, factors and sum."""
    taken = products(weights)
    wide_x = x.astype(np.float64)
    r = softmax_residuals(wide_x @ weights.T.astype(np.float64), y)
    off = 2.0**-20 + 4 * (x.shape[1] + 2) * ROUNDING * (np.abs(wide_x) @ np.abs(weights).T).max(initial=0)
    for _ in range(2):  # the second call must not see the first
        total, r_norms, factors, _ = clipped(taken, x, y, lengths, bound)
        np.testing.assert_allclose(r_norms, np.linalg.norm(r, axis=1), atol=off * len(weights) ** 0.5)
        with np.errstate(divide="ignore"):
            assert np.array_equal(factors, np.minimum(1, bound / (lengths * r_norms)))
        expected = (factors[:, None] * r).T @ wide_x
        allowed = off + (SUM_ROWS + 4) * ROUNDING
        assert (np.abs(total - expected) <= allowed * (np.ones((len(weights), len(x))) @ np.abs(wide_x))).all()


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize(
    ("n_classes", "bound"),
    mostly_nightly(
        [(n_classes, bound) for n_classes in CLASSES for bound in (0.05, np.inf)],
        lambda case: (list(CLASSES).index(case[0]) % 2 == 0) == (case[1] == 0.05),
    ),
)
def test_a_clipped_sum_is_its_parts_one_after_another(n_classes: int, bound: float) -> None:
    for n_rows in ROWS:
        for n_features in (1, 16, 77, 130):
            x, y = normal(n_rows, n_features), RNG.integers(0, n_classes, n_rows)
            check_clipped(x, normal(n_classes, n_features), y, np.linalg.norm(x, axis=1).astype(np.float64), bound)


@needs_compiler
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("widest", [4, 8], ids=["any-processor", "avx2"])
def test_the_copies_for_narrower_vectors_do_the_same(widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One library serves all processors: it asks for AVX-512 and AVX2 at run time."""
    library = narrow_kernel(widest)
    for module in (host, blocks):
        monkeypatch.setattr(module, "LIBRARY", library)
    for n_features, n_classes in test_kernel_people.SHAPES:
        people = test_kernel_people.block_of(test_kernel_people.SIZES, n_features, n_classes)
        test_kernel_people.check(people, test_kernel_people.weights_of(n_features, n_classes), 0.3)
    for n_rows, n_features, n_classes in [(5, 1, 1), (131, 77, 10), (300, 200, 5), (520, 40, 70), (64, 1024, 16)]:
        x, weights, y = normal(n_rows, n_features), normal(n_classes, n_features), RNG.integers(0, n_classes, n_rows)
        check(x, weights, normal(n_rows, n_classes))
        check_clipped(x, weights, y, np.linalg.norm(x, axis=1).astype(np.float64), 0.3)
        taken, stored = products(weights), narrowed(x, "float16")
        lengths = np.linalg.norm(widened(stored), axis=1).astype(np.float64)
        wide = clipped(taken, widened(stored), y, lengths, 0.3).total
        assert np.array_equal(clipped(taken, stored, y, lengths, 0.3).total, wide)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("longest", [np.array(0.1), np.linspace(0.1, 9, 5 * 77).reshape(5, 77)])
def test_sums_are_rounded_so_that_their_order_changes_no_bit(longest: Any) -> None:
    x, r, taken = normal(9 * SUM_ROWS, 77), normal(9 * SUM_ROWS, 5), products(normal(5, 77))
    sums = []
    for starts in ((0, 3, 6), (6, 0, 3)):
        sums.append(ExactSum(taken.zeros(), longest, 10**12))
        for start in starts:
            block = slice(start * SUM_ROWS, (start + 3) * SUM_ROWS)
            taken.add(sums[-1], r[block], x[block])
    for power in range(13, 40):  # up to 2^53 grid steps, so that no addition rounds
        grid = np.spacing(ExactSum(taken.zeros(), longest, 3 * 2**power).shift)
        assert (grid * 2.0**53 >= 3 * 2**power * longest).all()
    assert np.array_equal(sums[0].total, sums[1].total)
    assert not np.array_equal(sums[0].total, summed(taken, r, x))
    assert np.abs(sums[0].total - summed(taken, r, x)).max() < 9 * longest.max() * 1e12 * 2.0**-52


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("n_classes", [10, 70])
def test_clipped_sums_are_rounded_a_run_at_a_time(n_classes: int) -> None:
    """Scores of whole numbers are exact at every position of a row."""
    x, y = RNG.integers(-3, 4, (300, 77)).astype(np.float32), RNG.integers(0, n_classes, 300)
    taken = products(RNG.integers(-9, 10, (n_classes, 77)).astype(np.float32))
    lengths = np.linalg.norm(x, axis=1).astype(np.float64)
    found, expected = (ExactSum(taken.zeros(), np.array(0.3), 10**12) for _ in range(2))
    taken.clip_block(found, block_of(x, y, lengths), 0.3)
    for start in range(0, 300, SUM_ROWS):
        run = slice(start, start + SUM_ROWS)
        expected.add(clipped(taken, x[run], y[run], lengths[run], 0.3).total)
    assert np.array_equal(found.total, expected.total)
    assert not np.array_equal(found.total, clipped(taken, x, y, lengths, 0.3).total)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
def test_at_most_sum_rows_are_summed_in_float32_in_one_pass() -> None:
    x, y = np.ones((4 * SUM_ROWS, 130), np.float32), np.zeros(4 * SUM_ROWS, np.int64)
    x[0] = 2.0**24
    total, *_ = clipped(products(np.zeros((2, 130), np.float32)), x, y, np.ones(len(x)), np.inf)
    lost = (2.0**24 + len(x) - 1) - 2 * total[1]
    assert lost.min() > 0
    assert lost.max() <= SUM_ROWS


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("n_classes", [10, 70])
def test_no_row_contributes_more_than_the_bound_whatever_its_scores(n_classes: int) -> None:
    for size in (0.0, 1.0, 1e3, 1e10, 1e25):
        for scale in (0.0, 1e-10, 1.0, 1e8):
            x, weights = scale * normal(60, 200), size * normal(n_classes, 200)
            lengths, taken = np.linalg.norm(x.astype(np.float64), axis=1), products(weights)
            for row in range(60):
                here = slice(row, row + 1)
                total, *_ = clipped(taken, x[here], np.array([row % n_classes]), lengths[here], 0.3)
                assert np.linalg.norm(total) <= 0.3 * (1 + 2.0**-20)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("n_classes", [10, 70])
def test_a_row_is_clipped_alike_wherever_it_stands(n_classes: int) -> None:
    """With many classes, BLAS may round a row depending on its position; these products are exact in any order."""
    x, y = RNG.integers(-3, 4, (200, 333)).astype(np.float32), RNG.integers(0, n_classes, 200)
    weights = RNG.integers(-9, 10, (n_classes, 333)).astype(np.float32)
    lengths = np.linalg.norm(x, axis=1).astype(np.float64)
    taken = products(weights)
    _, r_norms, factors, _ = clipped(taken, x, y, lengths, 0.3)
    for start in (1, 31, 32, 33, 150):
        moved = clipped(taken, x[start:], y[start:], lengths[start:], 0.3)
        assert np.array_equal(moved.r_norms, r_norms[start:])
        assert np.array_equal(moved.factors, factors[start:])


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
def test_what_is_not_a_number_stays_so() -> None:
    x, weights = np.ones((40, 130), np.float32), np.zeros((3, 130), np.float32)
    for bad in (np.nan, np.inf):
        weights[1, 5] = bad
        total, *_ = clipped(products(weights), x, np.zeros(40, np.int64), np.ones(40), 0.3)
        assert np.isnan(total).all()


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("first", [0, 16, 37, 200])
def test_scores_of_parts_are_taken_on_the_way(first: int) -> None:
    x, y = normal(150, 200), RNG.integers(0, 10, 150)
    lengths, taken = np.linalg.norm(x, axis=1).astype(np.float64), products(normal(10, 200))
    parts = [
        Part(0, products(normal(9, first))),
        Part(3, products(normal(80, 100))),  # more than the kernel supports
        Part(first, products(normal(7, 200 - first))),
    ]
    alone, together = clipped(taken, x, y, lengths, 0.3), clipped(taken, x, y, lengths, 0.3, parts)
    assert np.array_equal(alone.factors, together.factors)
    for part, scores in zip(parts, together.scores, strict=True):
        of_part = slice(part.first, part.first + part.products.n_features)
        assert np.array_equal(scores, part.scores(x))
        np.testing.assert_allclose(scores, x[:, of_part] @ part.products._weights.T, rtol=1e-4, atol=1e-4)


def same_bits(one: Clipped, other: Clipped) -> bool:
    pairs = zip([*one[:3], *one.scores], [*other[:3], *other.scores], strict=True)
    return all(np.array_equal(left, right, equal_nan=True) for left, right in pairs)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("precision", STORAGE)
@pytest.mark.parametrize(
    ("n_features", "n_classes"),
    mostly_nightly(
        [(n_features, n_classes) for n_features in (1, 15, 77, 130, 256) for n_classes in (10, 70)],
        {(1, 70), (15, 10), (77, 70), (130, 10), (256, 70)}.__contains__,
    ),
)
def test_rows_as_they_are_stored_are_taken_as_if_they_were_widened(
    precision: Any, n_features: int, n_classes: int
) -> None:
    taken = products(normal(n_classes, n_features))
    parts = [Part(n_features // 3, products(normal(n, n_features - n_features // 3))) for n in (9, 80)]
    for n_rows in ROWS:
        x, y = narrowed(normal(n_rows, n_features), precision), RNG.integers(0, n_classes, n_rows)
        lengths = np.linalg.norm(widened(x).astype(np.float64), axis=1)
        wide = clipped(taken, widened(x), y, lengths, 0.3, parts)
        assert same_bits(clipped(taken, x, y, lengths, 0.3, parts), wide)
        assert same_bits(clipped(taken, np.asfortranarray(x), y, lengths, 0.3, parts), wide)
        assert np.array_equal(taken.scores(x), taken.scores(widened(x)))
        r = normal(n_rows, n_classes)
        assert np.array_equal(summed(taken, r, widened(x)), summed(taken, r, x))


@needs_kernel
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("n_classes", [2, FEW_CLASSES + 1])
def test_the_kernel_widens_every_number_exactly(precision: Any, n_classes: int) -> None:
    stored = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)[None]
    stored = stored.view(STORAGE[precision])
    stored = stored[:, np.isfinite(widened(stored))[0]]
    taken = products(np.zeros((n_classes, stored.shape[1]), np.float32))
    total = clipped(taken, stored, np.array([0]), np.ones(1), np.inf).total
    r = np.full(n_classes, np.float32(1) / np.float32(n_classes))
    r[0] -= 1
    assert np.array_equal(total, np.outer(r, widened(stored)))


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
def test_a_row_emptied_in_its_place_changes_no_bit_of_the_others() -> None:
    x, weights, y = normal(300, 333), 1e6 * normal(10, 333), RNG.integers(0, 10, 300)
    lengths = np.linalg.norm(x, axis=1).astype(np.float64)
    whole = clipped(products(weights), x, y, lengths, 0.3)
    others = np.arange(300) != 77
    emptied = x * others[:, None].astype(np.float32)
    without = clipped(products(weights), emptied, y, lengths * others, 0.3)
    assert np.array_equal(whole.r_norms[others], without.r_norms[others])
    assert np.array_equal(whole.factors[others], without.factors[others])
    moved = np.linalg.norm(whole.total - without.total)
    assert moved == pytest.approx(whole.factors[77] * whole.r_norms[77] * lengths[77], rel=1e-3)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
def test_a_class_far_behind_has_no_probability_left() -> None:
    weights = np.array([[0.0] * 130, [-1.0] * 130, [-1e30] * 130], np.float32)
    taken = clipped(products(weights), np.ones((5, 130), np.float32), np.zeros(5, np.int64), np.ones(5), np.inf)
    assert np.array_equal(taken.r_norms, np.zeros(5))
    weights[2] = -np.inf
    taken = clipped(products(weights), np.ones((5, 130), np.float32), np.ones(5, np.int64), np.ones(5), np.inf)
    np.testing.assert_allclose(taken.r_norms, 2**0.5, rtol=1e-6)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n_features", [5, 200])
def test_no_classes_have_no_scores(n_features: int) -> None:
    taken = products(np.zeros((0, n_features), np.float32))
    assert taken.scores(normal(7, n_features)).shape == (7, 0)
    assert summed(taken, normal(7, 0), normal(7, n_features)).shape == (0, n_features)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
def test_what_does_not_fit_together_is_refused() -> None:
    taken, x, y, ones = products(normal(3, 130)), normal(4, 130), np.zeros(4, np.int64), np.ones(4)
    wide, early = Part(100, products(normal(3, 31))), Part(-1, products(normal(3, 31)))
    for call in (
        lambda: taken.scores(normal(4, 131)),
        lambda: summed(taken, normal(4, 3), normal(4, 131)),
        lambda: summed(taken, normal(3, 3), x),
        lambda: summed(taken, normal(4, 3), x, Sample(np.array([4]), np.array([1]))),
        lambda: clipped_sample(taken, x, y, ones, 0.3, Sample(np.array([-1]), np.array([1]))),
        lambda: clipped(taken, StoredRows(x, translation=TRANSLATION), y, ones, 0.3),
        lambda: summed(taken, normal(4, 2), x),
        lambda: clipped(taken, normal(4, 131), y, ones, 0.3),
        lambda: clipped(taken, x, y[:3], ones, 0.3),
        lambda: clipped(taken, x, y, ones[:3], 0.3),
        lambda: clipped(taken, x, np.array([0.0, 1.0, 0.5, 2.0]), ones, 0.3),
        lambda: clipped(taken, x, y, ones, 0.3, [wide]),
        lambda: clipped(taken, x, y, ones, 0.3, [early]),
        lambda: taken.clip_block(ExactSum(taken.zeros(), np.ones((3, 130)), 4), block_of(x, y, ones), 0.3),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            call()


@needs_kernel
@pytest.mark.parametrize(
    "zeros",
    [
        np.zeros((3, 130)),
        np.zeros((3, 160))[:, :130],
        np.zeros((3, 168), np.float32)[:, :130],
        np.zeros((9, 168))[6:, 38:],
    ],
)
def test_the_kernel_adds_to_no_sum_that_has_no_room_for_whole_tiles(zeros: Any) -> None:
    taken = products(normal(3, 130))
    other = ExactSum(zeros, np.array(np.inf), 1)
    with pytest.raises(ValueError, match="does not begin with zeros"):
        taken.add(other, normal(4, 3), normal(4, 130))
    with pytest.raises(ValueError, match="does not begin with zeros"):
        taken.clip_block(other, block_of(normal(4, 130), np.zeros(4, np.int64), np.ones(4)), 0.3)


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
def test_many_rows_are_clipped_each_by_its_own_class_and_length() -> None:
    """The last run is not whole."""
    x, y = normal(10 * SUM_ROWS + 44, 77), RNG.integers(0, 70, 10 * SUM_ROWS + 44)
    check_clipped(x, normal(70, 77), y, np.linalg.norm(x, axis=1).astype(np.float64), 0.05)


@needs_kernel
def test_a_library_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    with pytest.warns(UserWarning, match="another machine or version; install linprobe again"):
        assert native.load() is None


@needs_kernel
@pytest.mark.usefixtures("room_for_all")
@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_a_class_that_there_is_not_is_refused(label: int) -> None:
    taken = products(normal(3, 130))
    with pytest.raises(IndexError, match="allowed: 0 to 2"):
        clipped(taken, normal(2, 130), np.array([0, label]), np.ones(2), 0.3)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (1000, 33)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_aligned_arrays_begin_at_a_cache_line(shape: tuple[int, ...], dtype: Any) -> None:
    found = aligned_empty(shape, dtype)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert found.ctypes.data % CACHE_LINE == 0
    assert found.flags.c_contiguous
    assert found.flags.writeable


def test_few_classes_are_clipped_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LIBRARY", object())
    counts = (0, 1, FEW_CLASSES, FEW_CLASSES + 1)
    taken = [products(normal(n_classes, 9)) for n_classes in counts]
    assert [type(chosen) for chosen in taken] == [Products, FusedProducts, FusedProducts, KernelProducts]
    assert [isinstance(chosen, KernelProducts) for chosen in taken] == [False, True, True, True]


@pytest.mark.skipif(host.LIBRARY is None, reason="the kernel is not built")
@pytest.mark.parametrize(("value", "native"), [("0", False), ("1", True), (None, True)])
def test_the_environment_turns_the_kernel_off(value: str | None, native: bool) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "LINPROBE_NATIVE"}
    if value is not None:
        environment["LINPROBE_NATIVE"] = value
    shown = subprocess.run(
        [sys.executable, "-c", "from linprobe import native; print(native.LIBRARY is not None)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.strip() == str(native)
