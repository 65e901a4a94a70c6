"""The packed sum of outer products: its sensitivity, its bits, and what it unpacks to."""

import numpy as np
import pytest

from linprobe.data.blocks import normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.gradients import second_order as module
from linprobe.gradients.second_order import lower_triangle, second_moment

N, D = 2500, 19


def rows_of(x: np.ndarray) -> ArrayRows:
    return ArrayRows(x.astype(np.float32), np.zeros(len(x), np.int64))


def unit_rows(n: int = N, d: int = D) -> np.ndarray:
    return normalise_rows(np.random.default_rng(2).normal(size=(n, d)).astype(np.float32) + 0.3)


@pytest.fixture(autouse=True)
def several_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRIPE", 8)


def test_the_packed_sum_unpacks_to_the_second_moment() -> None:
    x = unit_rows()
    moment = second_moment(rows_of(x))
    expected = np.tril(x.T.astype(np.float64) @ x)
    assert moment.value.shape == (D * (D + 1) // 2, 1)
    np.testing.assert_allclose(lower_triangle(moment.value, D), expected * (1 - module.arithmetic().margin), rtol=1e-5)


@pytest.mark.parametrize(
    "record",
    [np.ones(D), np.eye(D)[4], 1e3 * np.ones(D), 3e38 * np.eye(D)[0], 1e-42 * np.ones(D), np.zeros(D)],
    ids=["spread", "one feature", "long", "huge", "denormal", "zero"],
)
def test_one_record_moves_the_sum_by_its_contribution_and_at_most_by_the_sensitivity(record: np.ndarray) -> None:
    with_record, without = unit_rows(), unit_rows()
    with_record[7], without[7] = record, 0
    one, other = second_moment(rows_of(with_record)), second_moment(rows_of(without))
    moved = np.linalg.norm(one.value - other.value)
    assert one.sensitivity == 1
    assert moved <= one.contributions[7] <= 1
    assert one.contributions[7] <= moved + 2e-2


def test_a_unit_row_moves_the_packed_sum_by_its_whole_length() -> None:
    empty = np.zeros((3, D))
    for row in (np.ones(D), np.eye(D)[2], np.arange(D)):
        x = empty.copy()
        x[1] = row / np.linalg.norm(row)
        assert np.linalg.norm(second_moment(rows_of(x)).value) == pytest.approx(1, abs=3e-3)


def test_the_sum_has_the_same_bits_for_any_number_of_threads_and_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    x = unit_rows(5000)
    whole = second_moment(rows_of(x)).value
    monkeypatch.setattr(module, "n_threads", lambda: 3)
    np.testing.assert_array_equal(second_moment(rows_of(x)).value, whole)
    parts: list[np.ndarray] = []
    for first, stop in ((0, 4096), (4096, 5000)):
        shard = rows_of(x[first:stop]).as_shard(first, len(x))
        second_moment(shard, all_reduce=lambda total: parts.append(total) or total)
    reduced = second_moment(rows_of(x), all_reduce=lambda total: parts[0] + parts[1]).value
    np.testing.assert_array_equal(reduced, whole)
