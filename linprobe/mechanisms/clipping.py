"""Clip factors and the sensitivity they buy.

Under add/remove adjacency, `sum_i c_i g_i` with `c_i = min(1, tau / ||g_i||)` moves by at most tau when one record
joins or leaves. Rows and residuals are float32, and up to 2^20 rows so are the sums within a block of rows. A record
that leaves shifts the rows after it, so every block rounds anew, and the error grows with their number. The factor
therefore aims below tau by a margin that grows with it too; tests/mechanisms/test_clipping.py measures that this is
enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SMALLEST_MARGIN = 2.0**-10
LARGEST_FLOAT32_ROWS = 2**20


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A sum over private rows together with what one record can do to it. Not private by itself: add noise.

    Attributes:
        value: the sum, shape (n_features, n_classes), float64.
        sensitivity: L2 bound on the change when one record is added or removed.
        contributions: each record's own contribution norm divided by `sensitivity`, shape (n_rows,), in [0, 1].
    """

    value: NDArray[np.float64]
    sensitivity: float
    contributions: NDArray[np.float64]


def rounding_margin(n_rows: int) -> float:
    """Share of the clip norm kept free for rounding in a sum over `n_rows` rows (public).

    2^-10, and 2^-25 for each row where blocks are summed in float32, with the number of rows rounded up to a power of
    two, so that neighbouring data sets share it: 0.3 % at 50,000 rows, 3.2 % at 2^20. The worst case measured is
    2.8e-8 a row.
    """
    if n_rows > LARGEST_FLOAT32_ROWS:
        return SMALLEST_MARGIN
    return SMALLEST_MARGIN + 2.0 ** ((n_rows - 1).bit_length() - 25)


def clip_factors(norms: NDArray[np.float64], clip_norm: float, margin: float) -> NDArray[np.float64]:
    """Factors c, shape (n,), with `c * norms <= clip_norm (1 - margin)`; an infinite clip norm gives ones."""
    bound = clip_norm * (1 - margin)
    with np.errstate(divide="ignore"):
        return np.minimum(1.0, bound / norms)


def relative_contributions(clipped_norms: NDArray[np.float64], clip_norm: float, margin: float) -> NDArray[np.float64]:
    """Contribution norms in units of the sensitivity, rounding margin included, at most 1."""
    return np.minimum(1.0, clipped_norms / clip_norm + margin)
