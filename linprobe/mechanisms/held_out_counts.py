"""Noisy numbers of right and wrong private test rows, and the accuracies that follow from them.

    v = (R; r_1, w_1, ..., r_C, w_C),    R = sum_c r_c
    v~ = v + N(0, s^2 I),    s = sigma sqrt(2)

r_c and w_c are the numbers of test rows of class c that the model labels right and wrong. A test row has one class and
is right or wrong, so it adds 1 to one entry r_c or w_c, and 1 or 0 to R: a vector of norm sqrt(2) at most. An empty
place, a row of zeros, adds nothing. The answer for a row depends on that row and the released model alone, so the
others stay what they are. The sensitivity is sqrt(2) under zero-out of one test row. R is there because it has less
noise than the sum of C noisy counts.

What follows costs nothing: the accuracy is R~ over the public number of test rows, and of a class

    n~ = r~ + w~,    recall = r~ / n~,    var(recall) = s^2 ((1 - recall)^2 + recall^2) / n~^2, about

A class has a recall if n~ is at least `LEAST_ROWS` times s, so that its noise is at most 1 / `LEAST_ROWS`. The balanced
accuracy is the mean recall of these classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.mechanisms.clipping import ClippedSum

SENSITIVITY = math.nextafter(math.sqrt(2), math.inf)
LEAST_ROWS = 4.0


def held_out_counts(cells: NDArray[np.int64]) -> ClippedSum:
    """v for the numbers of right and wrong test rows of each class, (n_classes, 2), to be released; (1 + 2 C, 1)."""
    counts = np.concatenate([[cells[:, 0].sum()], cells.ravel()]).astype(np.float64)
    return ClippedSum(counts[:, None], SENSITIVITY, np.zeros(0))


@dataclass(frozen=True)
class NoisyTest:
    """Released numbers of private test rows.

    Attributes:
        right: R~. by_class: r~ and w~ of each class, shape (n_classes, 2). std: s.
    """

    right: float
    by_class: NDArray[np.float64]
    std: float

    @classmethod
    def of(cls, released: NDArray[np.float64], noise_multiplier: float) -> NoisyTest:
        """From v~, shape (1 + 2 n_classes,), and sigma."""
        return cls(float(released[0]), released[1:].reshape(-1, 2), noise_multiplier * SENSITIVITY)

    def accuracy(self, n_test: int) -> tuple[float, float]:
        """Share of the `n_test` test rows that are right, from 0 to 1, and the standard deviation of its noise."""
        return _within(self.right / n_test), self.std / n_test

    @property
    def recalls(self) -> list[float | None]:
        """Recall of each class, from 0 to 1; None where its rows do not stand out from the noise."""
        rows = self.by_class.sum(axis=1)
        return [
            _within(right / n) if n >= LEAST_ROWS * self.std and n > 0 else None
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
