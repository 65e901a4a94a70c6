"""A row that two sets share is found; rows that only look alike in half precision are not."""

from __future__ import annotations

import secrets
import time

import numpy as np
import pytest

from linprobe.data import row_checks
from linprobe.data.row_checks import FEWEST, ONE_SCALE, Commitment, RowSet, share_a_row
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


@pytest.mark.parametrize("factor", [3.0, 0.7, 1 / 7])
def test_a_multiple_of_a_wide_row_is_found_though_its_last_digits_differ(factor: float) -> None:
    """At one scale of unit rows a tenth of them would be missed, and one in a thousand is now."""
    rows = RNG.standard_normal((200, 2048)).astype(np.float32)
    copies = rows * np.float32(factor)
    assert sum(share(row[None], copy[None]) for row, copy in zip(rows, copies, strict=True)) >= 197


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
    known = RowSet(lambda: [rows.astype(np.float16) * np.float16(4)])
    known.find(rows)
    assert len(known.found()) == len(rows)


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
    known = RowSet(lambda: [copies], FEWEST, ONE_SCALE)
    known.find(rows)
    assert len(same) > 200
    assert set(same) <= set(known.found())


def test_different_rows_of_a_table_with_one_large_column_are_not_taken_for_equal() -> None:
    table = RNG.integers(0, 90, (4000, 12)).astype(np.float32)
    table[:, 0] *= 20_000
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
    assert all(known.find(PRIVATE[place : place + 1]) for place in range(len(PRIVATE)))
