"""Clipped sums over private rows, streamed over blocks.

The gradient of one record is the rank-one matrix `x r^T`, so its norm is `||x|| ||r||` and a clipped sum is
`X^T (c * R)` (`linprobe.gradients.geometry` has the norms of shifted and scaled gradients). One thread computes scores,
residuals, norms and products of a block while it is in cache; other threads take other blocks. The sum does not depend
on the assignment of blocks to threads (`linprobe.gradients.rounding.ExactSum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block
from linprobe.data.rows import BLOCK_UNITS, Rows
from linprobe.data.sources import BLOCK_ROWS
from linprobe.gradients.backend import Backend, Part, Products
from linprobe.gradients.geometry import PLAIN, Geometry
from linprobe.gradients.host import HOST
from linprobe.gradients.kernel import ChosenRows, KernelProducts
from linprobe.gradients.loss import Weights, checked_weights, residual_norms, residuals_of
from linprobe.gradients.rounding import (
    SMALLEST_MARGIN,
    Arithmetic,
    ExactSum,
    Sample,
    SteadyProducts,
    arithmetic,
    unit_arithmetic,
)
from linprobe.gradients.unit_sums import MOST_CANCELLATION, Clip, UnitClip, unit_means
from linprobe.mechanisms.gaussian import ClippedSum, Projection, clip_factors, relative_contributions
from linprobe.options import Loss
from linprobe.parallel.array_api import Array, by_rows, double, single, transposed
from linprobe.parallel.process_group import ALONE
from linprobe.parallel.threads import share

WEIGHT_STEPS = np.float32(2.0**22)  # clip factors are rounded to 1 / WEIGHT_STEPS, so that integers sum them exactly
FEW_ENTRIES = 1 << 15  # of a sum that takes less time than a thread to start
MOST_TOTAL_BYTES = 1 << 28  # for the sums of all threads
Reduce = Callable[[NDArray[Any]], NDArray[Any]]


class Subspace(Projection, Protocol):
    """A projection that can also measure the norm of a projected row."""

    @property
    def parts(self) -> Sequence[Part]:
        """Products whose scores `row_norms` needs; a pass over the rows can compute them too."""

    def row_norms(self, block: Block, scores: Sequence[NDArray[np.float32]] | None = None) -> NDArray[np.float64]:
        """||U^T x|| of the rows of a block, shape (b,). `scores` of `parts`, if already computed."""


@dataclass(frozen=True)
class _Pass(Clip):
    """What all threads of a clipped sum share.

    `wide`: whether sums of a few rows are float64. `scores`: float64 scores of rows, for rows that change their places.
    """

    wide: bool
    scores: SteadyProducts
    subspace: Subspace | None
    contributions: Array | None
    backend: Backend


class _Worker:
    """One thread's share of a clipped sum.

    The float32 rounding of a record must not depend on the other records in the sample. The kernel computes the scores
    of a row in one order, at every place. BLAS does not. So without the kernel, scores are computed for all rows, at
    fixed places, or, if not all are observed, by `SteadyProducts`, and nothing is rounded to float32. Each float32 sum
    is over a run of a `Sample`.

    Args:
        weights: shape (n_classes, n_features), float32. products: with `weights`, for this thread.
        rows: the rows of all threads.

    Attributes:
        weight: sum of the clip factors of this thread's blocks, in units of 1 / `WEIGHT_STEPS`.
    """

    def __init__(self, clip: _Pass, weights: Array, products: Products, rows: Rows) -> None:
        self._products, self._clip, self._n_rows = products, clip, rows.n_rows
        steady = isinstance(products, KernelProducts) and not clip.wide
        self._fused = products if isinstance(products, KernelProducts) and not clip.wide and clip.plain else None
        self._moving = not (clip.observed or steady)
        alone = products.scores if isinstance(products, KernelProducts) else clip.scores.of
        self._units = UnitClip(clip, double(weights), alone, self._fused) if rows.units else None
        self._further: Callable[[Array], Array] | None = None
        self.weight = 0
        # a large sum is made by its thread
        self._sum = self._empty_sum() if math.prod(weights.shape) <= FEW_ENTRIES else None

    @property
    def sum(self) -> ExactSum:
        """Clipped sum over this thread's blocks, shape (n_classes, n_features)."""
        if self._sum is None:
            self._sum = self._empty_sum()
        return self._sum

    def _empty_sum(self) -> ExactSum:
        clip = self._clip
        return ExactSum(self._products.zeros(), clip.geometry.longest(clip.clip_norm).T, self._n_rows)

    @cached_property
    def wide_weight(self) -> ExactSum:
        """Sum of the float64 clip factors: of people, and of samples without the kernel."""
        return ExactSum(np.zeros(1), np.ones(()), self._n_rows)

    def prepared(self, block: Block) -> Block | ChosenRows:
        """The block, or its sample if one call can add that; for `take` of any worker."""
        if self._fused is None or self._clip.observed or block.sampled is None:
            return block
        if block.bounds is not None or block.weights is not None:
            return block
        sample = Sample.of(block.sampled, self._clip.rate)
        return self._fused.chosen(block.rows, block.y, block.norms, self._clip.bound, sample)

    def take(self, given: Block | ChosenRows) -> None:
        """Clip the gradients of a block, or of what `prepared` made of it, and add them."""
        block = self.prepared(given) if isinstance(given, Block) else given
        if isinstance(block, ChosenRows):
            self._fused.add_chosen(self.sum, block)  # type: ignore[union-attr]  # as these products chose them
            return
        if block.bounds is not None:
            self._take_units(block)
            return
        sample = None if block.sampled is None else Sample.of(block.sampled, self._clip.rate)
        if self._fused is not None and block.weights is None:
            self._take_fused(block, self._fused, sample)
        elif sample is None or self._clip.observed:
            self._take_rows(block, sample)
        else:
            rounded = self._moving or not isinstance(self.sum.shift, float)
            for part in sample.parts(BLOCK_ROWS, rounded=rounded):
                self._take_rows(block.chosen(part.places), part.compact())

    def _take_rows(self, block: Block, sample: Sample | None) -> None:
        """Clip the gradients of all rows, and add the gradients of `sample`, or of all rows."""
        clip, x = self._clip, block.x
        if self._moving:
            block = replace(block, stored=double(x), translation=None)  # norms in a geometry are products too
        scores = clip.scores.of(block.x) if self._moving else self._products.scores(x)
        r, _ = residuals_of(scores, block.y, clip.loss, weights=block.weights)
        r_norms = residual_norms(r)
        norms = clip.geometry.norms(block, r, r_norms, self._multiply)
        factors = clip_factors(norms, clip.clip_norm, clip.margin)
        self._note(block, norms, r_norms, factors)
        if block.sampled is not None:
            factors = factors * block.sampled
        narrow_factors = single(factors)
        if self._moving:
            self.sum.add((r * factors[:, None]).T @ block.x)
            self.wide_weight.add(factors.sum(keepdims=True))
            return
        if clip.loss == "squared":  # residuals have any size, and factors may be denormal in float32
            r = single(double(r) * factors[:, None])
        else:
            r *= narrow_factors[:, None]
        if clip.wide:
            self.sum.add(double(r).T @ double(x))
        else:
            self._products.add(self.sum, r, x, sample)
        if clip.geometry.weighs:
            self.weight += int((narrow_factors * WEIGHT_STEPS).round().sum(dtype=np.float64))

    def _take_units(self, block: Block) -> None:
        """`take` for a block of people, whose summed gradients are clipped."""
        if self._units is None:
            raise ValueError("a block of people in rows whose `units` is False")
        clip, taken = self._clip, self._units.add(block, self.sum)
        if clip.contributions is not None:
            here = slice(block.start, block.start + block.n_units)
            # a projection shortens no gradient, so the plain norm bounds the contribution in a subspace too
            lengths = taken.factors * taken.lengths
            clip.contributions[here] = relative_contributions(lengths, clip.clip_norm, clip.margin)
        if clip.geometry.weighs:
            self.wide_weight.add(taken.weight)

    def _multiply(self, x: Array, matrix: Array) -> Array:
        """x @ matrix, for the matrix of the geometry; products of a sample depend on no other row."""
        if self._clip.observed:
            return x @ matrix
        if self._further is None:
            steady = self._moving
            self._further = SteadyProducts(matrix).of if steady else self._clip.backend.products(matrix.T).scores
        return self._further(x)

    def _take_fused(self, block: Block, products: KernelProducts, sample: Sample | None) -> None:
        """`take` in one call, for a block whose records are all observed."""
        parts = () if self._clip.contributions is None or self._clip.subspace is None else self._clip.subspace.parts
        given = block.rows, block.y, block.norms, self._clip.bound, parts
        taken = products.add_clipped(self.sum, *given, sample=sample)
        self._note(block, block.norms * taken.r_norms, taken.r_norms, taken.factors, taken.scores)

    def _note(
        self,
        block: Block,
        norms: Array,
        r_norms: Array,
        factors: Array,
        scores: Sequence[NDArray[np.float32]] | None = None,
    ) -> None:
        """Store the contribution of each record of the block, if contributions are wanted."""
        clip = self._clip
        if clip.contributions is None:
            return
        lengths = norms if clip.subspace is None else clip.subspace.row_norms(block, scores) * r_norms
        here = slice(block.start, block.start + len(block.y))
        clip.contributions[here] = relative_contributions(factors * lengths, clip.clip_norm, clip.margin)


