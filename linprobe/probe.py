"""Softmax regression in closed form, streamed over blocks of rows.

The gradient of one record is the rank-one matrix `x r^T` with residual `r = softmax(W^T x) - onehot(y)`, so its norm
is `||x|| ||r||` and a clipped sum is `X^T (c * R)`: no per-example gradient is ever formed. Scores, residuals, norms
and products are taken while a block is in cache; `R^T X` is accumulated (not `X^T R`, whose tall thin factor is slow in
BLAS), in float32 within a block and float64 across blocks; beyond 2^20 rows clipped sums are float64 throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from linprobe.errors import LinprobeError
from linprobe.mechanisms.clipping import (
    LARGEST_FLOAT32_ROWS,
    ClippedSum,
    clip_factors,
    relative_contributions,
    rounding_margin,
)
from linprobe.mechanisms.gaussian import Projection
from linprobe.rows import Rows

LARGEST_WEIGHTS = 1e30
Weights = NDArray[np.float64]


class Subspace(Projection, Protocol):
    """A projection that can also tell how long a row is inside it."""

    def row_norms(self, x: NDArray[np.float32], norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """||U^T x|| of rows x, shape (b, n_features), whose full norms are given; shape (b,)."""


def residuals(x: NDArray[np.float32], y: NDArray[np.int64], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """softmax(x W) - onehot(y), shape (b, n_classes), float32."""
    r = x @ weights
    r -= r.max(axis=1, keepdims=True)
    np.exp(r, out=r)
    r /= r.sum(axis=1, keepdims=True)
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


def clipped_sum(rows: Rows, weights: Weights, clip_norm: float, subspace: Subspace | None = None) -> ClippedSum:
    """Sum over rows of per-example gradients, each clipped to `clip_norm`, at `weights` (n_features, n_classes).

    Sensitivity under add/remove of one record: `clip_norm`. Clip factors come from the float32 numbers that are
    summed. With `subspace`, contributions are measured inside it; the sum itself is left whole.
    """
    narrow = np.ascontiguousarray(weights, dtype=np.float32)
    check_weights(narrow)
    total = np.zeros(weights.shape[::-1])
    contributions = np.empty(rows.n_rows)
    margin = rounding_margin(rows.n_rows)
    wide = np.float64 if rows.n_rows > LARGEST_FLOAT32_ROWS else np.float32
    for block in rows.blocks():
        r = residuals(block.x, block.y, narrow)
        r_norms = _residual_norms(r)
        factors = clip_factors(block.norms * r_norms, clip_norm, margin)
        lengths = block.norms if subspace is None else subspace.row_norms(block.x, block.norms)
        here = slice(block.start, block.start + len(block.y))
        contributions[here] = relative_contributions(factors * lengths * r_norms, clip_norm, margin)
        r *= factors.astype(np.float32)[:, None]
        total += r.T.astype(wide, copy=False) @ block.x.astype(wide, copy=False)
    return ClippedSum(total.T, clip_norm, contributions)


def gradient_norms(rows: Rows, weights: Weights) -> NDArray[np.float64]:
    """||x_i|| ||r_i|| of every row, shape (n_rows,). For public rows only: nothing is clipped or noised."""
    narrow = np.ascontiguousarray(weights, dtype=np.float32)
    return np.concatenate(
        [block.norms * _residual_norms(residuals(block.x, block.y, narrow)) for block in rows.blocks()]
    )


def loss_and_gradient(rows: Rows, weights: Weights) -> tuple[float, Weights]:
    """Summed cross-entropy (nats) and its gradient (n_features, n_classes). For public rows, or without privacy."""
    narrow = np.ascontiguousarray(weights, dtype=np.float32)
    total = np.zeros(weights.shape[::-1])
    loss = 0.0
    for block in rows.blocks():
        scores = block.x @ narrow
        scores -= scores.max(axis=1, keepdims=True)
        own = scores[np.arange(len(block.y)), block.y].sum(dtype=np.float64)
        np.exp(scores, out=scores)
        sums = scores.sum(axis=1, keepdims=True)
        loss += float(np.log(sums).sum(dtype=np.float64) - own)
        scores /= sums
        scores[np.arange(len(block.y)), block.y] -= 1
        total += scores.T @ block.x
    return loss, total.T


def minimise(
    rows: Rows,
    start: Weights,
    *,
    weight_decay: float,
    reference: Weights,
    max_iterations: int = 300,
    on_iteration: Callable[[], None] | None = None,
) -> Weights:
    """argmin of summed cross-entropy + weight_decay/2 ||W - reference||^2 by L-BFGS. Not private.

    Returns: weights (n_features, n_classes), float64.
    """
    shape = start.shape

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(shape)
        loss, gradient = loss_and_gradient(rows, weights)
        offset = weights - reference
        return loss + weight_decay / 2 * float((offset**2).sum()), (gradient + weight_decay * offset).ravel()

    result = minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=None if on_iteration is None else lambda _: on_iteration(),
        options={"maxiter": max_iterations, "maxcor": 20, "gtol": 1e-4, "ftol": 1e-9},
    )
    return np.asarray(result.x, dtype=np.float64).reshape(shape)
