"""The same rows give the same commitment in any order, precision and scale, other rows or keys another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from linprobe.data.dataset import Dataset
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import Description, GroupRows
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.row_checks import Commitment, RowHashes, share_a_row

RNG = np.random.default_rng(5)
ROWS = RNG.standard_normal((300, 40)).astype(np.float16).astype(np.float32)
EXACT = RNG.standard_normal((300, 40)).astype(np.float32)
KEY = bytes(range(32))


def commitment(blocks: list[np.ndarray], key: bytes = KEY) -> str:
    made = Commitment(key)
    for block in blocks:
        made.add(block)
    return made.value()


def committed(rows: np.ndarray, key: bytes = KEY) -> str:
    return commitment(np.array_split(rows, 3), key)


def test_order_precision_and_blocks_do_not_matter() -> None:
    expected = committed(ROWS)
    assert committed(ROWS[RNG.permutation(300)]) == expected
    assert committed(ROWS.astype(np.float16)) == expected
    assert commitment([ROWS]) == expected


@pytest.mark.parametrize("exponent", [-100, -3, 2, 60])
def test_a_power_of_two_does_not_matter(exponent: int) -> None:
    factor = np.float32(2.0**exponent)
    assert committed(factor * EXACT) == committed(EXACT)
    by_row = np.ldexp(np.float32(1), RNG.integers(-9, 9, len(EXACT)))
    assert committed(by_row[:, None] * EXACT) == committed(EXACT)
    assert np.array_equal((hashed := RowHashes())(factor * EXACT), hashed(EXACT))


@pytest.mark.parametrize("scale", [2.0**-5, 1.0, 900.0])
def test_rows_rounded_to_float16_are_the_same_rows(scale: float) -> None:
    many = scale * RNG.standard_normal((2000, 200)).astype(np.float32) * (RNG.random((2000, 200)) < 0.7)
    many[0, 0] = scale * np.float32(4 - 2**-12)  # rounds to a power of 2
    many[1] = 0
    half = many.astype(np.float16)
    assert committed(half) == committed(many) == committed(4 * many.astype(np.float64))


def test_zeros_have_no_sign_and_stay_zeros() -> None:
    for kind in (np.float16, np.float32):
        assert committed(-np.zeros((5, 3), kind)) == committed(np.zeros((5, 3), np.float32))
    assert committed(np.zeros((5, 3))) != committed(np.full((5, 3), 1e-30, np.float32))


def test_other_factors_are_other_rows() -> None:
    assert committed(3 * EXACT) != committed(EXACT)
    assert committed(-EXACT) != committed(EXACT)


def test_every_row_and_the_key_matter() -> None:
    changed = ROWS.copy()
    changed[7, 3] += 1
    huge = ROWS.copy()
    huge[5] *= 1e9
    variants = [ROWS, ROWS[1:], np.concatenate([ROWS, ROWS[:1]]), changed, huge, 3 * huge, np.zeros_like(ROWS)]
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


def test_rows_in_columns_are_compared_like_others() -> None:
    in_columns = np.asfortranarray(EXACT)
    assert share_a_row([in_columns], lambda: [2 * in_columns[250:]])
    assert not share_a_row([in_columns], lambda: [in_columns + 1])


@pytest.mark.parametrize("change", ["more rows between", "other rows"])
def test_a_digest_of_chosen_rows_does_not_depend_on_the_rows_between_them(tmp_path: Path, change: str) -> None:
    """0.2 hashed them by blocks of the file, so the digest of public shots told how many private rows lie between."""
    rng = np.random.default_rng(0)
    chosen, others = rng.standard_normal((40, 3)).astype(np.float32), rng.standard_normal((3000, 3)).astype(np.float32)
    digests, old = set(), set()
    for number in range(2):
        between = others[: 1500 + 518 * number] if change == "more rows between" else (1 + number) * others
        x = np.concatenate([chosen[:20], between, chosen[20:]])
        keep = np.ones(len(x), dtype=bool)
        keep[20:-20] = False
        names = [f"chosen {place}" for place in range(20)] + [f"r{place}" for place in range(len(between))]
        names += [f"chosen {place}" for place in range(20, 40)]
        path = tmp_path / f"{change} {number}.h5"
        with FeatureWriter(path, Description(("a", "b"), backbone="test")) as writer:
            writer.write_group("train", len(x), 3, [x], np.zeros(len(x), dtype=int), names)
        with FeatureFile(path) as features:
            digests.add(features.digest("train", keep))
            old.add(features.digest("train", keep, by_blocks=True))
            dataset = Dataset(GroupRows(features, "train", ~keep), 2, GroupRows(features, "train", keep))
            for of_block in (False, True):
                assert dataset.has_public_digest(features.digest("train", keep, by_blocks=of_block))
            assert not dataset.has_public_digest(features.digest("train"))
    assert len(digests) == 1
    assert len(old) == (2 if change == "more rows between" else 1)
