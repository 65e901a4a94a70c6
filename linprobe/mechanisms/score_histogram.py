"""A noisy AUROC of released weights on private test rows, from histograms of scores.

The AUROC of class c against the others is the probability that a row of c has a higher score than another row, where a
tie counts one half. The score of a row for class c, of C classes, is monotone in its probability p_c:

    u = log(p_c / (1 - p_c)) + log(C - 1)        0 for a probability of 1 / C

Public `EDGES` cut u into `BINS` bins, narrow near 0 and wider away from it, so that scores of any scale fill several.
For each class,

    p_b = number of rows of c in bin b,    q_b = number of other rows in bin b
    v~ = (p, q of each class) + N(0, s^2 I),    s = sigma sqrt(H)

H = C histograms of 2 `BINS` cells. Two classes have the same AUROC, so there H = 1, of the second class. A test row
adds 1 to one cell of each histogram, and an empty place nothing. The score of a row depends on that row and the
released model alone. So the sensitivity is sqrt(H) under zero-out of one test row.

Where the test rows of a person are one unit, the person adds the share of the rows in each cell, rounded down to
multiples of `SHARE_STEP`. In each histogram these are 0 or more and add up to at most 1, so their norm is at most 1,
and the sensitivity is sqrt(H) again, whatever the number of rows. A row then weighs 1 / (rows of its person) in the
AUROC.

What follows costs nothing. The released counts of correct and wrong predictions (`correct_predictions.NoisyTest`) give
the totals P of p and Q of q with far less noise than the sum of a histogram. So the excess of each noisy p and q over P
and Q is taken from its bins in equal parts, the least-squares fit, and

    AUROC = sum_b p_b (q_1 + ... + q_{b-1} + q_b / 2) / (P Q) = sum_b p_b F_b / P = sum_b q_b G_b / Q

with the shares F_b of other rows below bin b, and G_b of rows of c above it, where half of bin b counts. To first order
in the noise its variance is

    s^2 (sum_b (F_b - mean F)^2 / P^2 + sum_b (G_b - mean G)^2 / Q^2)        of the histogram
    var(P) (mean F - AUROC)^2 / P^2 + var(Q) (mean G - AUROC)^2 / Q^2        of the totals

Noise in F and G makes the first sums larger on average, by twice the second-order variance that is left out: the
estimate errs upwards. Rows of one bin count as ties, so the exact AUROC is off by at most w = sum_b p_b q_b / (2 P Q).
The standard error adds w^2 / 3, the variance of an error that is uniform between -w and w. It does not cover which test
rows were drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from linprobe.mechanisms.correct_predictions import LEAST_SIGNAL, NoisyTest
from linprobe.mechanisms.gaussian import ClippedSum
from linprobe.parallel.array_api import Indices, Reals

TEST_AUROC = "test AUROC"  # purpose of the release
AUROC_SHARE = 1 / 4  # of mu^2 of the releases on private test rows
BINS = 24
MOST_ERROR = 0.25  # standard error of a released AUROC
EDGES = 0.2 * np.sinh(0.4 * np.arange(1 - BINS // 2, BINS // 2))  # of u, from -8.1 to 8.1, 0.08 apart around 0


def n_histograms(n_classes: int) -> int:
    """H."""
    return 1 if n_classes == 2 else n_classes


def bins_of(probability: Reals) -> Indices:
    """The bin of each row for each histogram, (b, H), from class probabilities (b, n_classes)."""
    n_classes = probability.shape[1]
    share = probability[:, -n_histograms(n_classes) :]
    with np.errstate(divide="ignore"):  # a probability of 0 or 1 is in the first or the last bin
        odds = np.log(share) - np.log1p(-np.minimum(share, 1)) + math.log(n_classes - 1)
    return np.searchsorted(EDGES, odds).astype(np.int64)


def score_sums(cells: Reals) -> ClippedSum:
    """v, shape (2 H BINS, 1), to be released, from the numbers or shares p and q, shape (H, 2, BINS)."""
    sensitivity = math.nextafter(math.sqrt(len(cells)), math.inf)
    return ClippedSum(cells.reshape(-1, 1), sensitivity, np.zeros(0))


@dataclass(frozen=True)
class NoisyScores:
    """Released histograms of scores: `cells` are p~ and q~, shape (H, 2, BINS), and `std` is s."""

    cells: Reals
    std: float

    @classmethod
    def of(cls, released: Reals, noise_multiplier: float) -> NoisyScores:
        """From v~, of 2 H BINS numbers in any shape, and sigma."""
        cells = np.asarray(released, dtype=np.float64).reshape(-1, 2, BINS)
        return cls(cells, noise_multiplier * score_sums(cells).sensitivity)


def expected_error(noise_multiplier: float, n_rows: int, n_classes: int) -> float:
    """The standard error to expect for `n_rows` test rows, or people, in equal classes that are well apart; public.

    F and G are then 0 in some bins and 1 in the others, so each sum over bins is at most BINS / 4; the histograms have
    noise of their own, so H cancels. The errors in the table of `docs/metrics.md` are 0.7 to 0.9 of that.
    """
    own = n_rows / n_classes
    return 0.8 * noise_multiplier * math.sqrt(BINS / 4 * (1 / own**2 + 1 / (n_rows - own) ** 2))


def noisy_auroc(released: Reals, std: float, tested: NoisyTest) -> tuple[float, float] | None:
    """Mean AUROC of the classes whose totals stand out from their noise, and its standard error.

    None without such a class, and for an error above `MOST_ERROR`: two of it reach from guessing to certainty.

    Args:
        released: v~, shape (2 H BINS, 1). std: s. tested: the released counts of the same rows.
    """
    rows, of_row = tested.by_class.sum(axis=1), 2 * tested.std**2  # of a class, and the variance of their noise
    histograms = released.reshape(-1, 2, BINS)
    found = []
    for index, cells in enumerate(histograms, start=len(rows) - len(histograms)):
        totals = np.array([rows[index], rows.sum() - rows[index]])
        variance = np.array([of_row, of_row * (len(rows) - 1)])
        if (totals > 0).all() and (totals >= LEAST_SIGNAL * np.sqrt(variance)).all():
            found.append(_one_auroc(cells, std, totals, variance))
    if not found:
        return None
    area, from_bins, from_totals, ties = np.array(found).T
    n = len(found)  # histograms have noise of their own, totals share theirs, so their errors may add up
    error = math.sqrt(from_bins.sum() / n**2 + np.sqrt(from_totals).mean() ** 2 + ties.mean() ** 2 / 3)
    return None if error > MOST_ERROR else (min(max(float(area.mean()), 0.0), 1.0), error)


def _one_auroc(cells: Reals, std: float, totals: Reals, variance: Reals) -> tuple[float, float, float, float]:
    """AUROC of one histogram (2, BINS); the variances of its noise from the bins and from the totals; and w."""
    share = (cells - (cells.sum(axis=1) - totals)[:, None] / BINS) / totals[:, None]
    below = np.cumsum(share[1]) - share[1] / 2
    above = np.cumsum(share[0][::-1])[::-1] - share[0] / 2
    area, curves = float(share[0] @ below), np.stack([below, above])
    mean = curves.mean(axis=1)
    from_bins = float((std**2 * ((curves - mean[:, None]) ** 2).sum(axis=1) / totals**2).sum())
    from_totals = float((variance * (mean - area) ** 2 / totals**2).sum())
    return area, from_bins, from_totals, float(np.maximum(share, 0).prod(axis=0).sum() / 2)
