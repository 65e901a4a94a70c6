"""Clip factors and the sensitivity they buy.

Under add/remove adjacency, `sum_i c_i g_i` with `c_i = min(1, tau / ||g_i||)` moves by at most tau when one record
joins or leaves. Rows and residuals are float32, and so are the sums within a block of rows, so the factor aims a
thousandth below tau: the rounding of the sum then stays inside tau too (tests/mechanisms/test_clipping.py measures it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDING_MARGIN = 2.0**-10


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


def clip_factors(norms: NDArray[np.float64], clip_norm: float) -> NDArray[np.float64]:
    """Factors c, shape (n,), with `c * norms <= clip_norm (1 - 2^-10)`; an infinite clip norm gives ones."""
    bound = clip_norm * (1 - ROUNDING_MARGIN)
    with np.errstate(divide="ignore"):
        return np.minimum(1.0, bound / norms)


def relative_contributions(clipped_norms: NDArray[np.float64], clip_norm: float) -> NDArray[np.float64]:
    """Contribution norms in units of the sensitivity, rounding margin included, at most 1."""
    return np.minimum(1.0, clipped_norms / clip_norm + ROUNDING_MARGIN)
