"""Softmax and squared loss in closed form, streamed over blocks of rows.

The gradient of one record is the rank-one matrix `x r^T` with residual `r = softmax(W^T x) - onehot(y)`, or
`r = W^T x - y`, so its norm is `||x|| ||r||` and a clipped sum is `X^T (c * R)`: no per-example gradient is ever formed
(`linprobe.geometry` has the norms of shifted and scaled ones). Scores, residuals, norms and products are taken while a
block is in cache; `R^T X` is accumulated (not `X^T R`, whose tall thin factor is slow in BLAS), in float32 within a
block and float64 across blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from linprobe.errors import LinprobeError, ParameterError
from linprobe.geometry import PLAIN, Geometry
from linprobe.mechanisms.clipping import ClippedSum, arithmetic, clip_factors, relative_contributions
from linprobe.mechanisms.gaussian import Projection
from linprobe.rows import Blocks

LARGEST_WEIGHTS = 1e30
Weights = NDArray[np.float64]
Loss = Literal["softmax", "squared"]
LOSSES = ("softmax", "squared")


class Subspace(Projection, Protocol):
    """A projection that can also tell how long a row is inside it."""

    def row_norms(self, x: NDArray[np.float32], norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """||U^T x|| of rows x, shape (b, n_features), whose full norms are given; shape (b,)."""


def check_loss(loss: str) -> None:
    """ParameterError unless `loss` is one of `LOSSES`."""
    if loss not in LOSSES:
        raise ParameterError(f"loss is {loss!r}; allowed: {', '.join(LOSSES)}")


def residuals(
    x: NDArray[np.float32], y: NDArray[Any], weights: NDArray[np.float32], loss: Loss = "softmax"
) -> NDArray[np.float32]:
    """softmax(x W) - onehot(y), or x W - y for squared loss, shape (b, n_classes), float32."""
    r = x @ weights
    if loss == "squared":
        return _minus_targets(r, y)
    r -= r.max(axis=1, keepdims=True)
    np.exp(r, out=r)
    r /= r.sum(axis=1, keepdims=True)
    return _minus_targets(r, y)


def _minus_targets(r: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float32]:
    """r - onehot(y) for class indices, r - y for real targets, in place."""
    if y.dtype.kind == "f":
        r -= y
    else:
        r[np.arange(len(y)), y] -= 1
    return r


def _residual_norms(r: NDArray[np.float32]) -> NDArray[np.float64]:
    squared: NDArray[np.float32] = np.einsum("ij,ij->i", r, r)
    return np.sqrt(squared.astype(np.float64))


def check_weights(weights: NDArray[np.floating]) -> None:
    """Refuse weights too large for float32 scores, where a clip factor would stop bounding anything.

    Weights are public at this point: the initial ones, or releases.
    """
    if not np.linalg.norm(weights.astype(np.float64)) < LARGEST_WEIGHTS:
        raise LinprobeError(
            f"training diverged: the weights grew beyond {LARGEST_WEIGHTS:g}; nothing was written; "
            "lower --learning-rate or --score-noise"
        )


def clipped_sum(
    rows: Blocks,
    weights: Weights,
    clip_norm: float,
    *,
    subspace: Subspace | None = None,
    geometry: Geometry = PLAIN,
    loss: Loss = "softmax",
) -> ClippedSum:
    """Sum over rows of per-example gradients, each clipped to `clip_norm`, at `weights` (n_features, n_classes).

    Sensitivity under add/remove of one record: `clip_norm`, in the geometry given. Clip factors come from the float32
    numbers that are summed. With `subspace`, contributions are measured inside it; the sum itself is left whole.
    """
    narrow = np.ascontiguousarray(weights, dtype=np.float32)
    check_weights(narrow)
    total, weight = np.zeros(weights.shape[::-1]), 0.0
    contributions = np.empty(rows.n_rows if rows.observed else 0)
    margin, wide = astuple(arithmetic(geometry.amplification(clip_norm)))
    for block in rows.blocks():
        x, r = block.x, residuals(block.x, block.y, narrow, loss)
        r_norms = _residual_norms(r)
        norms = geometry.norms(block, r, r_norms)
        factors = clip_factors(norms, clip_norm, margin)
        if rows.observed:
            lengths = norms if subspace is None else subspace.row_norms(x, block.norms) * r_norms
            here = slice(block.start, block.start + len(block.y))
            contributions[here] = relative_contributions(factors * lengths, clip_norm, margin)
        if block.joined is not None:
            x, r, factors = x[block.joined], r[block.joined], factors[block.joined]
        narrow_factors = factors.astype(np.float32)
        r *= narrow_factors[:, None]
        total += r.T.astype(wide, copy=False) @ x.astype(wide, copy=False)
        weight += float(narrow_factors.sum(dtype=np.float64))
    return ClippedSum(geometry.finish(total.T, weight), clip_norm, contributions, rows.sampling_rate)


def gradient_norms(rows: Blocks, weights: Weights, loss: Loss = "softmax") -> NDArray[np.float64]:
    """||x_i|| ||r_i|| of every row, shape (n_rows,). For public rows only: nothing is clipped or noised."""
    narrow = np.ascontiguousarray(weights, dtype=np.float32)
    return np.concatenate(
        [block.norms * _residual_norms(residuals(block.x, block.y, narrow, loss)) for block in rows.blocks()]
    )


def loss_and_gradient(rows: Blocks, weights: Weights, loss: Loss = "softmax") -> tuple[float, Weights]:
    """Summed loss and its gradient (n_features, n_classes). For public rows, or without privacy.

    The loss is cross-entropy in nats, or half the squared residuals.
    """
    narrow = np.ascontiguousarray(weights, dtype=np.float32)
    total = np.zeros(weights.shape[::-1])
    value = 0.0
    for block in rows.blocks():
        scores = block.x @ narrow
        if loss == "softmax":
            scores -= scores.max(axis=1, keepdims=True)
            own = scores[np.arange(len(block.y)), block.y].sum(dtype=np.float64)
            np.exp(scores, out=scores)
            sums = scores.sum(axis=1, keepdims=True)
            value += float(np.log(sums).sum(dtype=np.float64) - own)
            scores /= sums
        r = _minus_targets(scores, block.y)
        if loss == "squared":
            value += float(np.square(r, dtype=np.float64).sum() / 2)
        total += r.T @ block.x
    return value, total.T


def second_moment(rows: Blocks, weights: Weights, loss: Loss = "softmax") -> Weights:
    """Mean of the elementwise squares of per-example gradients, shape (n_features, n_classes). For public rows only.

    The gradient is x r^T, so the sum of squares is (X * X)^T (R * R).
    """
    narrow = np.ascontiguousarray(weights, dtype=np.float32)
    total = np.zeros(weights.shape[::-1])
    for block in rows.blocks():
        total += np.square(residuals(block.x, block.y, narrow, loss)).T @ np.square(block.x)
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
        value, gradient = loss_and_gradient(rows, weights, loss)
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
