"""Sums of outer products x x^T over private rows, and of gradients with Hessians, of bounded sensitivity.

`second_moment`: the sum is symmetric, so its lower triangle is released: the diagonal, and the entries below it times
sqrt(2). For one row that vector has the length of the whole matrix:

    sum_a (x_a x_a)^2 + sum_(a > b) (sqrt(2) x_a x_b)^2  =  sum_(a, b) (x_a x_b)^2  =  ||x x^T||^2  =  ||x||^4

Rows longer than 1 are scaled down to length 1, so the sensitivity is 1. Where the rows of a person are one unit, they
are scaled down together, by the norm of the person's sum: ||sum_j x_j x_j^T||^2 = sum_(j, k) <x_j, x_k>^2.

Noise of standard deviation s on the vector is noise of s on the diagonal of the matrix and of s / sqrt(2) elsewhere.
The mean of a noised square matrix and its transpose has the same noise, but needs about twice the draws.

Rounding: products of a block are float64, so the relative error of their sum over a block is below 2^-30. Each sum is
rounded to a public grid and added exactly (`linprobe.gradients.rounding`), so threads and processes change no bit. The
margin of `arithmetic` has a grid step for each entry of the square matrix, and covers the rest, the multiplication by
sqrt(2) included.

`newton_sum`: the Hessian of softmax regression for the weights of class c is q_c x x^T with q_c = p_c (1 - p_c). A
record's summand is one vector: its gradient x r^T, and s q_c x x^T for every class c, each matrix as its packed lower
triangle. Its length, and the length of the sum over the rows j of a person, are the roots of

    ||x||^2 ||r||^2 + s^2 ||x||^4 ||q||^2
    sum_(j, k) <x_j, x_k> <r_j, r_k> + s^2 <x_j, x_k>^2 <q_j, q_k>

No entry of a summand exceeds tau. The gradients of one person may cancel, so the margin is the same as in
`linprobe.gradients.clipped_sum`.
"""

import math
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np

from linprobe.data.blocks import BLOCK_ROWS, Block
from linprobe.data.rows import Rows
from linprobe.gradients.clipped_sum import MOST_CANCELLATION, Reduce, outer_product_norms, sums_over_pairs
from linprobe.gradients.loss import Weights, check_weights, residuals_of
from linprobe.gradients.rounding import ExactSum, SteadyProducts, arithmetic, unit_arithmetic
from linprobe.mechanisms.gaussian import ClippedSum, clip_factors, relative_contributions
from linprobe.parallel.array_api import Indices, Reals
from linprobe.parallel.process_group import ALONE
from linprobe.parallel.threads import n_threads, share

STRIPE = 512  # rows of the triangle that one product computes


class SymmetricSum:
    """The exact sum of symmetric matrices with entries up to `longest`, of which it keeps the lower triangle."""

    def __init__(self, n_features: int, n_rows: int, longest: float = 1.0) -> None:
        bounds = [*range(0, n_features, STRIPE), n_features]
        self._n_features = n_features
        # rows `first` to `stop` of the sum, with the columns up to `stop`; all threads add to each
        self._stripes = [
            (first, stop, Lock(), ExactSum(np.zeros((stop - first, stop)), np.array(longest), n_rows))
            for first, stop in pairwise(bounds)
        ]

    def add(self, left: Reals, right: Reals) -> None:
        """Add left^T right, which is symmetric up to rounding. Threads may call this at the same time."""
        for first, stop, lock, total in self._stripes:
            term = left[:, first:stop].T @ right[:, :stop]
            with lock:
                total.add(term)

    def packed(self, all_reduce: Reduce) -> Reals:
        """The lower triangle of the sum over all processes, shape (n_features (n_features + 1) / 2,), packed."""
        packed = np.empty(_place(self._n_features))
        for first, _, _, total in self._stripes:
            for row, entries in enumerate(total.total, first):
                packed[_place(row) : _place(row + 1)] = entries[: row + 1]
        packed = all_reduce(packed)
        diagonal = diagonal_places(self._n_features)
        entries = packed[diagonal]
        packed = packed * math.sqrt(2)
        packed[diagonal] = entries
        return packed


def _place(row: int) -> int:
    """Where a row begins in the packed triangle, whose rows follow one another."""
    return row * (row + 1) // 2


