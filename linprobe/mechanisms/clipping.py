"""Clip factors and the sensitivity they buy.

Adjacency: one record more or less, its place left empty. The number of places is public; a place without a record
contributes nothing, and every other record keeps its place. `sum_i c_i g_i` with `c_i = min(1, tau / ||g_i||)` then
moves by at most tau. Were the others moved up instead, each of them would be rounded anew, since a matrix product
rounds a row according to its place, and 100,000 such differences are no longer small.

Within a block of rows, sums are float32, so that the block of the record in question rounds differently with and
without it. The factor aims below tau by a margin for that; tests/mechanisms/test_clipping.py measures that it is
enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import ParameterError
from linprobe.rows import BLOCK_ROWS, Rows

SMALLEST_MARGIN = 2.0**-10
LARGEST_MARGIN = 2.0**-4


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


def arithmetic(amplification: float = 1.0) -> Arithmetic:
    """Margin and precision of a sum over blocks of at most `BLOCK_ROWS` rows, blocks being added up in float64.

    2^-10 for the factors, and 2^-22 for each row of a block, 0.12 % in all; the worst case measured is 1.9e-7 a row,
    rows that all round the same way. `amplification` is how many times larger than the clip norm the summed numbers
    can be, measured as the clip measures (public); where float32 would need too wide a margin, blocks are summed in
    float64.

    Raises:
        ParameterError: an amplification beyond which rounding could not be bounded.
    """
    margin = SMALLEST_MARGIN + amplification * BLOCK_ROWS * 2.0**-22
    if margin <= LARGEST_MARGIN:
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
