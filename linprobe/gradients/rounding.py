"""Sums that do not depend on the order of their parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GRID_STEP = 2.0**-52  # relative to the bound of a sum
LEAST_ROWS = 1 << 13  # a sum of fewer has the grid of one of so many, which a part of a quarter of them leaves alone


class ExactSum:
    """A float64 sum of parts that does not depend on their order: each is rounded to one public grid first.

    Args:
        zeros: the sum of no parts, float64, on the host or a device.
        longest: bound on what one row adds to an entry: one number, or one for every entry; infinite for no grid.
        n_rows: bound on the number of rows in all, wherever they are. A grid step is at most `GRID_STEP` of
            `longest * n_rows`, and the sum at most 2^53 steps, which float64 counts exactly.

    Attributes:
        total: the sum so far.
        shift: next to this number, or these, float64 has the grid's step, so that adding and subtracting it rounds to
            the grid.
    """

    def __init__(self, zeros: Any, longest: NDArray[np.float64], n_rows: int) -> None:
        self.total = zeros
        bound = longest * max(n_rows, LEAST_ROWS)
        shift = 1.5 * 2.0 ** (np.ceil(np.log2(bound)) - 1) if np.isfinite(bound).all() else np.zeros(())
        self.shift = shift if shift.ndim else float(shift)

    def add(self, part: Any) -> None:
        """Take in a part, which is rounded in place."""
        part += self.shift
        part -= self.shift
        self.total += part
