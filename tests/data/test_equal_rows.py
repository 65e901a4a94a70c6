"""A row that two sets share is found, also scaled and rounded; rows that only look alike are not."""

from __future__ import annotations

import secrets
import time

import numpy as np
import pytest

from linprobe.data import row_checks
from linprobe.data.row_checks import Commitment, NearRows, RowSet, share_a_row
from linprobe.parallel import threads

RNG = np.random.default_rng(4)
PRIVATE = RNG.standard_normal((300, 40)).astype(np.float32)
PUBLIC = RNG.standard_normal((20, 40)).astype(np.float32)


def share(private: np.ndarray, public: np.ndarray) -> bool:
    return share_a_row(np.array_split(private, 3), lambda: np.array_split(public, 2))


@pytest.mark.parametrize("place", [0, 137, 299])
@pytest.mark.parametrize("factor", [1, 8])
def test_a_copy_or_a_multiple_is_found_wherever_it_is(place: int, factor: int) -> None:
    assert share(PRIVATE, np.concatenate([PUBLIC, factor * PRIVATE[place : place + 1]]))


def test_a_copy_in_another_type_is_found() -> None:
    public = np.concatenate([PUBLIC, PRIVATE[7:8]])
    assert share(PRIVATE.astype(np.float16), public)
    assert share(PRIVATE, public.astype(np.float16))


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_different_rows_are_not_taken_for_equal(scale: float) -> None:
    assert not share(PRIVATE * np.float32(scale), PUBLIC * np.float32(scale))


def test_rows_that_differ_in_a_column_that_is_not_sampled_are_different() -> None:
    close = PRIVATE[:20].copy()
    close[:, 1] += 0.5
    assert not share(PRIVATE, close)


def test_equal_rows_of_zeros_are_found() -> None:
    zeros = np.zeros((1, 40), dtype=np.float32)
    assert share(np.concatenate([PRIVATE, zeros]), zeros)
    assert not share(PRIVATE, zeros)


def found(private: np.ndarray, public: np.ndarray, *, short: bool = True) -> np.ndarray:
    """The places of the public rows that are among the private ones."""
    known = RowSet(lambda: np.array_split(public, 3), short=short)
    known.look_through(np.array_split(private, 4))
    return known.found()


def half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16)


