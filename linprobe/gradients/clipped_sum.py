"""Softmax and squared loss in closed form, streamed over blocks of rows.

The gradient of one record is the rank-one matrix `x r^T` with residual `r = softmax(W^T x) - onehot(y)`, or
`r = W^T x - y`, so its norm is `||x|| ||r||` and a clipped sum is `X^T (c * R)`: no per-example gradient is ever formed
(`linprobe.gradients.geometry` has the norms of shifted and scaled ones). Scores, residuals, norms and products of a block are
taken by one thread while it is in cache; other threads take other blocks. What is summed does not depend on who took
which (`linprobe.gradients.rounding.ExactSum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from linprobe.data.preprocessing import row_norms
from linprobe.data.rows import BLOCK_ROWS, Block, Blocks
from linprobe.errors import LinprobeError, ParameterError
from linprobe.gradients.geometry import PLAIN, Geometry
from linprobe.gradients.host import Part
from linprobe.gradients.rounding import ExactSum
from linprobe.mechanisms.clipping import (
    ClippedSum,
    arithmetic,
    clip_factors,
    longest_left,
    relative_contributions,
)
from linprobe.mechanisms.gaussian import Projection
from linprobe.parallel.array_api import Array, double, namespace, norm, numbers_like, on_host, single
from linprobe.parallel.threads import in_order, n_threads, share

LARGEST_WEIGHTS = 1e30
WEIGHT_STEPS = np.float32(2.0**22)  # in which sums of clip factors are counted, exactly
WORTH_A_THREAD = 1 << 23  # products of two numbers
MOST_TOTAL_BYTES = 1 << 28  # of all threads' sums
Weights = NDArray[np.float64]
Loss = Literal["softmax", "squared"]
LOSSES = ("softmax", "squared")


class Subspace(Projection, Protocol):
    """A projection that can also tell how long a row is inside it."""

    @property
    def parts(self) -> Sequence[Part]:
        """Products it asks for, whose scores one pass over the rows can take on its way."""

    def row_norms(self, block: Block, scores: Sequence[NDArray[np.float32]] | None = None) -> NDArray[np.float64]:
        """||U^T x|| of the rows of a block, shape (b,); the scores of `parts`, if they were taken already."""


def check_loss(loss: str) -> None:
    """ParameterError unless `loss` is one of `LOSSES`."""
    if loss not in LOSSES:
        raise ParameterError(f"loss is {loss!r}; allowed: {', '.join(LOSSES)}")


def residuals(x: Array, y: Array, weights: Array, loss: Loss = "softmax") -> Array:
    """softmax(x W) - onehot(y), or x W - y for squared loss, shape (b, n_classes), float32."""
    return _residuals_of(x @ weights, y, loss)


def _residuals_of(scores: Array, y: Array, loss: Loss) -> Array:
    """Residuals of scores (b, n_classes), in place."""
    if loss == "softmax":
        xp = namespace(scores)
        scores -= xp.max(scores, axis=1, keepdims=True)
        xp.exp(scores, out=scores)
        scores /= xp.sum(scores, axis=1, keepdims=True)
    return _minus_targets(scores, y, loss)


def _minus_targets(r: Array, y: Array, loss: Loss) -> Array:
    """r - onehot(y) for class indices, r - y for real targets, in place."""
    if loss == "squared" and y.ndim == 2:
        r -= y
    else:
        r[numbers_like(y), y] -= 1
    return r


def _residual_norms(r: Array) -> Array:
    """Of any size that float32 holds: residuals of squared loss may grow until `check_weights` ends it."""
    if isinstance(r, np.ndarray):
        return row_norms(r)
    xp = namespace(r)
    return xp.linalg.vector_norm(r, axis=1, dtype=xp.float64)


def check_weights(weights: NDArray[np.floating]) -> None:
    """Refuse weights too large for float32 scores, where a clip factor would stop bounding anything.

    Weights are public at this point: the initial ones, or releases.
    """
    if not np.linalg.norm(weights.astype(np.float64)) < LARGEST_WEIGHTS:
        raise LinprobeError(
            f"training diverged: the weights grew beyond {LARGEST_WEIGHTS:g}; nothing was written; "
            "lower --learning-rate or --score-noise"
        )


def _checked(weights: Array) -> Array:
    """Weights that `check_weights` lets pass. On a device, where nobody waits to see, zeros stand for others.

    They go on growing from there, so that the check at the end of training finds them.
    """
    if isinstance(weights, np.ndarray):
        check_weights(weights)
        return weights
    return namespace(weights).where(norm(double(weights)) < LARGEST_WEIGHTS, weights, 0.0)


def _threads_for(rows: Blocks, weights: Array) -> int:
    """How many threads are worth their while; one where a device does the work."""
    if not isinstance(weights, np.ndarray):
        return 1
    products = rows.n_held * int(math.prod(weights.shape))
    return max(1, min(n_threads(), -(-rows.n_held // BLOCK_ROWS), products // WORTH_A_THREAD))


@dataclass(frozen=True)
class _Clip:
    """What every thread of a clipped sum is told."""

    clip_norm: float
    margin: float
    wide: bool
    geometry: Geometry
    loss: Loss
    subspace: Subspace | None
    contributions: Array | None

    @property
    def simple(self) -> bool:
        """Whether it is one of softmax gradients as they are, in float32."""
        return self.loss == "softmax" and self.geometry is PLAIN and not self.wide


class _Taker:
    """One thread's share of a clipped sum: the `sum` (n_classes, n_features) of the blocks it took, and their `weight`.

    What is rounded to float32 must not depend on who joined a sample, except for the one who did. Where blocks hold all
    rows, scores are taken of all, and sums over those who joined of `SUM_ROWS` places at a time. Where they hold a
    sample only, one record moves others to another place, and all products are float64.

    Args:
        rows: all of them. weights: (n_classes, n_features), float32.
    """

    def __init__(self, rows: Blocks, weights: Array, clip: _Clip) -> None:
        self._products, self._clip = rows.products(weights), clip
        self._weights = None if rows.observed else double(weights)
        self._at_once = self._products.clips and rows.observed and clip.simple
        self.sum = ExactSum(self._products.zeros(), clip.geometry.longest(clip.clip_norm).T, rows.n_rows)
        self.weight = 0

    def take(self, block: Block) -> None:
        """Clip the block's gradients and add them up."""
        if self._at_once and block.joined is None:
            bound = longest_left(self._clip.clip_norm, self._clip.margin)
            parts = () if self._clip.contributions is None or self._clip.subspace is None else self._clip.subspace.parts
            taken = self._products.add_clipped(self.sum, block.stored, block.y, block.norms, bound, parts)
            self._note(block, block.norms * taken.r_norms, taken.r_norms, taken.factors, taken.scores)
            return
        clip, x = self._clip, block.x
        if self._weights is None:
            r = _residuals_of(self._products.scores(x), block.y, clip.loss)
        else:
            block = replace(block, stored=double(x))  # lengths in a geometry are products too
            r = single(_residuals_of(block.x @ self._weights.T, block.y, clip.loss))
        r_norms = _residual_norms(r)
        norms = clip.geometry.norms(block, r, r_norms)
        factors = clip_factors(norms, clip.clip_norm, clip.margin)
        self._note(block, norms, r_norms, factors)
        narrow_factors = single(factors)
        if block.joined is not None:
            narrow_factors *= block.joined
        r *= narrow_factors[:, None]
        if clip.wide or self._weights is not None:
            self.sum.add(double(r).T @ double(x))
        else:
            self._products.add(self.sum, r, x, block.joined)
        if clip.geometry.weighs:
            self.weight += int((narrow_factors * WEIGHT_STEPS).round().sum(dtype=np.float64))

    def _note(
        self,
        block: Block,
        norms: Array,
        r_norms: Array,
        factors: Array,
        scores: Sequence[NDArray[np.float32]] | None = None,
    ) -> None:
        """What each record of the block contributes, where somebody looks."""
        clip = self._clip
        if clip.contributions is None:
            return
        lengths = norms if clip.subspace is None else clip.subspace.row_norms(block, scores) * r_norms
        here = slice(block.start, block.start + len(block.y))
        clip.contributions[here] = relative_contributions(factors * lengths, clip.clip_norm, clip.margin)


