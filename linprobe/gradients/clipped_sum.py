"""Clipped sums over private rows, streamed over blocks.

The gradient of one record is the rank-one matrix `x r^T`, so its norm is `||x|| ||r||` and a clipped sum is
`X^T (c * R)` (`linprobe.gradients.loss` has the norms of shifted and scaled gradients). One thread computes scores,
residuals, norms and products of a block while it is in cache; other threads take other blocks. The sum does not depend
on the assignment of blocks to threads (`linprobe.gradients.rounding.ExactSum`).

Where all rows of a person are one unit, the gradients of a person are summed, and the sum is clipped.

The gradient of person u is S_u = sum_j x_j r_j^T over the person's rows. Its norm needs no matrix of that size, only
the inner products of the rows and the inner products of the residuals:

    ||S_u||^2            = sum_(j, k) <x_j, x_k> <r_j, r_k>
    ||S_u - g||^2        = ||S_u||^2 - 2 sum_j x_j^T g r_j + ||g||^2              (a public origin g)

For people with more than `PAIRED_ROWS` rows, and for all people in a scale, S_u itself is formed: that is less work.
The norm is of the matrix that is added, so how that was rounded is no matter.

Rounding (docs/proofs/people.md): an empty place moves the rows of the next people up, so no result may depend on the
position of a row in its block. Rows of one person may cancel, so the factor also keeps their summed lengths, l = sum_j
||x_j|| ||r_j||, below `MOST_CANCELLATION` times the bound; orthogonal gradients of `PAIRED_ROWS` rows do not exceed
that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, product
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import BLOCK_ROWS, Block, Pairs, inner_products, pairs_of, widened
from linprobe.data.rows import BLOCK_UNITS, FAR, Rows
from linprobe.gradients.backend import HOST, Backend, ChosenRows, KernelProducts, Part, Products
from linprobe.gradients.loss import PLAIN, Geometry, Weights, checked_weights, residual_norms, residuals_of
from linprobe.gradients.rounding import (
    SMALLEST_MARGIN,
    Arithmetic,
    ExactSum,
    Sample,
    SteadyProducts,
    arithmetic,
    unit_arithmetic,
)
from linprobe.mechanisms.gaussian import ClippedSum, Projection, clip_factors, longest_left, relative_contributions
from linprobe.options import Loss
from linprobe.parallel.array_api import (
    Array,
    Indices,
    Reals,
    Singles,
    by_rows,
    double,
    namespace,
    on_host,
    segment_sums,
    single,
    transposed,
)
from linprobe.parallel.process_group import ALONE
from linprobe.parallel.threads import n_threads, share

MOST_CANCELLATION = 4.0  # the square root of PAIRED_ROWS


class ClippedUnits(NamedTuple):
    factors: Array  # c_u, (n_units,); 0 for a person without rows
    lengths: Array  # norm of each person's gradient in the geometry, (n_units,)
    weight: Array  # sum of the factors of the people who joined the sum, (1,)


@dataclass(frozen=True)
class Clip:
    """How gradients are clipped, and what all threads of a clipped sum share."""

    clip_norm: float
    margin: float  # share of `clip_norm` reserved for rounding errors
    geometry: Geometry
    loss: Loss
    rate: float  # probability with which units joined the sample
    observed: bool  # whether the factors of units outside the sample are wanted, and so their rows read
    wide: bool  # whether sums of a few rows are float64
    scores: SteadyProducts  # of rows that change their places, float64
    subspace: Subspace | None
    contributions: Array | None
    backend: Backend

    @property
    def plain(self) -> bool:
        """Whether these are softmax gradients in the plain geometry, which the kernel clips."""
        return self.loss == "softmax" and self.geometry is PLAIN

    @property
    def bound(self) -> float:
        return longest_left(self.clip_norm, self.margin)


@dataclass(frozen=True)
class UnitClip:
    """How the gradients of people are clipped and summed."""

    clip: Clip
    weights: Array  # (n_classes, n_features), float64
    scores: Callable[[Array], Array]  # x @ weights.T for rows x, each by itself
    products: KernelProducts | None  # of these weights, for float32 sums; None for float64

    def add(self, block: Block, total: ExactSum) -> ClippedUnits:
        """Add sum_u c_u S_u over the people of a block, (n_classes, n_features), to `total`.

        The sum reads the rows of the sample only: others would change their positions, and so the rounding of scores.
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
        """`add` in float32."""
        cells = None
        if not self.clip.observed and block.sampled is not None:
            sample = Sample.of(block.sampled, self.clip.rate)
            cells = sample.places[sample.ends - 1] + 1
            cells[-1:] = block.n_units
        factors, lengths = products.add_units(total, block, self.clip.bound, MOST_CANCELLATION, cells)
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
        xp = namespace(self.weights)
        term, gradient = xp.zeros_like(self.weights), xp.empty_like(self.weights)
        for unit in units:
            _form(block, unit, self.weights, self.clip.loss, gradient)
            norm = self.clip.geometry.norm_of(gradient.T)
            c = clip_factors(norm, self.clip.clip_norm, self.clip.margin)
            factors[unit], lengths[unit] = c, norm
            if total is not None and (block.sampled is None or block.sampled[unit]):
                gradient *= c
                term += gradient
        if total is not None:
            total.add(term)