def brain(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16."""
    bits = x.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)


ROUNDED = {
    "multiples": lambda x: (x, np.float32(3) * x),
    "half precision, and a multiple of it": lambda x: (half(x), half(3 * x)),
    "pixels up to 255 and up to 1": lambda x: (half(x), half(x / 255)),
    "unit rows": lambda x: (half(x), half(unit(x))),
    "bfloat16": lambda x: (x, brain(x / 7)),
}
FEATURES = {
    "normal": RNG.standard_normal((400, 256)),
    "of a network": np.maximum(RNG.standard_normal((400, 2048)), 0.2) - 0.2,
    "with a mean": RNG.standard_normal((400, 512)) + 10,
    "with a large mean": RNG.standard_normal((400, 64)) + 300,
    "in classes": RNG.standard_normal((8, 64))[np.arange(400) % 8] + 0.03 * RNG.standard_normal((400, 64)),
    "a table": RNG.random((400, 12)) * 10.0 ** np.arange(-4, 2).repeat(2),
}
LOST = {
    ("with a mean", "bfloat16"),
    ("with a large mean", "bfloat16"),
    ("a table", "bfloat16"),
    ("a table", "unit rows"),
    ("a table", "pixels up to 255 and up to 1"),
}


@pytest.mark.parametrize("rounded", ROUNDED)
@pytest.mark.parametrize("features", FEATURES)
def test_rows_that_were_scaled_and_rounded_are_found_and_no_others(features: str, rounded: str) -> None:
    if (features, rounded) in LOST:
        pytest.skip("rounding loses a good part of the spread there")
    private, public = ROUNDED[rounded](FEATURES[features].astype(np.float32))
    for short in (False, True):
        assert np.array_equal(found(private[100:], public, short=short), np.arange(100, 400))


def test_a_row_that_differs_in_one_feature_is_another() -> None:
    close = np.float32(3) * PRIVATE
    close[:, 11] += 1
    assert not found(PRIVATE, close).size


def codes(n: int) -> np.ndarray:
    """Rows of 10 one-hot codes out of 200 each, a few of them common, and 3 measures from 0 to 1."""
    places = np.minimum(RNG.zipf(2.5, (n, 10)) - 1, 199)
    return np.concatenate([np.eye(200)[places].reshape(n, -1), RNG.random((n, 3))], axis=1)


HONEST = {
    "codes and measures": codes,
    "readings far from zero": lambda n: 310 + 0.5 * RNG.standard_normal((n, 1)) + 0.2 * RNG.standard_normal((n, 24)),
    "spectra on a baseline": lambda n: 5 + 0.01 * RNG.standard_normal((n, 3)) @ RNG.standard_normal((3, 100)),
    "five measures and constants": lambda n: np.concatenate([RNG.normal(50, 10, (n, 5)), np.ones((n, 60))], axis=1),
}


@pytest.mark.parametrize("table", HONEST)
def test_rows_of_different_people_that_are_much_alike_are_no_copies(table: str) -> None:
    rows = HONEST[table](6000).astype(np.float32)
    assert not found(rows[1000:], rows[:1000], short=False).size
    copies = rows[1000:1100] * np.float32(0.3)
    assert np.array_equal(found(rows[1000:], np.concatenate([rows[:1000], copies])), np.arange(1000, 1100))


def test_copies_whose_small_columns_half_precision_rounds_away_are_found() -> None:
    rows = (10.0 ** np.linspace(3, -3, 16) * np.exp(0.3 * RNG.standard_normal((600, 16)))).astype(np.float32)
    assert np.array_equal(found(half(rows), half(unit(rows[:50]))), np.arange(50))


def test_only_the_rows_asked_for_are_looked_for() -> None:
    known = NearRows(lambda: [PRIVATE])
    norms = np.linalg.norm(PRIVATE.astype(np.float64), axis=1)
    known.add(PRIVATE, norms)
    known.find(3 * PRIVATE, 3 * norms, np.arange(len(PRIVATE)) % 3 == 0)
    assert np.array_equal(known.found(), np.arange(0, len(PRIVATE), 3))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_near_rows_are_found_where_sums_leave_the_range_of_float32(scale: float) -> None:
    rows = RNG.standard_normal((30, 2048)).astype(np.float32)
    assert len(found(rows, np.float32(scale) * rows)) == len(rows)
    assert len(found(np.float32(scale) * rows, rows)) == len(rows)


def test_many_rows_of_one_cell_are_compared_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of one image among others that hardly differ from it."""
    monkeypatch.setattr(row_checks, "HASHED", 40 * 7)
    monkeypatch.setattr(row_checks, "PAIRS", 50)
    monkeypatch.setattr(row_checks, "MOST_WAITING", 2)
    rows = np.concatenate([PUBLIC, np.repeat(PRIVATE[:1], 60, axis=0)])
    rows[40:] += np.float32(0.03) * RNG.standard_normal((40, 40)).astype(np.float32)
    assert np.array_equal(found(np.repeat(rows[20:40] / 3, 4, axis=0), rows), np.arange(20, 40))


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("factor", [3.0, 0.7, 8.0])
def test_rows_of_few_entries_are_multiples_only_if_float32_says_so(width: int, factor: float) -> None:
    """Half precision has a few thousand directions of two features: 10 rows of 2,000 were among others by chance."""
    rows = np.zeros((2020, 40), dtype=np.float32)
    rows[:, :width] = np.random.default_rng(5).standard_normal((2020, width))
    assert not share(rows[:2000], rows[2000:])
    found = [share(rows[:500], np.float32(factor) * row[None]) for row in rows[:100]]
    assert sum(found) >= 97


@pytest.mark.parametrize("width", [24, 512])
def test_a_power_of_2_in_half_precision_is_always_found(width: int) -> None:
    rows = RNG.standard_normal((2000, width)).astype(np.float32)
    assert len(found(rows, rows.astype(np.float16) * np.float16(4))) == len(rows)


@pytest.mark.parametrize("factor", [1, 4])
def test_rows_that_budget_books_take_for_the_same_are_found_though_small_entries_differ(factor: int) -> None:
    rows = RNG.random((300, 600), dtype=np.float32)
    rows[:, ::2] *= np.float32(1e-4)
    errors = np.float32(1e-8) * RNG.standard_normal(rows.shape, dtype=np.float32)
    copies = factor * (rows + errors)
    keys = [Commitment(bytes(32)) for _ in range(2)]
    for commitment, x in zip(keys, (rows, copies), strict=True):
        commitment.add(x)
    same = np.flatnonzero(keys[0].row_keys() == keys[1].row_keys())
    assert len(same) > 200
    assert set(same) <= set(found(rows, copies, short=False))


@pytest.mark.parametrize("factor", [20_000, 3_000_000])
def test_different_rows_of_a_table_with_one_large_column_are_not_taken_for_equal(factor: int) -> None:
    table = RNG.integers(0, 90, (4000, 12)).astype(np.float32)
    table[:, 0] *= factor
    assert not share(table[:2000], table[2000:])


def test_rows_with_one_entry_are_no_multiples_of_each_other() -> None:
    ones = np.eye(40, dtype=np.float32)
    assert not share(ones, 3 * ones[:2])
    assert share(ones, ones[:2])


def test_threads_that_share_a_set_hash_with_the_same_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = secrets.token_bytes

    def slow(size: int) -> bytes:
        time.sleep(0.05)  # every thread draws before one has kept its factors
        return draw(size)

    monkeypatch.setattr(row_checks, "HASHED", 40 * 50)
    monkeypatch.setattr(threads, "n_threads", lambda: 3)
    monkeypatch.setattr(row_checks.secrets, "token_bytes", slow)
    known = RowSet(lambda: [PRIVATE])
    known.look_through(np.split(PRIVATE, len(PRIVATE)))
    assert len(known.found()) == len(PRIVATE)
