"""The sum of gradients and of the Hessians of each class, clipped together: one record moves it by at most tau.

The Hessian of softmax regression for the weights of class c is q_c x x^T with q_c = p_c (1 - p_c). A record's summand
is one vector: its gradient x r^T, and s q_c x x^T for every class c, each matrix as its packed lower triangle
(`linprobe.gradients.second_moment`). Its length, and that of the sum over the rows j of a person, are those of

    ||x||^2 ||r||^2 + s^2 ||x||^4 ||q||^2
    sum_(j, k) <x_j, x_k> <r_j, r_k> + s^2 <x_j, x_k>^2 <q_j, q_k>

No entry of a summand exceeds tau. Rounding: all products are float64, and sums are added exactly, as for the second
moment. The gradients of one person may cancel, so the margin is that of `linprobe.gradients.unit_sums`.
"""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block
from linprobe.data.rows import Rows
from linprobe.data.sources import BLOCK_ROWS
from linprobe.gradients.clipped_sum import Reduce
from linprobe.gradients.loss import Weights, check_weights, residuals_of
from linprobe.gradients.rounding import ExactSum, arithmetic, unit_arithmetic
from linprobe.gradients.second_moment import SymmetricSum
from linprobe.gradients.unit_sums import MOST_CANCELLATION, sums_over_pairs
from linprobe.mechanisms.clipping import ClippedSum, clip_factors, relative_contributions
from linprobe.parallel.process_group import ALONE
from linprobe.parallel.threads import n_threads, share


class _Summands(NamedTuple):
    """What the rows of a block add: x (b, n_features), r (b, n_classes), and s q (b, n_classes), float64."""

    x: NDArray[np.float64]
    r: NDArray[np.float64]
    curvature: NDArray[np.float64]

    def lengths(self) -> NDArray[np.float64]:
        """Length of the summand of each row, shape (b,)."""
        squares = (np.einsum("ij,ij->i", each, each) for each in self)
        x, r, curvature = squares
        return np.asarray(np.sqrt(x * r + x * x * curvature))

    def unit_lengths(self, bounds: NDArray[np.int64]) -> NDArray[np.float64]:
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

    Raises:
        DivergedError: weights too large.
        ParameterError: so many rows and features that rounding could not be bounded.
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
    contributions = np.empty(rows.n_local)

    def take(block: Block) -> None:
        x = block.x.astype(np.float64)
        scores = x @ weights
        r = residuals_of(scores, block.y, "softmax")[0]
        p = r.copy()
        p[np.arange(len(p)), block.y] += 1
        summands = _Summands(x, r, hessian_scale * p * (1 - p))
        lengths = summands.lengths() if block.bounds is None else summands.unit_lengths(block.bounds)
        factors = clip_factors(lengths, clip_norm, margin)
        here = slice(block.start, block.start + block.n_units)
        contributions[here] = relative_contributions(factors * lengths, clip_norm, margin)
        if block.bounds is not None:
            factors = np.repeat(factors, np.diff(block.bounds))
        term = x.T @ (r * factors[:, None])
        with lock:
            gradient.add(term)
        for hessian, curvature in zip(hessians, (summands.curvature * factors[:, None]).T, strict=True):
            hessian.add(x * curvature[:, None], x)

    share(rows.lazy_blocks(), [take] * max(1, min(n_threads(), -(-rows.n_local // BLOCK_ROWS))))
    parts = [all_reduce(gradient.total).ravel(), *(hessian.packed(all_reduce) for hessian in hessians)]
    return ClippedSum(np.concatenate(parts)[:, None], clip_norm, contributions)


def parts_of(
    released: NDArray[np.float64], n_features: int, n_classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The gradient (n_features, n_classes), and the packed Hessians (n_classes, D (D + 1) / 2), of a `newton_sum`."""
    split = n_features * n_classes
    return released[:split, 0].reshape(n_features, n_classes), released[split:, 0].reshape(n_classes, -1)
