"""Clip factors and the sensitivity they buy.

Under add/remove adjacency, `sum_i c_i g_i` with `c_i = min(1, tau / ||g_i||)` moves by at most tau when one record
joins or leaves. Rows and residuals are float32, and up to 2^17 rows so are the sums within a block of rows. A record
that leaves shifts the rows after it, so every block rounds anew, and the error grows with their number. The factor
therefore aims below tau by a margin that grows with it too; tests/mechanisms/test_clipping.py measures that this is
enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import ParameterError
from linprobe.rows import Rows

SMALLEST_MARGIN = 2.0**-10
LARGEST_MARGIN = 2.0**-4
LARGEST_FLOAT32_ROWS = 2**17


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A sum over private rows together with what one record can do to it. Not private by itself: add noise.

    Attributes:
        value: the sum, shape (n_features, n_classes), float64.
        sensitivity: L2 bound on the change when one record is added or removed.
        contributions: each record's own contribution norm divided by `sensitivity`, shape (n_rows,), in [0, 1]; of
            records that a sample left out, what they would have contributed; empty where nobody looked.
        sampling_rate: Poisson probability with which each record joined the sum.
    """

    value: NDArray[np.float64]
    sensitivity: float
    contributions: NDArray[np.float64]
    sampling_rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a clipped sum is taken.

    Attributes:
        margin: share of the clip norm kept free for rounding.
        dtype: in which blocks are summed.
    """

    margin: float
    dtype: type[np.float32] | type[np.float64]


def arithmetic(n_rows: int, amplification: float = 1.0) -> Arithmetic:
    """Margin and precision of a sum over `n_rows` rows (public).

    2^-10, and 2^-22 for each row where blocks are summed in float32, with the number of rows rounded up to a power of
    two: 1.7 % at 50,000 rows, 3.2 % at 2^17, beyond which blocks are summed in float64. The worst case measured is
    1.9e-7 a row, two rows in turn of which every sum rounds the same way. `amplification` is how many times larger
    than the clip norm the summed numbers can be, measured as the clip measures (public); where float32 would need too
    wide a margin, blocks are summed in float64.

    Raises:
        ParameterError: an amplification beyond which rounding could not be bounded.
    """
    margin = SMALLEST_MARGIN + amplification * 2.0 ** ((n_rows - 1).bit_length() - 22)
    if n_rows <= LARGEST_FLOAT32_ROWS and margin <= LARGEST_MARGIN:
        return Arithmetic(margin, np.float32)
    # the factors and residuals are float32 still
    margin = SMALLEST_MARGIN + amplification * 2.0**-20
    if margin > 0.5:
        raise ParameterError(
            f"gradients are {amplification:.3g} times the clip norm before they are shifted or scaled; allowed: "
            f"at most {2**19}; raise --clip-norm"
        )
    return Arithmetic(margin, np.float64)


def clip_factors(norms: NDArray[np.float64], clip_norm: float, margin: float) -> NDArray[np.float64]:
    """Factors c, shape (n,), with `c * norms <= clip_norm (1 - margin)`; an infinite clip norm gives ones."""
    bound = clip_norm * (1 - margin)
    with np.errstate(divide="ignore"):
        return np.minimum(1.0, bound / norms)


def relative_contributions(clipped_norms: NDArray[np.float64], clip_norm: float, margin: float) -> NDArray[np.float64]:
    """Contribution norms in units of the sensitivity, rounding margin included, at most 1."""
    return np.minimum(1.0, clipped_norms / clip_norm + margin)


def row_sum(rows: Rows, clip_norm: float, origin: NDArray[np.float64] | None = None) -> ClippedSum:
    """Sum of rows, or of their differences from a public `origin` (n_features,), each clipped to `clip_norm`.

    Summed in float64, so that only the float32 factors round. Shape (n_features, 1); sensitivity `clip_norm`.
    """
    total = np.zeros(rows.n_features)
    contributions = np.empty(rows.n_rows)
    for block in rows.blocks():
        x = block.x.astype(np.float64) if origin is None else block.x - origin
        norms = np.sqrt(np.einsum("ij,ij->i", x, x))
        factors = clip_factors(norms, clip_norm, SMALLEST_MARGIN)
        here = slice(block.start, block.start + len(block.x))
        contributions[here] = relative_contributions(factors * norms, clip_norm, SMALLEST_MARGIN)
        total += factors @ x
    return ClippedSum(total[:, None], clip_norm, contributions)