def clipped_sum(
    rows: Rows,
    weights: Weights,
    clip_norm: float,
    *,
    subspace: Subspace | None = None,
    geometry: Geometry = PLAIN,
    loss: Loss = "softmax",
    per_record: bool = True,
    backend: Backend = HOST,
    all_reduce: Reduce = ALONE.all_reduce,
) -> ClippedSum:
    """Sum over rows of per-example gradients, each clipped to `clip_norm`, at `weights` (n_features, n_classes).

    Where the rows of a person are one unit, the gradients of each person are summed and the sum is clipped. Weights of
    rows multiply their gradients before they are clipped or summed. Sensitivity under zero-out of one record, or of one
    person: `clip_norm`, in the geometry given. Clip factors are computed from the same residuals as the sum. `subspace`
    applies to the contributions, not to the sum. Contributions are empty without `per_record`, or if the blocks of
    `rows` contain only sampled rows. `all_reduce` adds the sums of all processes. The sum has the same bits for any
    number of threads and of processes.

    Raises:
        DivergedError: weights too large for float32 scores, on the host.
        ParameterError: an amplification of `geometry` beyond which rounding could not be bounded.
    """
    narrow = transposed(checked_weights(weights))
    products = backend.products(narrow)
    rounding = _rounding(rows, products, geometry, loss, clip_norm, math.prod(weights.shape))
    contributions = backend.zeros(rows.n_local) if per_record and rows.observed else None
    wide, rate = rounding.dtype is np.float64, rows.sampling_rate
    given = clip_norm, rounding.margin, geometry, loss, rate, rows.observed
    clip = _Pass(*given, wide, SteadyProducts(narrow.T), subspace, contributions, backend)
    most = max(1, MOST_TOTAL_BYTES // (8 * math.prod(weights.shape)))
    n_threads = min(backend.n_threads(rows, weights), most)
    workers = [_Worker(clip, narrow, products.for_thread(), rows) for _ in range(n_threads)]
    share(_pieces(rows, workers[0]), [worker.take for worker in workers])
    total = workers[0].sum.total

    def add_others(part: slice) -> None:
        for worker in workers[1:]:
            total[part] += worker.sum.total[part]

    if len(workers) > 1:
        by_rows(total, add_others)
    weight = 0.0
    if geometry.weighs:
        weight = float(all_reduce(np.array(float(sum(worker.weight for worker in workers)))) / WEIGHT_STEPS)
        weight += float(all_reduce(sum(worker.wide_weight.total for worker in workers))[0])
    value = geometry.finish(all_reduce(total).T, weight)
    return ClippedSum(value, clip_norm, np.empty(0) if contributions is None else contributions, rows.sampling_rate)


def _rounding(
    rows: Rows, products: Products, geometry: Geometry, loss: Loss, clip_norm: float, n_entries: int
) -> Arithmetic:
    """Margin and type of the sums. Those of people are float32 only where the kernel clips their gradients."""
    amplification = geometry.amplification(clip_norm)
    if not rows.units:
        return arithmetic(amplification, n_entries, rows.n_rows, rows.sampling_rate)
    narrow = loss == "softmax" and geometry is PLAIN and isinstance(products, KernelProducts)
    cell = BLOCK_UNITS if narrow else None
    return unit_arithmetic(MOST_CANCELLATION * amplification, n_entries, rows.n_rows, block_units=cell)


def _pieces(rows: Rows, worker: _Worker) -> Iterator[Callable[[], Block | ChosenRows]]:
    """The blocks. Those in memory are prepared one after another, so that a thread has little else to do in Python."""
    for load in rows.lazy_blocks():
        if rows.in_memory:
            yield partial(_itself, worker.prepared(load()))
        else:
            yield load


def _itself(given: Block | ChosenRows) -> Block | ChosenRows:
    return given


def row_sum(
    rows: Rows, clip_norm: float, origin: NDArray[np.float64] | None = None, *, all_reduce: Reduce = ALONE.all_reduce
) -> ClippedSum:
    """Sum of rows, or of their differences from a public `origin` (n_features,), each clipped to `clip_norm`.

    Where the rows of a person are one unit, the mean of each person's rows, or of their differences, stands for a row.

    Sums are float64, so that rounding is far below the margin. Shape (n_features, 1); sensitivity `clip_norm`.
    """
    total = ExactSum(np.zeros(rows.n_features), np.array(clip_norm), rows.n_rows)
    contributions = np.empty(rows.n_local)

    def take(block: Block) -> None:
        x = block.x.astype(np.float64) if origin is None else block.x - origin
        if block.bounds is not None:
            x = unit_means(block, x)
        norms = np.sqrt(np.einsum("ij,ij->i", x, x))
        factors = clip_factors(norms, clip_norm, SMALLEST_MARGIN)
        here = slice(block.start, block.start + len(x))
        contributions[here] = relative_contributions(factors * norms, clip_norm, SMALLEST_MARGIN)
        total.add(factors @ x)

    share(rows.lazy_blocks(), [take])
    return ClippedSum(all_reduce(total.total)[:, None], clip_norm, contributions)
