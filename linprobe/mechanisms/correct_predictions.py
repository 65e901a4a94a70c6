"""Noisy numbers of correct predictions, and private selection by such a number.

To choose between k models that depend on the same releases, by their correct predictions on the private rows:

    c_j = sum_i (1[model j is correct on record i] - 1/2),   j = 1..k
    c~  = c + N(0, (sigma sqrt(k) / 2)^2 I)

A record adds a vector of k entries -1/2 or 1/2 to c, and an empty place adds zeros, so the sensitivity is sqrt(k) / 2
under zero-out of one record. Counting from 1/2 halves the sensitivity and changes no comparison between models.

Where the rows of a person are one unit, the share s_uj of the rows of person u on which model j is correct stands for
the indicator, and the sum is over people. A person adds entries from -1/2 to 1/2, whatever the number of rows, so the
sensitivity is the same under zero-out of one person. Shares are rounded down to multiples of `SHARE_STEP`, so that
float64 adds them without rounding.

To ask whether a change of the weights harms, of two models that depend on the same releases and on public rows:

    g = sum_i (1[the new model is correct on record i] - 1[the old one is]),    g~ = g + N(0, sigma^2)

A record adds -1, 0 or 1, and an empty place adds 0, so the sensitivity is 1. The shares of a person differ by at most
1. Before the release, g / n for n units is expected to be m, a public number, with a variance v of `VARIANCE`. So
afterwards g is expected to be negative, and the change to harm, if g~ < -m sigma^2 / (v n).

To test one model on private test rows:

    v = (R; r_1, w_1, ..., r_C, w_C),    R = sum_c r_c
    v~ = v + N(0, s^2 I),    s = sigma sqrt(2)

r_c and w_c are the numbers of correct and wrong predictions for test rows of class c. A test row has one class and one
prediction, so it adds 1 to one entry r_c or w_c, and 1 or 0 to R: a vector of norm sqrt(2) at most. An empty place, a
row of zeros, adds nothing. The prediction for a row depends on that row and the released model alone, so the others
stay the same. The sensitivity is sqrt(2) under zero-out of one test row. R has less noise than the sum of C noisy
counts.

Where the test rows of a person are one unit, person u adds the shares of their rows: a_uc of class c and predicted
correctly, b_uc of class c and predicted wrongly, all rounded down to multiples of `SHARE_STEP`, and A_u = sum_c a_uc.
They are 0 or more, and add up to at most 1. So, whatever the number of rows,

    A_u^2 + sum_c (a_uc^2 + b_uc^2) <= A_u^2 + A_u^2 + (1 - A_u)^2 <= 2,

as the middle is convex in A_u, with 2 at A_u = 1 and 1 at A_u = 0. The sensitivity is sqrt(2) under zero-out of one
test person. Each person is scored alone, so that nobody moves the others.

What follows costs nothing: the accuracy is R~ over the public number of test rows, or of test people, and of a class

    n~ = r~ + w~,    recall = r~ / n~,    var(recall) = s^2 ((1 - recall)^2 + recall^2) / n~^2, about

A class has a recall if n~ is at least `LEAST_SIGNAL` times s, so that its noise is at most 1 / `LEAST_SIGNAL`. The
balanced accuracy is the mean recall of these classes.

Private selection: the best of a random number of runs, each with a setting drawn at random (Liu and Talwar 2019,
"Private selection from private candidates"; Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential
privacy", Algorithm 2 with eta = 1):

    1  K <- geometric on 1, 2, ... with mean m
    2  for k = 1..K:  j <- uniform among the settings;  (score, output) <- run(j), with fresh noise
    3  return the output with the highest score

Guarantee: `linprobe.accounting.selection`, if run(j) is private for every j, its score included. It holds for the
returned output alone. K, the other scores and the other outputs must not leave: they are not returned, and the time
that the selection takes must stay secret as well. All choices come from the system's entropy and are exact:
P(K = k) = (1 - 1/m)^(k-1) / m.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from linprobe.mechanisms.gaussian import ClippedSum
from linprobe.parallel.array_api import Reals

GAIN = "refinement gain"  # purpose of the release of g
USUAL_GAIN, VARIANCE = 0.02, 0.001  # m is from -`USUAL_GAIN` to `USUAL_GAIN`; v
SHARE_STEP = 2.0**-20
SENSITIVITY = math.nextafter(math.sqrt(2), math.inf)  # of the numbers of test rows, or the shares of test people
LEAST_SIGNAL = 4.0
_Output = TypeVar("_Output")


def correct_counts_sensitivity(n_models: int) -> float:
    """sqrt(k) / 2, rounded up."""
    return math.nextafter(math.sqrt(n_models) / 2, math.inf)


def correct_counts(counted: Sequence[tuple[float, float]], n_tracked: int) -> ClippedSum:
    """c for k models, shape (k, 1), to be released.

    Args:
        counted: for each model, the numbers of its correct predictions and of all private rows that are present; or
            the sum of the shares of all people, multiples of `SHARE_STEP`, and the number of people present.
        n_tracked: number of units in this process whose contribution is recorded; each contributes in full.
    """
    centred: Reals = np.array([[correct - present / 2] for correct, present in counted])
    return ClippedSum(centred, correct_counts_sensitivity(len(counted)), np.ones(n_tracked))


@dataclass(frozen=True)
class NoisyGain:
    """g~, as `count`, the standard deviation sigma of its noise, `std`, and m, `expected`."""

    count: float
    std: float
    expected: float

    def least(self, n_units: int) -> float:
        """The count of `n_units` units below which the new model is expected to be worse."""
        return -self.expected * self.std * self.std / (VARIANCE * n_units)

    def harms(self, n_units: int) -> bool:
        """Whether the new model is expected to be worse on `n_units` units."""
        return self.count < self.least(n_units)


def gain(before: tuple[float, float], after: tuple[float, float], n_tracked: int) -> ClippedSum:
    """g, shape (1, 1), to be released. Arguments as one entry of `counted`, and as `n_tracked`, in `correct_counts`."""
    return ClippedSum(np.array([[after[0] - before[0]]]), 1.0, np.ones(n_tracked))


def held_out_counts(cells: Reals) -> ClippedSum:
    """v, shape (1 + 2 C, 1), to be released, from numbers or shares that are correct and wrong, (n_classes, 2)."""
    counts = np.concatenate([[cells[:, 0].sum()], cells.ravel()]).astype(np.float64)
    return ClippedSum(counts[:, None], SENSITIVITY, np.zeros(0))


@dataclass(frozen=True)
class NoisyTest:
    """Released numbers, or people's shares: `right` is R~, `by_class` r~ and w~, shape (n_classes, 2), `std` s."""

    right: float
    by_class: Reals
    std: float

    @classmethod
    def of(cls, released: Reals, noise_multiplier: float) -> NoisyTest:
        """From v~, shape (1 + 2 n_classes,), and sigma."""
        return cls(float(released[0]), released[1:].reshape(-1, 2), noise_multiplier * SENSITIVITY)

    def accuracy(self, n_test: int) -> tuple[float, float]:
        """Share of correct predictions for `n_test` test rows or people, from 0 to 1, and the std of its noise."""
        return _within(self.right / n_test), self.std / n_test

    @property
    def recalls(self) -> list[float | None]:
        """Recall of each class, from 0 to 1; None where its rows do not stand out from the noise."""
        rows = self.by_class.sum(axis=1)
        return [
            _within(right / n) if n >= LEAST_SIGNAL * self.std and n > 0 else None
            for right, n in zip(self.by_class[:, 0].tolist(), rows.tolist(), strict=True)
        ]

    @property
    def balanced(self) -> tuple[float, float] | None:
        """Mean of the recalls and the standard deviation of its noise, about; None without any."""
        rows = self.by_class.sum(axis=1).tolist()
        found = [(recall, n) for recall, n in zip(self.recalls, rows, strict=True) if recall is not None]
        if not found:
            return None
        variance = sum(self.std**2 * ((1 - recall) ** 2 + recall**2) / n**2 for recall, n in found)
        return sum(recall for recall, _ in found) / len(found), math.sqrt(variance) / len(found)


def _within(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def geometric(mean: int) -> int:
    """A whole number K >= 1 with P(K = k) = (1 - 1/mean)^(k-1) / mean, for a whole `mean` of at least 1."""
    count = 1
    while secrets.randbelow(mean):
        count += 1
    return count


def private_selection(run: Callable[[int], tuple[float, _Output]], n_settings: int, mean_repetitions: int) -> _Output:
    """The output with the highest score among K runs.

    Args:
        run: from a setting, 0 to n_settings - 1, to a score and an output, with fresh noise at every call. It must not
            fail for a reason that depends on private rows.
        mean_repetitions: m, at least 2.
    Raises ValueError: fewer settings than 1 or a mean below 2.
    """
    if n_settings < 1 or mean_repetitions < 2:
        raise ValueError(
            f"n_settings is {n_settings}, allowed: from 1; mean_repetitions is {mean_repetitions}, allowed: from 2"
        )
    best = run(secrets.randbelow(n_settings))
    for _ in range(geometric(mean_repetitions) - 1):
        one = run(secrets.randbelow(n_settings))
        if one[0] > best[0]:
            best = one
    return best[1]