def _joined(block: Block) -> Block:
    """The people of a block who are in its sample, with their rows, and the others without rows."""
    part = block.compact()
    pairs = pairs_of(_bounds(part))
    if block.pairs is not None and block.pairs.inner is not None and block.sampled is not None:
        pairs = replace(pairs, inner=block.pairs.inner[block.sampled[block.pairs.pair_owner]])
    return replace(part, sampled=None, pairs=pairs)


def _bounds(block: Block) -> Indices:
    if block.bounds is None:
        raise ValueError("a block whose rows are units by themselves")
    return block.bounds


def _zeros(like: Array, size: int) -> Array:
    return np.zeros(size) if isinstance(like, np.ndarray) else like.new_zeros(size)


def _form(block: Block, unit: int, weights: Array, loss: Loss, gradient: Array) -> None:
    """Write S_u of one person to `gradient`, shape (n_classes, n_features), in pieces of `BLOCK_ROWS` rows."""
    first, stop = _bounds(block)[unit : unit + 2]
    for start in range(int(first), int(stop), BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, int(stop)))
        x = double(widened(block.stored[rows]))
        own = None if block.weights is None else block.weights[rows]
        r = residuals_of(x @ weights.T, block.y[rows], loss, weights=own)[0]
        if start == first:
            namespace(x).matmul(r.T, x, out=gradient)
        else:
            gradient += r.T @ x


def unit_means(block: Block, x: Reals) -> Reals:
    """Mean over the rows x (b, width) of each person, shape (n_units, width); zero for a person without rows."""
    bounds = _bounds(block)
    sizes = np.diff(bounds)
    means = np.zeros((len(sizes), x.shape[1]))
    present = sizes > 0
    if present.any():
        means[present] = np.add.reduceat(x, bounds[:-1][present], axis=0) / sizes[present, None]
    return means


def outer_product_norms(block: Block, x: Reals) -> Reals:
    """||sum_j x_j x_j^T|| over the rows x of each person, shape (n_units,), from the inner products of the rows."""
    return np.sqrt(sums_over_pairs(_bounds(block), (x,), lambda inner: inner**2))


def sums_over_pairs(bounds: Indices, factors: Sequence[Reals], term: Callable[..., Reals]) -> Reals:
    """Sum over all pairs of rows of a person of `term` of the inner products of each of `factors`, (n_units,)."""
    sums = np.zeros(len(bounds) - 1)
    for unit, (first, stop) in enumerate(pairwise(bounds.tolist())):
        for a, b in product(range(first, stop, BLOCK_ROWS), repeat=2):
            one, other = slice(a, min(a + BLOCK_ROWS, stop)), slice(b, min(b + BLOCK_ROWS, stop))
            sums[unit] += float(term(*(factor[one] @ factor[other].T for factor in factors)).sum())
    return sums


WEIGHT_STEPS = np.float32(2.0**22)  # clip factors are rounded to 1 / WEIGHT_STEPS, so that integers sum them exactly
WIDE_ROWS = 1 << 12  # in a float64 sum that is rounded as a whole, at most: lemma 2 of docs/proofs/clipped-sum.md
MOST_TOTAL_BYTES = 1 << 28  # for the sums of all threads
Reduce = Callable[[NDArray[Any]], NDArray[Any]]


class Subspace(Projection, Protocol):
    """A projection that can also measure the norm of a projected row."""

    @property
    def parts(self) -> Sequence[Part]:
        """Products whose scores `row_norms` needs; a pass over the rows can compute them too."""

    def row_norms(self, block: Block, scores: Sequence[Singles] | None = None) -> Reals:
        """||U^T x|| of the rows of a block, shape (b,). `scores` of `parts`, if already computed."""