def clipped_sum(
    rows: Blocks,
    weights: Weights,
    clip_norm: float,
    *,
    subspace: Subspace | None = None,
    geometry: Geometry = PLAIN,
    loss: Loss = "softmax",
    per_record: bool = True,
) -> ClippedSum:
    """Sum over rows of per-example gradients, each clipped to `clip_norm`, at `weights` (n_features, n_classes).

    Sensitivity under add/remove of one record: `clip_norm`, in the geometry given. Clip factors come from the float32
    numbers that are summed. With `subspace`, contributions are measured inside it; the sum itself is left whole.
    Without `per_record`, or where `rows` do not show all records, there are no contributions.
    The sum is the same in every bit for any number of threads, and of processes that hold a part of the rows each.
    """
    narrow = _checked(single(weights.T))
    rounding = arithmetic(geometry.amplification(clip_norm), math.prod(weights.shape), rows.n_rows)
    contributions = rows.zeros(rows.n_held) if per_record and rows.observed else None
    clip = _Clip(clip_norm, rounding.margin, rounding.dtype is np.float64, geometry, loss, subspace, contributions)
    n_takers = min(_threads_for(rows, weights), max(1, MOST_TOTAL_BYTES // (8 * math.prod(weights.shape))))
    takers = [_Taker(rows, narrow, clip) for _ in range(n_takers)]
    share(rows.pieces(), [taker.take for taker in takers])
    total = takers[0].sum.total
    for taker in takers[1:]:
        total += taker.sum.total
    weight = rows.summed(np.array(float(sum(taker.weight for taker in takers)))) / WEIGHT_STEPS
    value = geometry.finish(rows.summed(total).T, float(weight))
    return ClippedSum(value, clip_norm, np.empty(0) if contributions is None else contributions, rows.sampling_rate)


def loss_and_gradient(rows: Blocks, weights: Weights, loss: Loss = "softmax") -> tuple[float, Weights]:
    """Summed loss and its gradient (n_features, n_classes). For public rows, or without privacy.

    The loss is cross-entropy in nats, or half the squared residuals; on a device a tensor of no dimension.
    """
    return loss_gradient_and_norms(rows, weights, loss)[:2]


def loss_gradient_and_norms(
    rows: Blocks, weights: Weights, loss: Loss = "softmax"
) -> tuple[float, Weights, Sequence[Array]]:
    """`loss_and_gradient`, and blocks of the norms ||x_i|| ||r_i|| of every row's own gradient, in order."""
    narrow = _checked(single(weights))

    def of_block(block: Block) -> tuple[Any, Array, Array]:
        scores = block.x @ narrow
        xp, value = namespace(scores), 0.0
        if loss == "softmax":
            scores -= xp.max(scores, axis=1, keepdims=True)
            own = xp.sum(scores[numbers_like(block.y), block.y], dtype=xp.float64)
            xp.exp(scores, out=scores)
            sums = xp.sum(scores, axis=1, keepdims=True)
            value = xp.sum(xp.log(sums), dtype=xp.float64) - own
            scores /= sums
        r = _minus_targets(scores, block.y, loss)
        if loss == "squared":
            value = xp.sum(double(r) ** 2) / 2
        return value, r.T @ block.x, block.norms * _residual_norms(r)

    total, summed_loss, norms = rows.zeros(*weights.shape[::-1]), 0.0, []
    for value, part, lengths in in_order(rows.pieces(), of_block, _threads_for(rows, weights)):
        summed_loss = summed_loss + value
        total += part
        norms.append(lengths)
    return summed_loss, total.T, norms


def second_moment(rows: Blocks, weights: Weights, loss: Loss = "softmax") -> Weights:
    """Mean of the elementwise squares of per-example gradients, shape (n_features, n_classes). For public rows only.

    The gradient is x r^T, so the sum of squares is (X * X)^T (R * R), in float64, as residuals of squared loss may be
    larger than the squares that float32 holds.
    """
    check_weights(weights)
    narrow = np.ascontiguousarray(weights, dtype=np.float32)

    def squares(block: Block) -> Array:
        r = residuals(block.x, block.y, narrow, loss)
        return np.square(r, dtype=np.float64).T @ np.square(block.x, dtype=np.float64)

    total = np.zeros(weights.shape[::-1])
    for part in in_order(rows.pieces(), squares, _threads_for(rows, weights)):
        total += part
    return total.T / rows.n_rows


def minimise(
    rows: Blocks,
    start: Weights,
    *,
    weight_decay: float,
    reference: Weights,
    loss: Loss = "softmax",
    max_iterations: int = 300,
    on_iteration: Callable[[], None] | None = None,
) -> Weights:
    """argmin of summed loss + weight_decay/2 ||W - reference||^2 by L-BFGS. Not private.

    Returns: weights (n_features, n_classes), float64.
    """
    shape = start.shape

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(shape)
        loss_there, gradient_there = loss_and_gradient(rows, rows.put(weights), loss)
        value, gradient = float(loss_there), on_host(gradient_there)
        offset = weights - reference
        return value + weight_decay / 2 * float((offset**2).sum()), (gradient + weight_decay * offset).ravel()

    result = minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=None if on_iteration is None else lambda _: on_iteration(),
        options={"maxiter": max_iterations, "maxcor": 20, "gtol": 1e-4, "ftol": 1e-9},
    )
    return np.asarray(result.x, dtype=np.float64).reshape(shape)
