"""Clipped sums where all rows of a person are one unit: the gradients of a person are summed, and the sum is clipped.

The gradient of person u is S_u = sum_j x_j r_j^T over the person's rows. Its norm needs no matrix of that size, only
the inner products of the rows and the inner products of the residuals:

    ||S_u||^2            = sum_(j, k) <x_j, x_k> <r_j, r_k>
    ||S_u - g||^2        = ||S_u||^2 - 2 sum_j x_j^T g r_j + ||g||^2              (a public origin g)

People with more than `PAIRED_ROWS` rows, and all people in a scale, have S_u formed instead, which is then less work.

Rounding: a person whose place is empty moves the rows of the others in the block of that place, so nothing may depend
on the place of a row. The kernel scores each row by itself; without it, scores are `SteadyProducts`. Other products are
float64; or, for softmax in the plain geometry with the kernel, float32 (`KernelProducts`). The rows of one person may
cancel. So the factor also keeps the summed lengths of the person's gradients, l = sum_j ||x_j|| ||r_j||, below
`MOST_CANCELLATION` times the bound: without it, rounding relative to l would not be bounded relative to the clip norm.
Orthogonal gradients of `PAIRED_ROWS` rows do not exceed that limit. docs/proofs/people.md has the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import PAIRED_ROWS, Block, Pairs, inner_products, pairs_of, widened
from linprobe.data.sources import BLOCK_ROWS
from linprobe.gradients.geometry import PLAIN, Geometry
from linprobe.gradients.kernel import KernelProducts
from linprobe.gradients.loss import residuals_of
from linprobe.gradients.rounding import ExactSum, Sample
from linprobe.mechanisms.gaussian import clip_factors, longest_left
from linprobe.options import Loss
from linprobe.parallel.array_api import Array, double, namespace, segment_sums

MOST_CANCELLATION = 4.0  # the square root of PAIRED_ROWS


class ClippedUnits(NamedTuple):
    """The people of a block.

    Attributes:
        factors: c_u, shape (n_units,); 0 for a person without rows.
        lengths: norm of each person's gradient in the geometry, shape (n_units,).
        weight: sum of the factors of the people who joined the sum, shape (1,).
    """

    factors: Array
    lengths: Array
    weight: Array


@dataclass(frozen=True)
class Clip:
    """How gradients are clipped.

    Attributes:
        margin: share of `clip_norm` reserved for rounding errors.
        rate: probability with which units joined the sample.
        observed: whether the factors of units outside the sample are wanted. If not, their rows are not read.
    """

    clip_norm: float
    margin: float
    geometry: Geometry
    loss: Loss
    rate: float
    observed: bool

    @property
    def plain(self) -> bool:
        """Whether these are softmax gradients in the plain geometry, which the kernel clips."""
        return self.loss == "softmax" and self.geometry is PLAIN

    @property
    def bound(self) -> float:
        """Largest norm of a clipped gradient."""
        return longest_left(self.clip_norm, self.margin)


@dataclass(frozen=True)
class UnitClip:
    """How the gradients of people are clipped and summed.

    Attributes:
        weights: shape (n_classes, n_features), float64.
        scores: x @ weights.T for rows x, where the scores of a row depend on no other row.
        products: of these weights, for float32 sums; None for float64.
    """

    clip: Clip
    weights: Array
    scores: Callable[[Array], Array]
    products: KernelProducts | None

    def add(self, block: Block, total: ExactSum) -> ClippedUnits:
        """Add sum_u c_u S_u over the people of a block, (n_classes, n_features), to `total`.

        People outside the sample (`block.sampled`) do not join the sum. The sum reads the rows of the sample only:
        other rows would change the positions of these rows, and so the rounding of their scores.
        """
        if self.products is not None:
            return self._add_narrow(self.products, block, total)
        if block.sampled is None:
            return self._add(block, total)
        joined = self._add(_joined(block), total)
        if not self.clip.observed:
            return joined
        return self._add(replace(block, sampled=None), None)._replace(weight=joined.weight)

    def _add_narrow(self, products: KernelProducts, block: Block, total: ExactSum) -> ClippedUnits:
        """`add` in float32; the gradients of people with many rows are formed in float64, one by one."""
        cells = None
        many = np.diff(_bounds(block)) > PAIRED_ROWS
        if not self.clip.observed and block.sampled is not None:
            sample = Sample.of(block.sampled, self.clip.rate)
            cells = sample.places[sample.ends - 1] + 1
            cells[-1:] = block.n_units
            many &= block.sampled
        factors, lengths = products.add_units(total, block, self.clip.bound, MOST_CANCELLATION, cells)
        if many.any():
            self._add_formed(block, np.flatnonzero(many).tolist(), total, factors, lengths)
        return ClippedUnits(factors, lengths, np.zeros(1))  # the plain geometry needs no weight

    def _add(self, block: Block, total: ExactSum | None) -> ClippedUnits:
        """`add` for all people of a block; only their factors and lengths if `total` is None."""
        pairs = block.pairs or pairs_of(_bounds(block))
        factors, lengths = _zeros(self.weights, block.n_units), _zeros(self.weights, block.n_units)
        formed = pairs.formed
        if self.clip.geometry.forms:
            formed = np.flatnonzero(np.diff(_bounds(block)))
        elif len(pairs.owner):
            self._add_few(block, pairs, total, factors, lengths)
        if len(formed):
            self._add_formed(block, formed.tolist(), total, factors, lengths)
        return ClippedUnits(factors, lengths, factors.sum(0, keepdims=True))

    def _add_few(self, block: Block, pairs: Pairs, total: ExactSum | None, factors: Array, lengths: Array) -> None:
        """`_add` for the people with few rows each."""
        clip, geometry, owner = self.clip, self.clip.geometry, pairs.owner
        x, y = widened(block.stored[pairs.rows]), block.y[pairs.rows]
        weights = None if block.weights is None else block.weights[pairs.rows]
        r = residuals_of(double(self.scores(x)), y, clip.loss, weights=weights)[0]
        x = double(x)
        row_lengths = ((x * x).sum(-1) * (r * r).sum(-1)) ** 0.5
        inner = inner_products(block.stored, pairs) if pairs.inner is None else pairs.inner
        inner = inner * (r[pairs.first] * r[pairs.second]).sum(-1)
        spread, own = (segment_sums(values, owner, pairs.counts) for values in (row_lengths, row_lengths**2))
        squared = own + 2 * segment_sums(inner, pairs.pair_owner, pairs.pair_counts)
        along = geometry.along(x, r)
        along = along if isinstance(along, float) else segment_sums(along, owner, pairs.counts)
        norms = geometry.unit_norms(squared, along, spread)
        most = MOST_CANCELLATION * geometry.amplification(clip.clip_norm)
        c = clip_factors(namespace(norms).maximum(norms, spread / most), clip.clip_norm, clip.margin)
        factors[pairs.units], lengths[pairs.units] = c[pairs.units], norms[pairs.units]
        if total is not None:
            total.add((r * c[owner][:, None]).T @ x)

    def _add_formed(
        self, block: Block, units: Sequence[int], total: ExactSum | None, factors: Array, lengths: Array
    ) -> None:
        """`_add` for the people whose gradients are formed."""
        term = namespace(self.weights).zeros_like(self.weights)
        for unit in units:
            gradient = _formed(block, unit, self.weights, self.clip.loss)
            norm = self.clip.geometry.norm_of(gradient.T)
            c = clip_factors(norm, self.clip.clip_norm, self.clip.margin)
            factors[unit], lengths[unit] = c, norm
            if total is not None and (block.sampled is None or block.sampled[unit]):
                term += c * gradient
        if total is not None:
            total.add(term)


def _joined(block: Block) -> Block:
    """The people of a block who are in its sample, with their rows, and the others without rows."""
    part = block.compact()
    pairs = pairs_of(_bounds(part))
    if block.pairs is not None and block.pairs.inner is not None and block.sampled is not None:
        pairs = replace(pairs, inner=block.pairs.inner[block.sampled[block.pairs.pair_owner]])
    return replace(part, sampled=None, pairs=pairs)


def _bounds(block: Block) -> NDArray[np.int64]:
    if block.bounds is None:
        raise ValueError("a block whose rows are units by themselves")
    return block.bounds


def _zeros(like: Array, size: int) -> Array:
    return np.zeros(size) if isinstance(like, np.ndarray) else like.new_zeros(size)


def _formed(block: Block, unit: int, weights: Array, loss: Loss) -> Array:
    """S_u of one person, shape (n_classes, n_features), in pieces of `BLOCK_ROWS` rows."""
    first, stop = _bounds(block)[unit : unit + 2]
    total = namespace(weights).zeros_like(weights)
    for start in range(int(first), int(stop), BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, int(stop)))
        x = double(widened(block.stored[rows]))
        own = None if block.weights is None else block.weights[rows]
        total += residuals_of(x @ weights.T, block.y[rows], loss, weights=own)[0].T @ x
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
    return np.sqrt(sums_over_pairs(_bounds(block), (x,), lambda inner: inner**2))


def sums_over_pairs(
    bounds: NDArray[np.int64], factors: Sequence[NDArray[np.float64]], term: Callable[..., NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Sum over all pairs of rows j, k of a person of `term`, shape (n_units,), in pieces of `BLOCK_ROWS` rows.

    Args:
        factors: matrices (b, width). term: gets the inner products <f_j, f_k> of each, as matrices over pairs.
    """
    sums = np.zeros(len(bounds) - 1)
    for unit, (first, stop) in enumerate(pairwise(bounds.tolist())):
        for a, b in product(range(first, stop, BLOCK_ROWS), repeat=2):
            one, other = slice(a, min(a + BLOCK_ROWS, stop)), slice(b, min(b + BLOCK_ROWS, stop))
            sums[unit] += float(term(*(factor[one] @ factor[other].T for factor in factors)).sum())
    return sums
