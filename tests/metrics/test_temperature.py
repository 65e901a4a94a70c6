"""Temperature scaling: against a value computed by hand, and at its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from linprobe.runs.figures import LEAST, fit_temperature

ROWS = np.eye(4, dtype=np.float32)


def fitted(scores: list[list[float]], labels: list[int]) -> float:
    return fit_temperature([(ROWS, np.array(labels))], np.array(scores), np.zeros(2))


def test_confidence_becomes_the_share_that_is_right() -> None:
    """Four equal rows with log odds 5, three of them right: softmax(5 / T) = 3/4, so T = 5 / log 3."""
    assert fitted([[5.0, 0.0]] * 4, [0, 0, 0, 1]) == pytest.approx(5 / np.log(3), rel=1e-4)


def test_rows_that_are_all_right_reach_the_least_temperature() -> None:
    assert fitted([[5.0, 0.0]] * 4, [0] * 4) < 0.1
    assert fitted([[5.0, 0.0]] * 4, [0] * 4) >= LEAST
