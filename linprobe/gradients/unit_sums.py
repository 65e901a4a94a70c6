"""Clipped sums where all rows of a person are one unit: the gradients of a person are summed, and the sum is clipped.

The gradient of person u is S_u = sum_j x_j r_j^T over the person's rows. Its norm needs no matrix of that size, only
the inner products of the rows and those of the residuals:

    ||S_u||^2            = sum_(j, k) <x_j, x_k> <r_j, r_k>
    ||S_u - g||^2        = ||S_u||^2 - 2 sum_j x_j^T g r_j + ||g||^2              (a public origin g)

People with more than `FORMED_ROWS` rows, and all people in a scale, have S_u formed instead, which is then less work.

Rounding: a person whose place is empty moves the rows of the others in the block of that place. So all products here
are float64, and the sum of a block is rounded to the public grid once. The rows of one person may cancel. So the factor
also keeps the summed lengths of the person's gradients, l = sum_j ||x_j|| ||r_j||, below `MOST_CANCELLATION` times the
bound: without it, rounding relative to l would not be bounded relative to the clip norm. Orthogonal gradients of
`FORMED_ROWS` rows do not reach that limit. docs/proofs/people.md has the proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.precision import widened
from linprobe.data.rows import Block
from linprobe.data.sources import BLOCK_ROWS
from linprobe.gradients.geometry import Geometry
from linprobe.gradients.loss import residuals_of
from linprobe.mechanisms.clipping import clip_factors
from linprobe.options import Loss
from linprobe.parallel.array_api import Array, double, namespace

FORMED_ROWS = 16
MOST_CANCELLATION = 4.0  # sqrt(FORMED_ROWS)


class ClippedUnits(NamedTuple):
    """The clipped sum over the people of a block.

    Attributes:
        total: sum_u c_u S_u, shape (n_classes, n_features), float64.
        factors: c_u, shape (n_units,); 0 for a person without rows.
        lengths: norm of each person's gradient in the geometry, shape (n_units,).
    """

    total: Array
    factors: Array
    lengths: Array


def clipped_units(
    block: Block, weights: Array, clip_norm: float, margin: float, geometry: Geometry, loss: Loss
) -> ClippedUnits:
    """The clipped sum over the people of a block, at `weights` (n_classes, n_features), float64.

    People outside the sample (`block.sampled`) get a factor, but do not join the sum.
    """
    xp = namespace(weights)
    total, factors, lengths = (xp.zeros_like(weights), *(_zeros(weights, block.n_units) for _ in range(2)))
    joins = None if block.sampled is None else np.asarray(block.sampled)
    most = MOST_CANCELLATION * geometry.amplification(clip_norm)
    for units, rows in _equal(block, np.diff(_bounds(block)) <= (0 if geometry.forms else FORMED_ROWS)):
        x, r = _products(block, rows.ravel(), weights, loss)
        x, r = x.reshape(*rows.shape, -1), r.reshape(*rows.shape, -1)
        r_norms = xp.sqrt((r * r).sum(-1))
        spread = (block.norms[rows] * r_norms).sum(-1)
        inner = ((x @ x.swapaxes(-1, -2)) * (r @ r.swapaxes(-1, -2))).sum((-1, -2))
        norms = geometry.unit_norms(inner, geometry.along(x, r), spread)
        c = clip_factors(xp.maximum(norms, spread / most), clip_norm, margin)
        factors[units], lengths[units] = c, norms
        c = c if joins is None else c * xp.asarray(joins[units])
        total += (r * c[:, None, None]).reshape(-1, r.shape[-1]).T @ x.reshape(-1, x.shape[-1])
    for unit in np.flatnonzero(np.diff(_bounds(block)) > (0 if geometry.forms else FORMED_ROWS)):
        formed = _formed(block, int(unit), weights, loss)
        norm = geometry.norm_of(formed.T)
        c = clip_factors(norm, clip_norm, margin)
        factors[unit], lengths[unit] = c, norm
        if joins is None or joins[unit]:
            total += c * formed
    return ClippedUnits(total, factors, lengths)


def _bounds(block: Block) -> NDArray[np.int64]:
    if block.bounds is None:
        raise ValueError("a block whose rows are units by themselves")
    return block.bounds


def _zeros(like: Array, size: int) -> Array:
    return np.zeros(size) if isinstance(like, np.ndarray) else like.new_zeros(size)


def _equal(block: Block, chosen: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The chosen people by their number of rows k >= 1: indices of the people (n,), and of their rows (n, k)."""
    bounds = _bounds(block)
    sizes = np.diff(bounds)
    for k in np.unique(sizes[chosen & (sizes > 0)]):
        units = np.flatnonzero(chosen & (sizes == k))
        yield units, bounds[units][:, None] + np.arange(k)


def _products(block: Block, rows: Array, weights: Array, loss: Loss) -> tuple[Array, Array]:
    """Rows (n, n_features) and their residuals (n, n_classes), float64; `rows` are their indices or a slice."""
    x = double(widened(block.stored[rows]))
    return x, residuals_of(x @ weights.T, block.y[rows], loss)[0]


def _formed(block: Block, unit: int, weights: Array, loss: Loss) -> Array:
    """S_u of one person, shape (n_classes, n_features), in pieces of `BLOCK_ROWS` rows."""
    first, stop = _bounds(block)[unit : unit + 2]
    total = namespace(weights).zeros_like(weights)
    for start in range(int(first), int(stop), BLOCK_ROWS):
        x, r = _products(block, slice(start, min(start + BLOCK_ROWS, int(stop))), weights, loss)
        total += r.T @ x
    return total


def unit_means(block: Block, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the rows x (b, width) of each person, shape (n_units, width); zero for a person without rows."""
    bounds = _bounds(block)
    sizes = np.diff(bounds)
    means = np.zeros((len(sizes), x.shape[1]))
    present = sizes > 0
    if present.any():
        means[present] = np.add.reduceat(x, bounds[:-1][present], axis=0) / sizes[present, None]
    return means


def outer_product_norms(block: Block, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """||sum_j x_j x_j^T|| over the rows x of each person, shape (n_units,), from the inner products of the rows."""
    bounds = _bounds(block)
    squares = np.zeros(len(bounds) - 1)
    for unit, (first, stop) in enumerate(pairwise(bounds.tolist())):
        for a, b in product(range(first, stop, BLOCK_ROWS), repeat=2):
            inner = x[a : min(a + BLOCK_ROWS, stop)] @ x[b : min(b + BLOCK_ROWS, stop)].T
            squares[unit] += float(np.einsum("ij,ij->", inner, inner))
    return np.sqrt(squares)
