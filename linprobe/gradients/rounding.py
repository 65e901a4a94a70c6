"""Rounding in clipped sums: the public grid that makes them independent of order, and the margin that covers the rest.

Adjacency: one record more or less, its place left empty. The number of places is public; a place without a record
contributes nothing, and every other record keeps its place. `sum_i c_i g_i` with `c_i = min(1, tau / ||g_i||)` then
moves by at most tau in exact arithmetic. In floating point, with u = 2^-24 and A the largest norm of a summand:

    Sums of n = SUM_ROWS rows are float32. A term is rounded once as a product and once in every addition that it takes
        part in; over all terms that is at most n (n + 3) / 2 times, in any order of additions. Such a sum is off by at
        most n (n + 3) / 2 u A, with the record and without it. All other sums are the same numbers in both cases.
    These sums are added exactly: in float64, rounded to a public grid so coarse that no addition rounds (`ExactSum`).
        That moves one of them by at most a grid step an entry. Where the sum of a block is rounded as a whole (without
        the kernel, on a GPU, in a scale), float64 loses at most 2^-27 A in it before.
    Norms of residuals are off by 17 u (`linprobe.data.preprocessing.row_norms`), factors and products by 2 u.

Clip factors aim below tau by a margin that covers all of it. tests/mechanisms/test_clipping.py checks the terms, and
that no attack on the rounding comes near.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import ParameterError

FLOAT32_ROUNDING = 2.0**-24
SUM_ROWS = 128  # rows that are summed in float32
GRID_STEP = 2.0**-52  # relative to the bound of a sum
LEAST_ROWS = 1 << 13  # smaller sums use the grid of this many rows, so that shards of one data set share a grid
SMALLEST_MARGIN = 2.0**-10
LARGEST_MARGIN = 2.0**-4


class ExactSum:
    """A float64 sum of parts that does not depend on their order: each part is rounded to one public grid first.

    Args:
        zeros: the empty sum, float64, on the host or a GPU.
        longest: bound on what one row adds to an entry: one number, or one for every entry; infinite for no grid.
        n_rows: bound on the number of rows in all processes. A grid step is at most `GRID_STEP` of
            `longest * n_rows`, and the sum at most 2^53 steps, which float64 counts exactly.

    Attributes:
        total: the sum so far.
        shift: a number whose float64 neighbours are one grid step apart, or an array of such numbers. Adding and
            subtracting it rounds to the grid.
    """

    def __init__(self, zeros: Any, longest: NDArray[np.float64], n_rows: int) -> None:
        self.total = zeros
        bound = longest * max(n_rows, LEAST_ROWS)
        shift = 1.5 * 2.0 ** (np.ceil(np.log2(bound)) - 1) if np.isfinite(bound).all() else np.zeros(())
        self.shift = shift if shift.ndim else float(shift)

    def add(self, part: Any) -> None:
        """Add a part, which is rounded in place."""
        part += self.shift
        part -= self.shift
        self.total += part


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a clipped sum is computed.

    Attributes:
        margin: share of the clip norm kept free for rounding.
        dtype: of sums of `SUM_ROWS` rows.
    """

    margin: float
    dtype: type[np.float32] | type[np.float64]


def arithmetic(amplification: float = 1.0, n_entries: int = 1, n_rows: int = 1) -> Arithmetic:
    """Margin and precision of sums of `SUM_ROWS` rows that are then added exactly.

    The margin is SUM_ROWS (SUM_ROWS + 3) u for the sums, a grid step for every entry of the gradient (which matters
    above 10^9 rows), and 2^-10 for the rest: 0.2 % together.

    Args:
        amplification: largest summand, in units of the clip norm, measured as the clip measures (public). Where
            float32 would need too wide a margin, sums are float64.
        n_entries: entries of the gradient. n_rows: rows in all processes.

    Raises:
        ParameterError: an amplification beyond which rounding could not be bounded.
    """
    grid = n_rows * math.sqrt(n_entries) * GRID_STEP
    margin = SMALLEST_MARGIN + amplification * (SUM_ROWS * (SUM_ROWS + 3) * FLOAT32_ROUNDING + grid)
    if margin <= LARGEST_MARGIN:
        return Arithmetic(margin, np.float32)
    # factors and residuals stay float32
    margin = SMALLEST_MARGIN + amplification * (2.0**-20 + grid)
    if margin > 0.5:
        raise ParameterError(
            f"gradients of {n_rows} rows are up to {amplification:.3g} times the clip norm before they are shifted or "
            f"scaled; allowed: at most {0.49 / (2.0**-20 + grid):.3g} times; raise --clip-norm"
        )
    return Arithmetic(margin, np.float64)
