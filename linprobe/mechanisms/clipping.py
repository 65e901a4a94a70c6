"""Clip factors and the sensitivity they buy.

Adjacency: one record more or less, its place left empty. The number of places is public; a place without a record
contributes nothing, and every other record keeps its place. `sum_i c_i g_i` with `c_i = min(1, tau / ||g_i||)` then
moves by at most tau in exact arithmetic. In ours, with u = 2^-24 and A the largest norm that can be summed:

    sums of n = SUM_ROWS rows are float32. A term is rounded once as a product and once in every addition it is part
        of; over all terms that is at most n (n + 3) / 2 times, in whatever order they are added. Such a sum is off by
        at most n (n + 3) / 2 u A, with the record and without it; all other sums are the same numbers in both cases
    they are added up exactly: in float64, rounded to a public grid so coarse that no addition rounds (`ExactSum`),
        which moves one of them by at most a grid step an entry. Where the sum of a block is rounded as a whole (without
        the kernel, on a device, in a scale), float64 loses at most 2^-27 A in it before
    norms of residuals are off by 17 u (`linprobe.data.preprocessing.row_norms`), factors and products by 2 u

The factors aim below tau by a margin that covers all of it; tests/mechanisms/test_clipping.py checks both the terms and
that no attack on the rounding comes near.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.data.rows import Block, Rows
from linprobe.errors import ParameterError
from linprobe.gradients.geometry import FLOAT32_ROUNDING
from linprobe.gradients.host import SUM_ROWS
from linprobe.gradients.rounding import GRID_STEP, ExactSum
from linprobe.parallel.array_api import Array
from linprobe.parallel.threads import share

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
        dtype: in which `SUM_ROWS` rows are summed.
    """

    margin: float
    dtype: type[np.float32] | type[np.float64]


def arithmetic(amplification: float = 1.0, n_entries: int = 1, n_rows: int = 1) -> Arithmetic:
    """Margin and precision of a sum of `SUM_ROWS` rows at a time, these being added up exactly.

    SUM_ROWS (SUM_ROWS + 3) u for the sums, a grid step for every entry of the gradient, which tells above 10^9 of
    `n_rows`, and 2^-10 for all else: 0.2 % in all.
    `amplification` is how many times larger than the clip norm the summed numbers can be, measured as the clip measures
    (public); where float32 would need too wide a margin, sums are float64.

    Raises:
        ParameterError: an amplification beyond which rounding could not be bounded.
    """
    grid = n_rows * math.sqrt(n_entries) * GRID_STEP
    margin = SMALLEST_MARGIN + amplification * (SUM_ROWS * (SUM_ROWS + 3) * FLOAT32_ROUNDING + grid)
    if margin <= LARGEST_MARGIN:
        return Arithmetic(margin, np.float32)
    # the factors and residuals are float32 still
    margin = SMALLEST_MARGIN + amplification * (2.0**-20 + grid)
    if margin > 0.5:
        raise ParameterError(
            f"gradients of {n_rows} rows are up to {amplification:.3g} times the clip norm before they are shifted or "
            f"scaled; allowed: at most {0.49 / (2.0**-20 + grid):.3g} times; raise --clip-norm"
        )
    return Arithmetic(margin, np.float64)


def longest_left(clip_norm: float, margin: float) -> float:
    """The norm that no clipped gradient exceeds: the clip norm, less what is kept free for rounding."""
    return clip_norm * (1 - margin)


def clip_factors(norms: Array, clip_norm: float, margin: float) -> Array:
    """Factors c, shape (n,), with `c * norms` at most `longest_left`; an infinite clip norm gives ones."""
    with np.errstate(divide="ignore"):
        return (longest_left(clip_norm, margin) / norms).clip(None, 1.0)


def relative_contributions(clipped_norms: Array, clip_norm: float, margin: float) -> Array:
    """Contribution norms in units of the sensitivity, rounding margin included, at most 1."""
    return (clipped_norms / clip_norm + margin).clip(None, 1.0)


def row_sum(rows: Rows, clip_norm: float, origin: NDArray[np.float64] | None = None) -> ClippedSum:
    """Sum of rows, or of their differences from a public `origin` (n_features,), each clipped to `clip_norm`.

    Summed in float64, so that rounding is far below the margin. Shape (n_features, 1); sensitivity `clip_norm`.
    """
    total = ExactSum(np.zeros(rows.n_features), np.array(clip_norm), rows.n_rows)
    contributions = np.empty(rows.n_held)

    def take(block: Block) -> None:
        x = block.x.astype(np.float64) if origin is None else block.x - origin
        norms = np.sqrt(np.einsum("ij,ij->i", x, x))
        factors = clip_factors(norms, clip_norm, SMALLEST_MARGIN)
        here = slice(block.start, block.start + len(block.x))
        contributions[here] = relative_contributions(factors * norms, clip_norm, SMALLEST_MARGIN)
        total.add(factors @ x)

    share(rows.pieces(), [take])
    return ClippedSum(rows.summed(total.total)[:, None], clip_norm, contributions)
