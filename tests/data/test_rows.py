"""Rows in training space: unit norms, folding, and streaming without a change of results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from linprobe.api.estimators import (
    DPSGD,
    DPSGDF,
    AdaMix,
    DopeSGD,
    FullyPrivate,
    LinearProbe,
    NoisyGD,
    NonPrivate,
)
from linprobe.data import blocks
from linprobe.data import rows as rows_module
from linprobe.data.blocks import (
    BLOCK_ROWS,
    SHARD_ROWS,
    ArraySource,
    ChainedSource,
    Preprocessing,
    RawBlocks,
    narrowed,
    normalise_rows,
    row_norms,
    widened,
)
from linprobe.data.rows import FAR, ArrayRows, Rows, StreamedRows, block_sizes, join, prepare
from linprobe.errors import UsageError
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import loss_gradient_and_norms
from linprobe.options import Precision
from linprobe.parallel import available_memory
from linprobe.runs.figures import class_scores
from tests.conftest import mostly_nightly
from tests.small_blocks import SmallBlocks

RNG = np.random.default_rng(11)
RAW = (RNG.standard_normal((2500, 6)) + 0.7).astype(np.float32)
LABELS = RAW[:, :4].argmax(axis=1)
PUBLIC, PUBLIC_LABELS = RAW[-40:] + np.float32(0.1), LABELS[-40:]
PREPROCESSINGS = {
    "plain": Preprocessing(),
    "centre": Preprocessing.centred_on(PUBLIC),
    "intercept": Preprocessing(intercept=0.5),
    "centre and intercept": replace(Preprocessing.centred_on(PUBLIC), intercept=0.5),
}


@example(np.array([[1e-40, 2e-40], [1e-45, 0.0]], dtype=np.float32))
@example(np.full((2, 3000), 3e38, dtype=np.float32))
@given(
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_every_finite_row_gets_unit_norm_or_stays_zero(x: Any) -> None:
    norms = row_norms(normalise_rows(x))
    assert np.all(np.isfinite(norms))
    zero = ~x.any(axis=1)
    assert np.all(norms[zero] == 0)
    assert np.allclose(norms[~zero], 1, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, 3e37])
def test_scale_of_a_row_does_not_matter(scale: float) -> None:
    x = RAW[:50]
    assert np.allclose(normalise_rows((x.astype(np.float64) * scale).astype(np.float32)), normalise_rows(x), atol=1e-5)


def test_half_precision_rows_are_normalised_in_single_precision() -> None:
    raw = np.full((3, 2000), 60_000, dtype=np.float16)
    x = Preprocessing().apply(raw)
    assert x.dtype == np.float32
    assert np.allclose(row_norms(x), 1, atol=1e-6)


def test_centred_rows_are_public_mean_free_and_of_unit_norm() -> None:
    preprocessing = PREPROCESSINGS["centre"]
    unit = PUBLIC / np.linalg.norm(PUBLIC, axis=1, keepdims=True)
    assert np.allclose(preprocessing.centre, unit.mean(axis=0), atol=1e-6)
    x = preprocessing.apply(RAW)
    assert np.allclose(row_norms(x), 1, atol=1e-6)
    moved = unit - unit.mean(axis=0)
    expected = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    assert np.allclose(preprocessing.apply(PUBLIC), expected, atol=1e-5)
    assert preprocessing.centred_norm == pytest.approx(np.linalg.norm(moved, axis=1).mean(), rel=1e-5)


def test_a_single_public_row_can_be_the_centre() -> None:
    preprocessing = Preprocessing.centred_on(RAW[:1])
    assert preprocessing.centred_norm > 0
    assert np.all(np.isfinite(preprocessing.apply(RAW)))


def test_intercept_is_the_last_column_and_counts_in_the_norm() -> None:
    x = Preprocessing(intercept=0.5).apply(RAW)
    assert np.all(x[:, -1] == 0.5)
    assert np.allclose(row_norms(x), np.sqrt(1.25), atol=1e-6)
    x = PREPROCESSINGS["centre and intercept"].apply(RAW)  # a row far from the centre has less of the column
    assert np.ptp(x[:, -1]) > 0
    assert np.allclose(row_norms(x), 1, atol=1e-6)


@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_folded_weights_choose_the_class_training_space_chooses(name: str) -> None:
    preprocessing = PREPROCESSINGS[name]
    x = preprocessing.apply(RAW).astype(np.float64)
    for seed in range(20):
        weights = 3 * np.random.default_rng(seed).standard_normal((x.shape[1], 4))
        scores = x @ weights
        first, second = np.sort(scores, axis=1)[:, :-3:-1].T
        clear = first - second > 1e-3
        assert clear.mean() > 0.99
        folded = class_scores(RAW, *preprocessing.fold(weights))
        assert np.array_equal(folded.argmax(axis=1)[clear], scores.argmax(axis=1)[clear])


@pytest.mark.parametrize("name", ["plain", "intercept"])
def test_folded_scores_are_those_of_training_space_without_a_centre(name: str) -> None:
    preprocessing = PREPROCESSINGS[name]
    x = preprocessing.apply(RAW)
    weights = RNG.standard_normal((x.shape[1], 4))
    assert np.allclose(class_scores(RAW, *preprocessing.fold(weights)), x @ weights, atol=1e-5)


@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_unfolding_gives_back_the_weights_that_were_folded(name: str) -> None:
    preprocessing = PREPROCESSINGS[name]
    weights = RNG.standard_normal((6 + bool(preprocessing.intercept), 4))
    again = preprocessing.unfold(*preprocessing.fold(weights))
    # a bias common to all classes changes no prediction
    if preprocessing.intercept:
        weights[-1] -= weights[-1].mean()
    assert np.allclose(again, weights, atol=1e-5)


def test_a_bias_is_unfolded_where_a_column_can_carry_it_and_refused_elsewhere() -> None:
    weights, bias = RNG.standard_normal((6, 4)), np.array([0.5, -0.5, 1.0, 3.0])
    for name in ("intercept", "centre and intercept"):
        again, offset = PREPROCESSINGS[name].fold(PREPROCESSINGS[name].unfold(weights, bias))
        assert np.allclose(again, weights, atol=1e-6)
        assert np.ptp(offset - bias) < 1e-5
    for name in ("plain", "centre"):
        with pytest.raises(UsageError, match="cannot express"):
            PREPROCESSINGS[name].unfold(weights, bias)
    other = Preprocessing.centred_on(RAW[:7])
    with pytest.raises(UsageError, match="--centre"):
        PREPROCESSINGS["centre"].unfold(*other.fold(weights))


def test_an_offset_and_a_stack_of_voters_are_folded_one_by_one() -> None:
    stack, offsets = RNG.standard_normal((3, 6, 4)), RNG.standard_normal((3, 4))
    for name in ("plain", "centre"):
        folded, bias = PREPROCESSINGS[name].fold(stack, offsets)
        for voter in range(3):
            one, own = PREPROCESSINGS[name].fold(stack[voter], offsets[voter])
            assert np.array_equal(folded[voter], one)
            assert np.allclose(bias[voter], own, atol=1e-6)
            assert np.allclose(own - PREPROCESSINGS[name].fold(stack[voter])[1], offsets[voter], atol=1e-5)


def _blocks(size: int) -> Iterator[tuple[Any, Any]]:
    for start in range(0, len(RAW), size):
        yield RAW[start : start + size], LABELS[start : start + size]


@pytest.mark.parametrize("name", PREPROCESSINGS)
@pytest.mark.parametrize("size", mostly_nightly([333, 1, 2500], (333).__eq__))
def test_block_size_changes_no_sum_beyond_rounding(name: str, size: int) -> None:
    preprocessing = PREPROCESSINGS[name]
    x = preprocessing.apply(RAW)
    weights = RNG.standard_normal((x.shape[1], 4))
    whole = ArrayRows(x, LABELS)
    in_blocks = SmallBlocks(x, LABELS, size)
    streamed = StreamedRows(lambda: _blocks(size), len(RAW), x.shape[1], preprocessing)
    expected = clipped_sum(whole, weights, 0.4)
    loss, gradient, norms = loss_gradient_and_norms(whole, weights)
    for other in (in_blocks, streamed):
        found = clipped_sum(other, weights, 0.4)
        assert np.allclose(found.value, expected.value, rtol=1e-5, atol=1e-3)
        other_loss, other_gradient, other_norms = loss_gradient_and_norms(other, weights)
        assert np.allclose(np.concatenate(other_norms), np.concatenate(norms), rtol=1e-5)
        assert other_loss == pytest.approx(loss, rel=1e-6)
        assert np.allclose(other_gradient, gradient, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_streamed_rows_are_the_rows_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ArraySource(RAW, LABELS)
    in_memory = prepare(source, PREPROCESSINGS[name])
    monkeypatch.setattr(available_memory, "available", lambda: 0)
    streamed = prepare(source, PREPROCESSINGS[name])
    assert isinstance(in_memory, ArrayRows)
    assert isinstance(streamed, StreamedRows)
    assert (streamed.n_rows, streamed.n_features) == (in_memory.n_rows, in_memory.n_features)
    for _ in range(2):
        for left, right in zip(in_memory.blocks(), streamed.blocks(), strict=True):
            assert left.start == right.start
            assert np.array_equal(left.x, right.x)
            assert np.array_equal(left.y, right.y)
            assert np.array_equal(left.norms, right.norms)


class Cut(ArraySource):
    """Rows in blocks of `size`, of which some may be missing."""

    def __init__(self, size: int, n_given: int = len(RAW)) -> None:
        super().__init__(RAW, LABELS)
        self.size, self.n_given = size, n_given

    def blocks(self) -> RawBlocks:
        for start in range(0, self.n_given, self.size):
            here = slice(start, min(start + self.size, self.n_given))
            yield RAW[here], LABELS[here]


SIZES, THREADS, PRECISIONS = (1, 700, 1024, 2500), (1, 3), ("float32", "float16")


def covers_a_pair(case: tuple[int, int, str, str]) -> bool:
    """Whether a case is among the 12 that together have each value beside each value of each other option."""
    size, space = SIZES.index(case[0]), list(PREPROCESSINGS).index(case[3])
    return case[1:3] == (THREADS[(size + space) % 2], PRECISIONS[(size // 2 + space) % 2])


@pytest.mark.parametrize(
    ("size", "threads", "precision", "space"),
    mostly_nightly(product(SIZES, THREADS, PRECISIONS, PREPROCESSINGS), covers_a_pair),
)
def test_prepared_rows_depend_neither_on_blocks_nor_on_threads(
    size: int, threads: int, precision: Precision, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "n_threads", lambda: threads)
    rows = prepare(Cut(size), PREPROCESSINGS[space], precision)
    assert isinstance(rows, ArrayRows)
    x = narrowed(PREPROCESSINGS[space].apply(RAW), precision)
    assert np.array_equal(rows.x, x)
    assert np.array_equal(rows.y, LABELS)
    assert np.array_equal(rows.norms, row_norms(widened(x)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_rows_in_memory_that_other_rows_had_are_the_rows_in_new_memory(name: str, precision: Precision) -> None:
    source = ArraySource(RAW, LABELS)
    spent = prepare(source, Preprocessing(), precision, room=bool(PREPROCESSINGS[name].intercept))
    rows = prepare(source, PREPROCESSINGS[name], precision, spent=spent)
    fresh = prepare(source, PREPROCESSINGS[name], precision)
    assert isinstance(rows, ArrayRows)
    assert isinstance(fresh, ArrayRows)
    assert isinstance(spent, ArrayRows)
    assert np.shares_memory(rows.x, spent.x)
    assert not np.shares_memory(rows.x, RAW)
    assert rows.x.ctypes.data % 64 == 0
    assert np.array_equal(rows.x, fresh.x)
    assert np.array_equal(rows.norms, fresh.norms)
    assert isinstance(prepare(source, Preprocessing(), precision, streamed=True, spent=rows), StreamedRows)
    users = ArrayRows(rows.x.copy(), LABELS)  # not memory that `prepare` may write to
    assert not np.shares_memory(prepare(source, Preprocessing(), precision, spent=users).x, users.x)


@pytest.mark.parametrize("n_given", [1024, 2499])
def test_a_source_with_fewer_rows_than_it_says_is_refused(n_given: int) -> None:
    with pytest.raises(ValueError, match=rf"{n_given} rows; allowed: 2500"):
        prepare(Cut(700, n_given), Preprocessing())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("sampled", [None, True, False])
def test_places_are_empty_whatever_changes_rows_or_samples_them(streamed: bool, sampled: bool | None) -> None:
    """`sampled` says whether the sample is observed; its mask has every place, as if it had been forgotten."""
    source, present = ArraySource(RAW, LABELS), np.arange(len(RAW)) % 3 > 0
    rows: Rows = ArrayRows(RAW, LABELS)
    if streamed:
        rows = StreamedRows(source.blocks, len(RAW), 6, Preprocessing())
    rows = rows.emptied(present).translated(np.ones(6), 1.0)
    if sampled is not None:
        rows = rows.sample(present | True, 0.5, observed=sampled)
    for block in rows.blocks():
        here = present[block.start : block.start + len(block.y)]
        assert not block.x[~here].any()
        assert (block.norms[~here] == FAR).all()
        assert (block.norms[here] < 1e4).all()
        assert block.x[here].any(axis=1).all()


@pytest.mark.parametrize("streamed", [False, True])
def test_people_who_are_absent_have_no_rows(streamed: bool) -> None:
    bounds, present = np.arange(0, len(RAW) + 1, 5), np.arange(500) % 3 > 0
    rows: Rows = ArrayRows(normalise_rows(RAW), LABELS)
    if streamed:
        rows = StreamedRows(ArraySource(RAW, LABELS).blocks, len(RAW), 6, Preprocessing())
    left = ArrayRows(normalise_rows(RAW)[np.repeat(present, 5)], LABELS[np.repeat(present, 5)])
    expected = left.of_people(np.append(0, np.cumsum(5 * present)))
    for found, wanted in zip(rows.of_people(bounds).emptied(present).blocks(), expected.blocks(), strict=True):
        assert found.start == wanted.start
        assert np.array_equal(found.bounds, wanted.bounds)
        assert np.array_equal(found.x, wanted.x)


def test_chained_and_joined_rows_keep_their_order() -> None:
    first, second = ArraySource(RAW[:1500], LABELS[:1500]), ArraySource(RAW[1500:], LABELS[1500:])
    whole = prepare(ArraySource(RAW, LABELS), Preprocessing())
    chained = prepare(ChainedSource(first, second), Preprocessing())
    joined = join(prepare(first, Preprocessing()), prepare(second, Preprocessing()))
    assert isinstance(whole, ArrayRows)
    for other in (chained, joined):
        assert isinstance(other, ArrayRows)
        assert np.array_equal(other.x, whole.x)
        assert np.array_equal(other.y, whole.y)


SEEDED = {"epsilon": 3.0, "delta": 1e-5, "n_steps": 12, "insecure_seed": 5}
SAMPLED = {"sampling_rate": 0.3, "accountant": "rdp"}
PROBES: dict[str, tuple[type[LinearProbe], dict[str, Any]]] = {
    "noisy-gd plain": (NoisyGD, {**SEEDED, "centre": "none"}),
    "noisy-gd centred": (NoisyGD, {**SEEDED, "centre": "public"}),
    "noisy-gd intercept": (NoisyGD, {**SEEDED, "centre": "none", "intercept": 1.0}),
    "adamix": (AdaMix, dict(SEEDED)),
    "fully-private": (FullyPrivate, dict(SEEDED)),
    "non-private": (NonPrivate, {}),
    "dp-sgd": (DPSGD, {**SEEDED, **SAMPLED}),
    "dp-sgd unobserved": (DPSGD, {**SEEDED, **SAMPLED, "per_record": False}),
    "dpsgd-f": (DPSGDF, {**SEEDED, **SAMPLED, "per_record": False}),
    "dope-sgd extended": (DopeSGD, {**SEEDED, **SAMPLED, "extended": 0.5, "per_record": False}),
}


@pytest.mark.parametrize(
    ("name", "block_rows"),
    mostly_nightly(
        [(name, block_rows) for name in PROBES for block_rows in (100, 1024)],
        lambda case: case[1] == (100, 1024)[list(PROBES).index(case[0]) % 2],
    ),
)
def test_streaming_and_block_size_change_no_trained_weight_beyond_rounding(
    name: str, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, parameters = PROBES[name]

    def train() -> LinearProbe:
        fitted = probe(classes=range(4), **parameters)
        return fitted.fit(RAW, LABELS, X_public=PUBLIC, y_public=PUBLIC_LABELS)

    in_memory = train()
    monkeypatch.setattr(available_memory, "available", lambda: 0)
    for module in (rows_module, blocks):
        monkeypatch.setattr(module, "BLOCK_ROWS", block_rows)
    streamed = train()
    scale = np.abs(in_memory.coef_).max()
    assert np.allclose(streamed.coef_, in_memory.coef_, rtol=0, atol=2e-4 * scale)
    assert np.allclose(streamed.intercept_, in_memory.intercept_, rtol=0, atol=2e-4 * scale)
    if name == "non-private":
        return
    # a rounding difference in one step moves the gradients of the next ones
    ours, theirs = streamed.private_record_losses_, in_memory.private_record_losses_
    assert np.allclose(ours.mu, theirs.mu, rtol=0, atol=3e-3)
    assert ours.mu.size == (len(RAW) + len(PUBLIC) * (name == "fully-private")) * parameters.get("per_record", True)
    assert np.allclose(ours.renyi, theirs.renyi, rtol=0.2, atol=1e-3)


@pytest.mark.parametrize("tiny", [1e-39, 1e-45])
def test_one_tiny_private_row_cannot_spoil_the_release(tiny: float) -> None:
    raw = RAW[:200].copy()
    raw[7] = tiny
    probe = NoisyGD(classes=range(4), epsilon=3.0, n_steps=5, init="zero").fit(raw, LABELS[:200])
    assert np.all(np.isfinite(probe.coef_))
    assert np.all(np.isfinite(probe.private_record_losses_.mu))


@pytest.mark.parametrize("n_rows", [0, 1, 1024, 1025, 2500, SHARD_ROWS, 3 * SHARD_ROWS + 2049])
def test_blocks_hold_all_rows_and_are_those_of_shards(n_rows: int) -> None:
    sizes, shard = [*block_sizes(n_rows)], min(n_rows, SHARD_ROWS)
    assert sum(sizes) == n_rows
    assert all(0 < size <= BLOCK_ROWS for size in sizes)
    assert all(size % 128 == 0 for size in sizes[:-1])
    assert sizes == [*block_sizes(shard), *block_sizes(n_rows - shard)]


@pytest.mark.parametrize("n_rows", [1025, 2048, 2500, 4000])
def test_two_threads_have_about_the_same_number_of_rows(n_rows: int) -> None:
    sizes = [*block_sizes(n_rows)]
    assert abs(sum(sizes[::2]) - sum(sizes[1::2])) < 520


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_has_no_norm_and_prints_no_warning() -> None:
    x = np.ones((2, 16), np.float32)
    x[1].view(np.uint32)[3] = 0x7F800001
    norms = row_norms(x)
    assert norms[0] == 4
    assert np.isnan(norms[1])


def test_places_are_empty_in_memory_too() -> None:
    """A device copies the rows and their norms as they are."""
    present = np.arange(len(RAW)) % 3 > 0
    rows = ArrayRows(RAW, LABELS)
    emptied = rows.emptied(present)
    assert not emptied.x[~present].any()
    np.testing.assert_array_equal(emptied.norms, np.where(present, rows.norms, FAR))
