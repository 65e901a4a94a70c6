"""The sum of outer products x x^T over private rows, packed so that one record moves it by at most 1.

The sum is symmetric, so its lower triangle is released: the diagonal, and the entries below it times sqrt(2). For one
row that vector has the length of the whole matrix:

    sum_a (x_a x_a)^2 + sum_(a > b) (sqrt(2) x_a x_b)^2  =  sum_(a, b) (x_a x_b)^2  =  ||x x^T||^2  =  ||x||^4

Rows longer than 1 are scaled down to length 1, so the sensitivity is 1. Where the rows of a person are one unit, they
are scaled down together, by the norm of the person's sum: ||sum_j x_j x_j^T||^2 = sum_(j, k) <x_j, x_k>^2.

Noise of standard deviation s on the vector is noise of s on the diagonal and s / sqrt(2) elsewhere, which is what
averaging a noised square matrix with its transpose gives, for half the draws.

Rounding: products of a block are float64, so the relative error of their sum over a block is below 2^-30. Each sum is
rounded to a public grid and added exactly (`linprobe.gradients.rounding`), so threads and processes change no bit. The
margin of `arithmetic` has a grid step for each entry of the square matrix, and covers the rest, the multiplication by
sqrt(2) included.
"""

from __future__ import annotations

import math
from itertools import pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block
from linprobe.data.rows import Rows
from linprobe.data.sources import BLOCK_ROWS
from linprobe.gradients.clipped_sum import Reduce
from linprobe.gradients.rounding import ExactSum, arithmetic
from linprobe.gradients.unit_sums import outer_product_norms
from linprobe.mechanisms.clipping import ClippedSum, clip_factors, relative_contributions
from linprobe.parallel.process_group import ALONE
from linprobe.parallel.threads import n_threads, share

STRIPE = 512  # rows of the triangle that one product computes


class SymmetricSum:
    """The exact sum of symmetric matrices of shape (n_features, n_features), of which it keeps the lower triangle.

    Args:
        n_features: rows of a matrix. n_rows: bound on the number of summands in all processes.
        longest: bound on an entry of one summand.
    """

    def __init__(self, n_features: int, n_rows: int, longest: float = 1.0) -> None:
        bounds = [*range(0, n_features, STRIPE), n_features]
        self._n_features = n_features
        self._stripes = [_Stripe(first, stop, n_rows, longest) for first, stop in pairwise(bounds)]

    def add(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> None:
        """Add left^T right, which is symmetric up to rounding. Threads may call this at the same time."""
        for stripe in self._stripes:
            stripe.add(left, right)

    def packed(self, all_reduce: Reduce) -> NDArray[np.float64]:
        """The lower triangle of the sum over all processes, shape (n_features (n_features + 1) / 2,), packed."""
        packed = np.empty(_place(self._n_features))
        for stripe in self._stripes:
            stripe.pack(packed)
        packed = all_reduce(packed)
        diagonal = _diagonal(self._n_features)
        entries = packed[diagonal]
        packed = packed * math.sqrt(2)
        packed[diagonal] = entries
        return packed


class _Stripe:
    """Rows `first` to `stop` of the sum, with the columns up to `stop`. All threads add to it."""

    def __init__(self, first: int, stop: int, n_rows: int, longest: float) -> None:
        self._rows, self._columns, self._lock = slice(first, stop), slice(stop), Lock()
        self._sum = ExactSum(np.zeros((stop - first, stop)), np.array(longest), n_rows)
        self.first = first

    def add(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> None:
        """Add the products of a block of rows."""
        term = left[:, self._rows].T @ right[:, self._columns]
        with self._lock:
            self._sum.add(term)

    def pack(self, into: NDArray[np.float64]) -> None:
        """Write the part of these rows up to the diagonal to its place in the packed triangle."""
        for row, entries in enumerate(self._sum.total, self.first):
            into[_place(row) : _place(row + 1)] = entries[: row + 1]


def _place(row: int) -> int:
    """Where a row begins in the packed triangle, whose rows follow one another."""
    return row * (row + 1) // 2


def second_moment(rows: Rows, *, all_reduce: Reduce = ALONE.all_reduce) -> ClippedSum:
    """Sum of x x^T over rows x, longer ones scaled down to length 1; packed, shape (D (D + 1) / 2, 1) for D features.

    Sensitivity 1 under zero-out of one record. A row's contribution is its squared length. The sum has the same bits
    for any number of threads and of processes. Memory: 4 D^2 bytes for the sum and as many for its packed form, and
    for each thread a block of rows in float64 and a stripe of products.

    Raises:
        ParameterError: so many rows and features that rounding could not be bounded.
    """
    n_features = rows.n_features
    margin = arithmetic(1.0, n_features**2, rows.n_rows).margin
    total = SymmetricSum(n_features, rows.n_rows)
    contributions = np.empty(rows.n_local)

    def take(block: Block) -> None:
        squares = block.norms**2 if block.bounds is None else outer_product_norms(block, block.x.astype(np.float64))
        factors = clip_factors(squares, 1.0, margin)
        here = slice(block.start, block.start + block.n_units)
        contributions[here] = relative_contributions(factors * squares, 1.0, margin)
        if block.bounds is not None:
            factors = np.repeat(factors, np.diff(block.bounds))
        x = block.x * np.sqrt(factors)[:, None]
        total.add(x, x)

    share(rows.lazy_blocks(), [take] * max(1, min(n_threads(), -(-rows.n_local // BLOCK_ROWS))))
    return ClippedSum(total.packed(all_reduce)[:, None], 1.0, contributions)


def lower_triangle(packed: NDArray[np.float64], n_features: int) -> NDArray[np.float64]:
    """The lower triangle of the symmetric matrix in `packed` (n_features (n_features + 1) / 2, 1), zeros above it.

    Shape (n_features, n_features).
    """
    matrix = np.zeros((n_features, n_features))
    entries = packed[:, 0] / math.sqrt(2)
    entries[_diagonal(n_features)] = packed[_diagonal(n_features), 0]
    for row in range(n_features):
        matrix[row, : row + 1] = entries[_place(row) : _place(row + 1)]
    return matrix


def _diagonal(n_features: int) -> NDArray[np.int64]:
    """Where the diagonal is in the packed triangle, shape (n_features,)."""
    row = np.arange(n_features)
    return row * (row + 3) // 2
