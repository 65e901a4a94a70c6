"""Clipped sums where all rows of a person are one unit: the gradients of a person are summed, and the sum is clipped.

The gradient of person u is S_u = sum_j x_j r_j^T over the person's rows. Its norm needs no matrix of that size, only
the inner products of the rows and those of the residuals:

    ||S_u||^2            = sum_(j, k) <x_j, x_k> <r_j, r_k>
    ||S_u - g||^2        = ||S_u||^2 - 2 sum_j x_j^T g r_j + ||g||^2              (a public origin g)

People with more than `FORMED_ROWS` rows, and all people in a scale, have S_u formed instead, which is then less work.

Rounding: a person whose place is empty moves the rows of the others in the block of that place, so nothing may depend
on the place of a row. Products are float64; or, for softmax in the plain geometry with the kernel, float32 with
residuals that have the same bits at every place (`PlacelessProducts`). The rows of one person may cancel. So the factor
also keeps the summed lengths of the person's gradients, l = sum_j ||x_j|| ||r_j||, below `MOST_CANCELLATION` times the
bound: without it, rounding relative to l would not be bounded relative to the clip norm. Orthogonal gradients of
`FORMED_ROWS` rows do not exceed that limit. docs/proofs/people.md has the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.precision import widened
from linprobe.data.rows import Block
from linprobe.data.sources import BLOCK_ROWS
from linprobe.data.unit_rows import GRAM_ROWS, equal_units
from linprobe.gradients.backend import PlacelessProducts
from linprobe.gradients.geometry import PLAIN, Geometry
from linprobe.gradients.loss import residuals_of
from linprobe.gradients.rounding import ExactSum
from linprobe.mechanisms.clipping import clip_factors
from linprobe.options import Loss
from linprobe.parallel.array_api import Array, double, namespace, single

FORMED_ROWS = GRAM_ROWS
MOST_CANCELLATION = 4.0  # the square root of FORMED_ROWS


class ClippedUnits(NamedTuple):
    """The people of a block.

    Attributes:
        factors: c_u, shape (n_units,); 0 for a person without rows.
        lengths: norm of each person's gradient in the geometry, shape (n_units,).
    """

    factors: Array
    lengths: Array


@dataclass(frozen=True)
class UnitClip:
    """How the gradients of people are clipped and summed.

    Attributes:
        weights: shape (n_classes, n_features), float64.
        products: of these weights, for float32 sums; None for float64.
    """

    weights: Array
    clip_norm: float
    margin: float
    geometry: Geometry
    loss: Loss
    products: PlacelessProducts | None

    def add(self, block: Block, total: ExactSum) -> ClippedUnits:
        """Add sum_u c_u S_u over the people of a block, (n_classes, n_features), to `total`.

        People outside the sample (`block.sampled`) get a factor, but do not join the sum.
        """
        weights, bounds = self.weights, _bounds(block)
        most = 0 if self.geometry.forms else FORMED_ROWS
        taken = ClippedUnits(_zeros(weights, block.n_units), _zeros(weights, block.n_units))
        few, formed = np.diff(bounds) <= most, np.flatnonzero(np.diff(bounds) > most)
        rows = slice(None) if not len(formed) else np.flatnonzero(np.repeat(few, np.diff(bounds)))
        if len(block.y[rows]):
            self._add_few(block, rows, total, taken)
        if len(formed):
            term = namespace(weights).zeros_like(weights)
            for unit in formed.tolist():
                gradient = _formed(block, unit, weights, self.loss)
                norm = self.geometry.norm_of(gradient.T)
                c = clip_factors(norm, self.clip_norm, self.margin)
                taken.factors[unit], taken.lengths[unit] = c, norm
                if block.sampled is None or block.sampled[unit]:
                    term += c * gradient
            total.add(term)
        return taken

    def _add_few(self, block: Block, rows: Array, total: ExactSum, taken: ClippedUnits) -> None:
        """`add` for the people with few rows each; `rows` are the places of their rows, or all."""
        bounds = _bounds(block)
        x, y, lengths = widened(block.stored[rows]), block.y[rows], block.norms[rows]
        if self.products is None:
            x = double(x)
            r = residuals_of(x @ self.weights.T, y, self.loss)[0]
            r_norms = ((r * r).sum(-1)) ** 0.5
        else:
            r, r_norms = self.products.placeless_residuals(x, y)
        row_factors = 0.0 * r_norms
        shift = np.zeros(len(bounds) - 1, dtype=np.int64) if isinstance(rows, slice) else _moved(bounds, rows)
        for units, places in equal_units(bounds, FORMED_ROWS):
            places = places - shift[units, None]
            c = self._factors(block, x, r, lengths * r_norms, units, places, taken)
            row_factors[places] = c[:, None]
        sampled = None if block.sampled is None else np.repeat(block.sampled, np.diff(bounds))[rows]
        if self.products is None:
            joined = row_factors if sampled is None else row_factors * sampled
            total.add((r * joined[:, None]).T @ x)
        else:
            r *= single(row_factors)[:, None]
            self.products.add(total, r, x, sampled)

    def _factors(
        self, block: Block, x: Array, r: Array, spread: Array, units: Array, places: Array, taken: ClippedUnits
    ) -> Array:
        """c_u of people with equally many rows, which are at `places` (n, k) of x and r; also written to `taken`."""
        geometry, most = self.geometry, MOST_CANCELLATION * self.geometry.amplification(self.clip_norm)
        spread = spread[places].sum(-1)
        if places.shape[1] == 1 and geometry is PLAIN:
            norms = spread
        else:
            own = double(r[places])
            gram = None if block.grams is None else block.grams.get(places.shape[1])
            if gram is None or geometry is not PLAIN:
                mine = double(x[places])
                gram = mine @ mine.swapaxes(-1, -2)
            along = 0.0 if geometry is PLAIN else geometry.along(mine, own)
            norms = geometry.unit_norms((gram * (own @ own.swapaxes(-1, -2))).sum((-1, -2)), along, spread)
        c = clip_factors(namespace(norms).maximum(norms, spread / most), self.clip_norm, self.margin)
        taken.factors[units], taken.lengths[units] = c, norms
        return c


def _bounds(block: Block) -> NDArray[np.int64]:
    if block.bounds is None:
        raise ValueError("a block whose rows are units by themselves")
    return block.bounds


def _zeros(like: Array, size: int) -> Array:
    return np.zeros(size) if isinstance(like, np.ndarray) else like.new_zeros(size)


def _moved(bounds: NDArray[np.int64], rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """How many rows before the first of each unit are not among `rows`, shape (n_units,)."""
    return bounds[:-1] - np.searchsorted(rows, bounds[:-1])


def _formed(block: Block, unit: int, weights: Array, loss: Loss) -> Array:
    """S_u of one person, shape (n_classes, n_features), in pieces of `BLOCK_ROWS` rows."""
    first, stop = _bounds(block)[unit : unit + 2]
    total = namespace(weights).zeros_like(weights)
    for start in range(int(first), int(stop), BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, int(stop)))
        x = double(widened(block.stored[rows]))
        total += residuals_of(x @ weights.T, block.y[rows], loss)[0].T @ x
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
