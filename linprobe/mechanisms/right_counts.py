"""Noisy numbers of right private rows, for several models that depend on the same releases.

    c_j = sum_i (1[model j is right on record i] - 1/2),   j = 1..k
    c~  = c + N(0, (sigma sqrt(k) / 2)^2 I)

A record adds a vector of k entries -1/2 or 1/2 to c, and an empty place adds zeros, so the sensitivity is sqrt(k) / 2
under zero-out of one record. Counting from 1/2 halves the sensitivity and changes no comparison between models.

Where the rows of a person are one unit, the share s_uj of the rows of person u on which model j is right stands for
the indicator, and the sum is over people. A person adds entries from -1/2 to 1/2, whatever the number of rows, so the
sensitivity is the same under zero-out of one person. Shares are rounded down to multiples of `SHARE_STEP`, so that
float64 adds them without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linprobe.mechanisms.clipping import ClippedSum

SHARE_STEP = 2.0**-20


def right_counts_sensitivity(n_models: int) -> float:
    """sqrt(k) / 2, rounded up."""
    return math.nextafter(math.sqrt(n_models) / 2, math.inf)


def right_counts(counted: Sequence[tuple[float, float]], n_tracked: int) -> ClippedSum:
    """c for k models, shape (k, 1), to be released.

    Args:
        counted: for each model, the numbers of private rows that it labels right and of all that are present; or the
            sum of the shares of all people, multiples of `SHARE_STEP`, and the number of people present.
        n_tracked: number of units in this process whose contribution is recorded; each contributes in full.
    """
    centred: NDArray[np.float64] = np.array([[right - present / 2] for right, present in counted])
    return ClippedSum(centred, right_counts_sensitivity(len(counted)), np.ones(n_tracked))
