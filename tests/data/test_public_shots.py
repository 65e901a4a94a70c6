"""Public shots depend on record ids and the split seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.data.dataset import public_shots
from linprobe.errors import DataError

NAMES = ("ant", "bee", "cat")
IDS = [f"record {row}" for row in range(60)]
LABELS = np.arange(60) % 3


def chosen(ids: list[str], labels: np.ndarray, shots: int, seed: int) -> set[str]:
    mask = public_shots(ids, labels, NAMES, shots, seed)
    return {name for name, public in zip(ids, mask, strict=True) if public}


@given(order=st.permutations(range(60)), shots=st.integers(1, 19), seed=st.integers(0, 2**64))
def test_order_of_the_rows_does_not_change_who_is_public(order: list[int], shots: int, seed: int) -> None:
    shuffled = [IDS[row] for row in order]
    assert chosen(shuffled, LABELS[order], shots, seed) == chosen(IDS, LABELS, shots, seed)


@given(shots=st.integers(0, 19), seed=st.integers(0, 2**64))
def test_every_class_gives_exactly_its_shots(shots: int, seed: int) -> None:
    mask = public_shots(IDS, LABELS, NAMES, shots, seed)
    assert np.bincount(LABELS[mask], minlength=3).tolist() == [shots] * 3


@given(shots=st.integers(1, 9), seed=st.integers(0, 2**64))
def test_rows_of_another_class_do_not_change_who_is_public(shots: int, seed: int) -> None:
    fewer = LABELS != 2
    mask = np.zeros(60, dtype=bool)
    mask[fewer] = public_shots(
        [name for name, kept in zip(IDS, fewer, strict=True) if kept], LABELS[fewer], NAMES[:2], shots, seed
    )
    assert np.array_equal(mask[fewer], public_shots(IDS, LABELS, NAMES, shots, seed)[fewer])


def test_more_shots_keep_those_already_public() -> None:
    assert chosen(IDS, LABELS, 2, 5) < chosen(IDS, LABELS, 6, 5)


def test_seeds_choose_different_rows() -> None:
    assert len({frozenset(chosen(IDS, LABELS, 3, seed)) for seed in range(20)}) == 20


def test_every_row_is_public_under_some_seed() -> None:
    ever = set().union(*(chosen(IDS, LABELS, 5, seed) for seed in range(60)))
    assert ever == set(IDS)


def test_more_shots_than_rows_of_a_class_are_refused_with_its_name() -> None:
    labels = np.where(np.arange(60) < 58, LABELS % 2, 2)
    with pytest.raises(DataError, match=r"public shots is 3, but class 'cat' has fewer training rows"):
        public_shots(IDS, labels, NAMES, 3, 0)


def test_taking_every_training_row_is_refused() -> None:
    with pytest.raises(DataError, match="take every training row"):
        public_shots(IDS, LABELS, NAMES, 20, 0)