class _Worker:
    """One thread's share of a clipped sum, with `products` of weights (n_classes, n_features), float32.

    The float32 rounding of a record must not depend on the other records in the sample. The kernel computes the scores
    of a row in one order, at every place. BLAS does not. So without the kernel, scores are computed for all rows, at
    fixed places, or, if not all are observed, by `SteadyProducts`, and nothing is rounded to float32. Each float32 sum
    is over a run of a `Sample`. `weight` is the sum of clip factors in units of 1 / `WEIGHT_STEPS`.
    """

    def __init__(self, clip: Clip, weights: Array, products: Products, rows: Rows) -> None:
        self._products, self._clip, self._n_rows = products, clip, rows.n_rows
        steady = isinstance(products, KernelProducts) and not clip.wide
        self._plain = clip.plain and not clip.wide
        self._fused = products if isinstance(products, KernelProducts) and self._plain else None
        self._moving = not (clip.observed or steady)
        alone = products.scores if isinstance(products, KernelProducts) else clip.scores.of
        self._units = UnitClip(clip, double(weights), alone, self._fused) if rows.units else None
        self._further: Callable[[Array], Array] | None = None
        self.weight = 0

    @cached_property
    def sum(self) -> ExactSum:
        """Clipped sum over this thread's blocks, shape (n_classes, n_features)."""
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
        return self._fused.chosen(block, self._clip.bound, Sample.of(block.sampled, self._clip.rate))

    def take(self, given: Block | ChosenRows) -> None:
        """Clip the gradients of a block, or of what `prepared` made of it, and add them."""
        block = self.prepared(given) if isinstance(given, Block) else given
        if isinstance(block, ChosenRows):
            self._fused.add_chosen(self.sum, block)  # type: ignore[union-attr]  # as these products chose them
            return
        if block.bounds is not None:
            self._take_units(block)
            return
        sample = None if block.sampled is None else self._products.sample(block.sampled, self._clip.rate)
        if self._plain and block.weights is None and self._take_fused(block, sample):
            return
        if sample is None or self._clip.observed:
            self._take_rows(block, sample)
        else:
            rounded = self._moving or not isinstance(self.sum.shift, float)
            for part in sample.parts(BLOCK_ROWS, rounded=rounded):
                self._take_rows(block.chosen(part.places), Sample(np.arange(len(part.places)), part.ends))

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
            for start in range(0, len(x), WIDE_ROWS):
                here = slice(start, start + WIDE_ROWS)
                self.sum.add(double(r[here]).T @ double(x[here]))
        else:
            self._products.add(self.sum, r, x, sample)
        if clip.geometry.weighs:
            xp = namespace(narrow_factors)
            self.weight += int(xp.sum(xp.round(narrow_factors * float(WEIGHT_STEPS)), dtype=xp.float64))

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
            self.wide_weight.add(on_host(taken.weight))

    def _multiply(self, x: Array, matrix: Array) -> Array:
        """x @ matrix, for the matrix of the geometry; products of a sample depend on no other row."""
        if self._clip.observed:
            return x @ matrix
        if self._further is None:
            steady = self._moving
            self._further = SteadyProducts(matrix).of if steady else self._clip.backend.products(matrix.T).scores
        return self._further(x)

    def _take_fused(self, block: Block, sample: Sample | None) -> bool:
        """Whether `take` is done in one call, for a block whose records are all observed."""
        parts = () if self._clip.contributions is None or self._clip.subspace is None else self._clip.subspace.parts
        taken = self._products.clip_block(self.sum, block, self._clip.bound, parts, sample=sample)
        if taken is None:
            return False
        self._note(block, block.norms * taken.r_norms, taken.r_norms, taken.factors, taken.scores)
        return True

    def _note(
        self, block: Block, norms: Array, r_norms: Array, factors: Array, scores: Sequence[Singles] | None = None
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

    Raises DivergedError: weights too large for float32 scores, on the host. ParameterError: an amplification of
    `geometry` beyond which rounding could not be bounded.
    """
    narrow = transposed(checked_weights(weights))
    products = backend.products(narrow)
    rounding = _rounding(rows, products, geometry, loss, clip_norm, math.prod(weights.shape))
    contributions = backend.zeros(rows.n_local) if per_record and rows.observed else None
    wide, rate = rounding.dtype is np.float64, rows.sampling_rate
    given = clip_norm, rounding.margin, geometry, loss, rate, rows.observed
    clip = Clip(*given, wide, SteadyProducts(narrow.T), subspace, contributions, backend)
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
    tracked = np.empty(0) if contributions is None else contributions[: rows.n_tracked]
    return ClippedSum(value, clip_norm, tracked, rows.sampling_rate)


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
            yield partial(lambda prepared: prepared, worker.prepared(load()))
        else:
            yield load


def row_sum(
    rows: Rows, clip_norm: float, origin: Reals | None = None, *, all_reduce: Reduce = ALONE.all_reduce
) -> ClippedSum:
    """Sum of rows, or of their differences from a public `origin` (n_features,), each clipped to `clip_norm`.

    Where the rows of a person are one unit, the mean of each person's rows, or of their differences, stands for a row.

    Sums are float64, so that rounding is far below the margin. Shape (n_features, 1); sensitivity `clip_norm`.
    """
    total, lock = ExactSum(np.zeros(rows.n_features), np.array(clip_norm), rows.n_rows), Lock()
    contributions = np.empty(rows.n_local)

    def take(block: Block) -> None:
        x = block.x.astype(np.float64) if origin is None else block.x - origin
        if block.bounds is not None:
            x = unit_means(block, x)
        elif origin is not None:
            x[block.norms == FAR] = 0  # an empty place differs from no origin
        norms = np.sqrt(np.einsum("ij,ij->i", x, x))
        factors = clip_factors(norms, clip_norm, SMALLEST_MARGIN)
        here = slice(block.start, block.start + len(x))
        contributions[here] = relative_contributions(factors * norms, clip_norm, SMALLEST_MARGIN)
        term = factors @ x
        with lock:
            total.add(term)

    share(rows.lazy_blocks(), [take] * n_threads())
    return ClippedSum(all_reduce(total.total)[:, None], clip_norm, contributions)
