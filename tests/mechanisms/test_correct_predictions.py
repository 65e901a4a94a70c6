"""Counts of private test rows: sensitivity, accuracies with the noise they state, and classes lost in the noise."""

import numpy as np
import pytest

from linprobe.accounting.events import TEST_ACCURACY
from linprobe.mechanisms.correct_predictions import SENSITIVITY, NoisyTest, held_out_counts
from linprobe.runs.figures import sums_of_test_rows
from tests.conftest import mostly_nightly

G = np.random.default_rng(6)
X = G.normal(size=(150, 4)).astype(np.float32)
Y = G.integers(0, 3, 150)
W, BIAS = G.normal(size=(4, 3)).astype(np.float32), np.zeros(3, np.float32)


def counts(x: np.ndarray) -> np.ndarray:
    return sums_of_test_rows([(x[:64], Y[:64]), (x[64:], Y[64:])], W, BIAS)[TEST_ACCURACY].value


def test_an_empty_place_moves_the_counts_by_at_most_the_sensitivity() -> None:
    whole, moved = counts(X), []
    assert whole[1:].sum() == 150
    assert whole[0] == whole[1::2].sum()
    for place in range(150):
        x = X.copy()
        x[place] = 0
        moved.append(np.linalg.norm(whole - counts(x)))
    assert set(np.round(moved, 9)) == {1.0, np.round(2**0.5, 9)}  # a wrong row and a right one
    assert max(moved) <= SENSITIVITY


def test_accuracies_have_the_noise_that_they_state() -> None:
    cells, sigma, n = np.array([[60, 20], [90, 10], [40, 30]]), 4.0, 4000
    exact = held_out_counts(cells).value[:, 0]
    noisy = exact + sigma * SENSITIVITY * G.normal(size=(n, 7))
    found = [NoisyTest.of(one, sigma) for one in noisy]
    for values, truth in (
        (np.array([one.accuracy(250) for one in found]), 190 / 250),
        (np.array([one.balanced for one in found]), (60 / 80 + 0.9 + 4 / 7) / 3),
    ):
        assert values[:, 0].mean() == pytest.approx(truth, abs=0.01)
        assert values[:, 0].std() == pytest.approx(values[:, 1].mean(), rel=0.1)


def test_a_class_lost_in_the_noise_has_no_recall() -> None:
    tested = NoisyTest.of(np.array([70.0, 50, 10, 3, 2, 20, -2]), 1.0)
    assert tested.recalls == [50 / 60, None, 1.0]
    assert tested.balanced == (pytest.approx((50 / 60 + 1) / 2), pytest.approx(0.0405, abs=0.0001))
    assert NoisyTest.of(np.zeros(7), 1.0).balanced is None
    assert NoisyTest.of(np.zeros(7), 0.0).balanced is None


@pytest.mark.parametrize("seed", mostly_nightly(range(3), (0).__eq__))
def test_a_person_moves_the_shares_by_at_most_the_sensitivity(seed: int) -> None:
    g = np.random.default_rng(seed)
    bounds = np.concatenate([[0], np.cumsum(g.integers(1, 40, 30))])
    x, y = g.normal(size=(bounds[-1], 4)).astype(np.float32), g.integers(0, 3, bounds[-1])
    x[bounds[3] : bounds[4]] = x[bounds[3]]  # a person whose rows are all right, which is the most
    y[bounds[3] : bounds[4]] = (x[bounds[3]] @ W).argmax()

    def sums(x: np.ndarray, y: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        blocks = iter([(x[:100], y[:100]), (x[100:], y[100:])])
        return sums_of_test_rows(blocks, W, BIAS, bounds)[TEST_ACCURACY].value

    whole, moved, exchanged = sums(x, y, bounds), [], []
    assert whole[0] == whole[1::2].sum()
    assert whole[1:].sum() == pytest.approx(30, abs=30 * 6 * 2**-20)
    for person in range(30):
        rows = slice(bounds[person], bounds[person + 1])
        sizes = np.delete(np.diff(bounds), person)
        left = np.delete(x, rows, axis=0), np.delete(y, rows), np.concatenate([[0], np.cumsum(sizes)])
        emptied, other = x.copy(), y.copy()
        emptied[rows] = 0
        assert np.array_equal(sums(emptied, y, bounds), sums(*left))  # the others stay, bit for bit
        moved.append(np.linalg.norm(whole - sums(*left)))
        other[rows] = (y[rows] + 1) % 3
        exchanged.append(np.linalg.norm(whole - sums(x, other, bounds)))
    assert min(moved) > 0.5
    assert max(moved) == moved[3] == np.sqrt(2)
    assert max(moved) <= SENSITIVITY
    assert max(exchanged) <= 2 * SENSITIVITY
