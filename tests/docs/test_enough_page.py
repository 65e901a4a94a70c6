"""The limits on attacks in docs/enough.md hold, and are those of the best attack."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

PAGE = Path(__file__).parents[2] / "docs" / "enough.md"
TABLES = [
    [[float(cell.strip(" %")) for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    for table in re.findall(r"(?:^\| [\d.]+ \|.*\n)+", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
]
DELTA = 1e-5


def delta_of(mu: float, epsilon: float) -> float:
    """delta(epsilon) of mu-Gaussian differential privacy."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def test_limits_from_epsilon_and_delta_are_those_of_randomised_response_that_may_fail() -> None:
    """The mechanism that is (epsilon, delta)-DP and easiest to attack: with probability delta it tells the record."""
    for epsilon, right, *found in TABLES[0]:
        lie = (1 - DELTA) / (1 + np.exp(epsilon))
        assert 0 <= right / 100 - (1 - lie) < 1e-3
        for rate, share in zip((0.01, 0.001), found, strict=True):
            # outcomes by likelihood ratio: told (DELTA against 0), truth, lie; a test takes a part of one of them
            truth = 1 - DELTA - lie
            reached = DELTA + truth * min(1, rate / lie) + lie * max(0, (rate - lie) / truth)
            assert 0 <= share / 100 - reached < 1e-3


def test_limits_of_full_batches_are_those_of_telling_two_gaussians_apart() -> None:
    for epsilon, right, *found in TABLES[1]:
        mu = brentq(lambda mu, epsilon: delta_of(mu, epsilon) - DELTA, 1e-3, 6, args=(epsilon,))
        assert 0 <= right / 100 - norm.cdf(mu / 2) < 1.1e-3
        for rate, share in zip((0.01, 0.001), found, strict=True):
            assert 0 <= share / 100 - norm.cdf(norm.ppf(rate) + mu) < 1.1e-3


@pytest.mark.parametrize("table", TABLES)
def test_more_epsilon_never_gives_an_attacker_less(table: list[list[float]]) -> None:
    assert len(table) == 8
    assert (np.diff(table, axis=0) >= 0).all()
    assert all(few <= more for few, more in zip(TABLES[1][4], TABLES[0][4], strict=True))
