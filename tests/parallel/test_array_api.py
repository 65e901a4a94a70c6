"""Sets of numbers as sorted arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.parallel.array_api import among, distinct

NUMBERS = st.lists(st.integers(0, 9) | st.integers(0, 2**64 - 1), max_size=20).map(lambda n: np.array(n, np.uint64))


@given(NUMBERS, NUMBERS)
def test_distinct_numbers_and_those_among_others_are_numpys(values: np.ndarray, others: np.ndarray) -> None:
    known = distinct(others)
    assert np.array_equal(known, np.unique(others))
    assert known.dtype == others.dtype
    assert np.array_equal(among(values, known), np.isin(values, others))


@pytest.mark.parametrize("known", [0, 3])
def test_the_mask_has_the_shape_of_the_values(known: int) -> None:
    assert among(np.ones((2, 5), np.uint64), np.arange(known, dtype=np.uint64)).shape == (2, 5)
