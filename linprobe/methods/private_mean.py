"""A noisy mean of unit rows: one Gaussian release of their sum, shrunk by the share of noise in it.

Sun, Suresh, Menon, "The importance of feature preprocessing for differentially private linear optimization", ICLR 2024,
Algorithm 3, line 1. The paper omits the factor 1/N of the noise. The second line is ours.

    1  m <- 1/N (sum_i x_i + N(0, sigma_m^2 I)),  ||x_i|| = 1, so one record moves the sum by at most 1;
       rows are summed at length 1 - 2^-10, a margin for rounding, and the released sum is divided by it
    2  m <- m_0 + (m - m_0) s / (s + D (sigma_m / N)^2),  s = ||m - m_0||^2 - D (sigma_m / N)^2, from 0 to 1,
       which estimates the true one; m_0 is 0, or a public guess of the mean that is nearer to m: the mean of unlabelled
       rows, or of text vectors. The guess stays as it is where noise may explain the distance: up to
       ||m - m_0||^2 = (1 + 3 sqrt(2 / D)) D (sigma_m / N)^2, three standard deviations

Guarantee: 1/sigma_m - Gaussian DP under zero-out of one record, or of one person, whose rows count by their mean.
"""

import math

import numpy as np

from linprobe.data.blocks import SHORTEST_ROW, normalise_rows
from linprobe.data.rows import Rows
from linprobe.gradients.clipped_sum import row_sum
from linprobe.gradients.rounding import SMALLEST_MARGIN
from linprobe.methods._base import Run
from linprobe.parallel.array_api import Floats, Reals

MEAN = "mean"
DOUBT = 3.0  # standard deviations of squared noise within which a guess stays
LEAST_NOISE, NOISE_OF_OWN = 0.3, 0.75  # of a mean, in lengths of a row and of what is its own
OWN_DOUBT, LEAST_OWN, ENOUGH_OWN = 1.0, 0.2, 2 / 3


def released_mean(rows: Rows, run: Run, guess: Reals | None = None) -> Reals:
    """The mean of unit rows, shape (n_features,); m_0 is `guess` or 0, whichever is nearer to the released mean."""
    released = run.released(row_sum(rows, 1.0, all_reduce=run.group.all_reduce), MEAN)
    length = 1 - SMALLEST_MARGIN if rows.bounds is None else 1.0  # of summed rows; the means of people are shorter
    return shrunk_mean(released[:, 0] / length, run.schedule.others[MEAN] / length, rows.n_rows, guess)


def text_mean(text: Reals | None) -> Reals | None:
    """The mean of text vectors (n_features, n_classes) at unit length, as a guess of the mean of unit rows."""
    return None if text is None else _unit_mean(text)


def _unit_mean(text: Floats) -> Reals:
    return np.asarray(normalise_rows(text.T.astype(np.float32)).mean(axis=0, dtype=np.float64))


def largest_noise(text: Floats) -> float:
    """Most noise of a mean, in lengths of a row, with text vectors (n_features, n_classes) as a start.

    It is 3/4 r, at least 0.3: r is the root mean squared distance of the unit vectors from their mean. Rows are about
    as alike as these, and the scores of such a start vanish in noise that is much longer than r.
    """
    mean = _unit_mean(text)
    return max(LEAST_NOISE, NOISE_OF_OWN * math.sqrt(max(0.0, 1 - float(mean @ mean))))


def expected_squared_norm(mean: Reals, error: float) -> float:
    """Mean squared norm of unit rows around a mean with noise of std `error`: E ||x - m||^2 = 1 - ||m||^2 or so."""
    return max(min(SHORTEST_ROW**2, 2 * error), 1 - float(mean @ mean))


def longer_steps(mean: Reals, error: float) -> float:
    """Factor on the steps of a start from zero around m: 2 / (3 o), at least 1; o is at least `LEAST_OWN`.

    o is the share of the length of a row around m that is its own, with `OWN_DOUBT` standard errors off its square; the
    rest is noise of m, alike in all rows. Rows that are nearly alike have little of their own, and learn slowly.

    Args:
        mean: m of line 2 with m_0 = 0, shape (n_features,). error: sigma_m / N, noise of a coordinate before line 2.
    """
    noise, squared = len(mean) * error**2, float(mean @ mean)
    signal = (squared + math.sqrt(squared**2 + 4 * squared * noise)) / 2  # s of line 2, from s^2 / (s + noise)
    own = 1 - signal - OWN_DOUBT * error * math.sqrt(4 * signal + 2 * noise)
    left = signal * noise / (signal + noise) if noise else 0.0
    share = math.sqrt(own / (own + left)) if own > 0 else 0.0
    return max(1.0, ENOUGH_OWN / max(share, LEAST_OWN))


def shrunk_mean(total: Reals, noise_multiplier: float, n_private: int, guess: Reals | None = None) -> Reals:
    """Line 2 from the released sum of unit rows, shape (n_features,); `guess` itself where it stays."""
    mean, start, doubt = total / n_private, np.zeros_like(total), 0.0
    if guess is not None and np.linalg.norm(mean - guess) < np.linalg.norm(mean):
        start, doubt = guess, DOUBT * math.sqrt(2 / len(mean))
    offset = mean - start
    noise = len(offset) * (noise_multiplier / n_private) ** 2
    squared = float(offset @ offset)
    signal = min(squared - noise, 1.0) if squared > (1 + doubt) * noise else 0.0
    return np.asarray(start + offset * (signal / (signal + noise))) if signal else start
