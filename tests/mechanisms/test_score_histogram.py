"""The noisy AUROC: sensitivity for rows and people, error of the bins, and noise that its standard error covers."""

import numpy as np
import pytest

from linprobe.accounting.events import TEST_ACCURACY
from linprobe.mechanisms.correct_predictions import NoisyTest
from linprobe.mechanisms.score_histogram import BINS, TEST_AUROC, bins_of, noisy_auroc, score_sums
from linprobe.runs.figures import class_auroc, class_scores, probabilities, sums_of_test_rows
from tests.conftest import mostly_nightly


def problem(n_classes: int, scale: float, n: int = 600, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Rows around one direction per class, their classes, and the weights of a model that knows the directions."""
    g = np.random.default_rng(seed)
    centres = g.normal(size=(n_classes, 8)).astype(np.float32)
    y = g.integers(0, n_classes, n)
    x = (centres[y] + 1.5 * g.normal(size=(n, 8))).astype(np.float32)
    return x, y, scale * centres.T, np.zeros(n_classes, np.float32)


def exact(x: np.ndarray, y: np.ndarray, w: np.ndarray, bias: np.ndarray) -> float:
    return float(np.mean(class_auroc(y, probabilities(class_scores(x, w, bias), w), 0)))


def released(x: np.ndarray, y: np.ndarray, w: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both sums, without noise."""
    blocks = [(x[:256], y[:256]), (x[256:], y[256:])]
    sums = sums_of_test_rows(blocks, w, bias)
    return sums[TEST_AUROC].value, sums[TEST_ACCURACY].value[:, 0]


@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("scale", [0.03, 0.3, 3, 30])
def test_without_noise_the_bins_move_the_auroc_by_less_than_its_error(n_classes: int, scale: float) -> None:
    given = problem(n_classes, scale)
    cells, counts = released(*given)
    area, error = noisy_auroc(cells, 0.0, NoisyTest.of(counts, 0.0))
    assert abs(area - exact(*given)) <= error * 3**0.5  # w, for macro its mean
    if 0.3 <= scale <= 3:
        assert abs(area - exact(*given)) < 0.005
        assert error < 0.03


def test_scores_in_one_bin_have_the_error_of_ties() -> None:
    given = problem(2, 1e-4)
    cells, counts = released(*given)
    area, error = noisy_auroc(cells, 0.0, NoisyTest.of(counts, 0.0))
    assert exact(*given) > 0.7
    assert abs(exact(*given) - area) <= error * 3**0.5
    assert error > 0.05


@pytest.mark.parametrize(
    ("n_classes", "sigma"), mostly_nightly([(2, 2.0), (2, 8.0), (4, 2.0), (4, 5.0)], {(2, 8.0), (4, 2.0)}.__contains__)
)
def test_the_standard_error_covers_the_exact_auroc(n_classes: int, sigma: float) -> None:
    given, g, n = problem(n_classes, 2.0, n=1200), np.random.default_rng(1), 2000
    (cells, counts), s = released(*given), score_sums(np.zeros((1 if n_classes == 2 else n_classes, 2, BINS)))
    std = sigma * s.sensitivity
    found = [
        noisy_auroc(
            cells + std * g.normal(size=cells.shape),
            std,
            NoisyTest.of(counts + sigma * 2**0.5 * g.normal(size=counts.shape), sigma),
        )
        for _ in range(n)
    ]
    area, error = np.array(found).T
    off = area - exact(*given)
    assert abs(off.mean()) < 0.3 * error.mean()
    assert off.std() <= 1.05 * error.mean()  # honest
    assert error.mean() <= 1.6 * off.std()  # and of use
    assert (np.abs(off) <= 1.96 * error).mean() >= 0.94


def test_a_class_lost_in_the_noise_has_no_auroc() -> None:
    cells, counts = released(*problem(3, 1.0, n=60))
    assert noisy_auroc(cells, 1.0, NoisyTest.of(counts, 1.0)) is not None
    assert noisy_auroc(cells, 50.0, NoisyTest.of(counts, 50.0)) is None
    assert noisy_auroc(cells, 500.0, NoisyTest.of(counts, 1.0)) is None  # an error above 0.5
    assert noisy_auroc(np.zeros_like(cells), 0.0, NoisyTest.of(np.zeros_like(counts), 0.0)) is None


def test_probabilities_of_nought_and_one_have_bins() -> None:
    assert bins_of(np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])).ravel().tolist() == [0, BINS - 1, BINS // 2 - 1]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_an_empty_place_moves_the_histograms_by_at_most_the_sensitivity(n_classes: int) -> None:
    x, y, w, bias = problem(n_classes, 1.0, n=120)
    whole, moved, exchanged = sums_of_test_rows([(x, y)], w, bias)[TEST_AUROC], [], []
    for place in range(120):
        emptied, other, label = x.copy(), x.copy(), y.copy()
        emptied[place], other[place], label[place] = 0, -x[place], (y[place] + 1) % n_classes
        moved.append(np.linalg.norm(whole.value - sums_of_test_rows([(emptied, y)], w, bias)[TEST_AUROC].value))
        exchanged.append(np.linalg.norm(whole.value - sums_of_test_rows([(other, label)], w, bias)[TEST_AUROC].value))
    assert set(np.round(moved, 9)) == {np.round({2: 1, 3: 3**0.5}[n_classes], 9)}
    assert max(moved) <= whole.sensitivity
    assert whole.sensitivity < max(exchanged) <= 2 * whole.sensitivity


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("seed", mostly_nightly(range(3), (0).__eq__))
def test_a_person_moves_the_histograms_by_at_most_the_sensitivity(n_classes: int, seed: int) -> None:
    g = np.random.default_rng(seed)
    bounds = np.concatenate([[0], np.cumsum(g.integers(1, 40, 30))])
    x, y, w, bias = problem(n_classes, 1.0, n=int(bounds[-1]), seed=seed)
    x[bounds[3] : bounds[4]], y[bounds[3] : bounds[4]] = x[bounds[3]], y[bounds[3]]  # one bin each, which is the most

    def sums(x: np.ndarray, y: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        blocks = iter([(x[:100], y[:100]), (x[100:], y[100:])])
        return sums_of_test_rows(blocks, w, bias, bounds)[TEST_AUROC].value

    whole, moved, exchanged = sums(x, y, bounds), [], []
    limit = score_sums(np.zeros((1 if n_classes == 2 else n_classes, 2, BINS))).sensitivity
    for person in range(30):
        rows = slice(bounds[person], bounds[person + 1])
        sizes = np.delete(np.diff(bounds), person)
        left = np.delete(x, rows, axis=0), np.delete(y, rows), np.concatenate([[0], np.cumsum(sizes)])
        emptied, label, other = x.copy(), y.copy(), x.copy()
        emptied[rows], other[rows], label[rows] = 0, -x[rows], (y[rows] + 1) % n_classes
        assert np.array_equal(sums(emptied, y, bounds), sums(*left))  # the others stay, bit for bit
        moved.append(np.linalg.norm(whole - sums(*left)))
        exchanged.append(np.linalg.norm(whole - sums(other, label, bounds)))
    assert max(moved) == pytest.approx(moved[3], abs=1e-4)
    assert 0.99 * limit < max(moved) <= limit
    assert limit < max(exchanged) <= 2 * limit
