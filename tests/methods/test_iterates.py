"""The step of gradient descent that several methods share."""

from __future__ import annotations

import numpy as np
import pytest

from linprobe.methods._base import descended
from linprobe.parallel.array_api import PART

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("shape", [(1, 1), (3, PART), (2 * PART // 7, 21), (5, 0)])
def test_a_step_is_the_same_in_slices_as_at_once(shape: tuple[int, int]) -> None:
    weights, reference, first, second = RNG.standard_normal((4, *shape))
    step = (weights - reference) * 0.3 + first + second
    before = weights.copy()
    assert np.array_equal(descended(weights, 0.7, [first, second], 0.3, reference), step * -0.7 + weights)
    assert np.array_equal(weights, before)
