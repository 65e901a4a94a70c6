"""The same rows give the same commitment in any order and precision, other rows or keys another one."""

from __future__ import annotations

import numpy as np

from linprobe.data.row_commitment import RowHashes, row_commitment

RNG = np.random.default_rng(5)
ROWS = RNG.standard_normal((300, 40)).astype(np.float16).astype(np.float32)
KEY = bytes(range(32))


def committed(rows: np.ndarray, key: bytes = KEY) -> str:
    return row_commitment(key, np.array_split(rows, 3))


def test_order_precision_and_blocks_do_not_matter() -> None:
    expected = committed(ROWS)
    assert committed(ROWS[RNG.permutation(300)]) == expected
    assert committed(ROWS.astype(np.float16)) == expected
    assert row_commitment(KEY, [ROWS]) == expected


def test_every_row_and_the_key_matter() -> None:
    changed = ROWS.copy()
    changed[7, 3] += 1
    huge = ROWS.copy()
    huge[5] *= 1e9
    variants = [ROWS, ROWS[1:], np.concatenate([ROWS, ROWS[:1]]), changed, huge, 2 * huge, np.zeros_like(ROWS)]
    values = [committed(rows) for rows in variants] + [committed(ROWS, bytes(32))]
    assert len(set(values)) == len(values)


def test_row_hashes_are_equal_for_equal_rows_only() -> None:
    hashed = RowHashes()
    hashes = hashed(ROWS)
    assert len(np.unique(hashes)) == 300
    assert np.array_equal(hashed(ROWS.astype(np.float64)[::-1]), hashes[::-1])
    near = np.nextafter(ROWS, np.float32(9))
    assert not np.isin(hashed(near), hashes).any()
    assert not np.array_equal(RowHashes()(ROWS), hashes)
    assert hashed(np.zeros((1, 40), np.float32)) == hashed(-np.zeros((1, 40), np.float32))