def second_moment(rows: Rows, *, all_reduce: Reduce = ALONE.all_reduce) -> ClippedSum:
    """Sum of x x^T over rows x, longer ones scaled down to length 1; packed, shape (D (D + 1) / 2, 1) for D features.

    Sensitivity 1 under zero-out of one record. A row's contribution is its squared length. The sum has the same bits
    for any number of threads and of processes. Memory: 4 D^2 bytes for the sum, 4 D^2 for its packed form, and for
    each thread a block of rows in float64 and a stripe of products.

    Raises ParameterError: too many rows and features to bound the rounding.
    """
    n_features = rows.n_features
    margin = arithmetic(1.0, n_features**2, rows.n_rows).margin
    total = SymmetricSum(n_features, rows.n_rows)
    contributions = np.empty(rows.n_local)

    def take(block: Block) -> None:
        wide = block.x.astype(np.float64)
        squares = block.norms**2 if block.bounds is None else outer_product_norms(block, wide)
        x = wide * np.sqrt(_row_factors(block, squares, 1.0, margin, contributions))[:, None]
        total.add(x, x)

    share(rows.lazy_blocks(), [take] * max(1, min(n_threads(), -(-rows.n_local // BLOCK_ROWS))))
    return ClippedSum(total.packed(all_reduce)[:, None], 1.0, contributions)


def _row_factors(block: Block, lengths: Reals, clip_norm: float, margin: float, contributions: Reals) -> Reals:
    """The clip factor of each row, the person's for rows of people; writes the `contributions` of the units."""
    factors = clip_factors(lengths, clip_norm, margin)
    here = slice(block.start, block.start + block.n_units)
    contributions[here] = relative_contributions(factors * lengths, clip_norm, margin)
    return factors if block.bounds is None else np.repeat(factors, np.diff(block.bounds))


def lower_triangle(packed: Reals, n_features: int) -> Reals:
    """The (n_features, n_features) lower triangle of symmetric `packed` (n_features (n_features + 1) / 2, 1)."""
    matrix = np.zeros((n_features, n_features))
    entries = packed[:, 0] / math.sqrt(2)
    entries[diagonal_places(n_features)] = packed[diagonal_places(n_features), 0]
    for row in range(n_features):
        matrix[row, : row + 1] = entries[_place(row) : _place(row + 1)]
    return matrix


def diagonal_places(n_features: int) -> Indices:
    """Where the diagonal is in the packed triangle, shape (n_features,)."""
    row = np.arange(n_features)
    return row * (row + 3) // 2


class _Summands(NamedTuple):
    """What the rows of a block add: x (b, n_features), r (b, n_classes), and s q (b, n_classes), float64."""

    x: Reals
    r: Reals
    curvature: Reals

    def lengths(self) -> Reals:
        """Length of the summand of each row, shape (b,)."""
        x, r, curvature = (np.einsum("ij,ij->i", each, each) for each in self)
        return np.asarray(np.sqrt(x * r + x * x * curvature))

    def unit_lengths(self, bounds: Indices) -> Reals:
        """Length of the summand of each person, shape (n_units,), at least its rows' lengths over the limit."""
        squares = sums_over_pairs(bounds, self, lambda x, r, curvature: x * r + x * x * curvature)
        lengths = self.lengths()
        spread = np.array([lengths[first:stop].sum() for first, stop in pairwise(bounds.tolist())])  # of nobody else
        return np.asarray(np.maximum(np.sqrt(squares.clip(0.0)), spread / MOST_CANCELLATION))


def newton_sum(
    rows: Rows, weights: Weights, clip_norm: float, hessian_scale: float, *, all_reduce: Reduce = ALONE.all_reduce
) -> ClippedSum:
    """Sum over rows of gradients and of `hessian_scale` times Hessians at `weights` (n_features, n_classes).

    Shape (D C + C D (D + 1) / 2, 1) for D features and C classes: the gradient, then the packed Hessian of each class.
    `parts_of` takes it apart. Sensitivity `clip_norm` under zero-out of one record, or of one person where the rows of
    a person are one unit. The sum has the same bits for any number of threads and of processes.

    Raises DivergedError: weights too large. ParameterError: too many rows and features to bound the rounding.
    """
    check_weights(weights)
    n_features, n_classes = weights.shape
    n_entries = n_classes * n_features * (1 + n_features)
    if rows.units:
        margin = unit_arithmetic(MOST_CANCELLATION, n_entries, rows.n_rows, block_units=None).margin
    else:
        margin = arithmetic(1.0, n_entries, rows.n_rows).margin
    gradient, lock = ExactSum(np.zeros((n_features, n_classes)), np.array(clip_norm), rows.n_rows), Lock()
    hessians = [SymmetricSum(n_features, rows.n_rows, clip_norm) for _ in range(n_classes)]
    contributions, scores = np.empty(rows.n_local), SteadyProducts(weights)

    def take(block: Block) -> None:
        x = block.x.astype(np.float64)
        r = residuals_of(scores.of(x), block.y, "softmax")[0]
        p = r.copy()
        p[np.arange(len(p)), block.y] += 1
        summands = _Summands(x, r, hessian_scale * p * (1 - p))
        lengths = summands.lengths() if block.bounds is None else summands.unit_lengths(block.bounds)
        factors = _row_factors(block, lengths, clip_norm, margin, contributions)
        term = x.T @ (r * factors[:, None])
        with lock:
            gradient.add(term)
        for hessian, curvature in zip(hessians, (summands.curvature * factors[:, None]).T, strict=True):
            hessian.add(x * curvature[:, None], x)

    share(rows.lazy_blocks(), [take] * max(1, min(n_threads(), -(-rows.n_local // BLOCK_ROWS))))
    parts = [all_reduce(gradient.total).ravel(), *(hessian.packed(all_reduce) for hessian in hessians)]
    return ClippedSum(np.concatenate(parts)[:, None], clip_norm, contributions)


def parts_of(released: Reals, n_features: int, n_classes: int) -> tuple[Reals, Reals]:
    """The gradient (n_features, n_classes), and the packed Hessians (n_classes, D (D + 1) / 2), of a `newton_sum`."""
    split = n_features * n_classes
    return released[:split, 0].reshape(n_features, n_classes), released[split:, 0].reshape(n_classes, -1)
