"""Losses in closed form, and passes over public rows: loss, gradient, norms, second moments, optimum.

The gradient of one record is the rank-one matrix `x r^T` with residual `r = softmax(W^T x) - onehot(y)`, or
`r = W^T x - y` for squared loss. Rows with several labels have binary cross-entropy, summed over the labels, and
`r = sigmoid(W^T x) - y`:

    loss_i = sum_k log(1 + e^{s_ik}) - y_ik s_ik,    s_i = W^T x_i,    y_ik in {0, 1}

No per-example gradient is formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import BLOCK_ROWS, Block, row_norms
from linprobe.data.rows import Rows
from linprobe.errors import DivergedError
from linprobe.gradients.backend import HOST, Backend
from linprobe.options import Loss
from linprobe.parallel.array_api import Array, contiguous, double, namespace, norm, numbers_like, on_host, single
from linprobe.parallel.threads import blas_module, in_order

LARGEST_WEIGHTS = 1e9  # norm at which weights count as diverged; scores and their squares stay in the range of float32
Weights = NDArray[np.float64]


def residuals(x: Array, y: Array, weights: Array, loss: Loss = "softmax") -> Array:
    """softmax(x W) - onehot(y), x W - y for squared loss, or sigmoid(x W) - y, shape (b, n_classes)."""
    return residuals_of(x @ weights, y, loss)[0]


# long: the arithmetic of each loss, in the order that keeps its bits
def residuals_of(
    scores: Array, y: Array, loss: Loss, *, with_loss: bool = False, weights: Array | None = None
) -> tuple[Array, Any]:
    """Residuals of scores (b, n_classes), in place, and the summed loss of the rows, or 0 unless `with_loss`.

    `y` has class indices (b,), for squared loss also real targets (b, n_classes), for sigmoid 0 or 1 (b, n_classes).
    The loss is cross-entropy in nats, or half the squared residuals; on a GPU it is a tensor of shape (). `weights`
    (b,) multiply losses and residuals.
    """
    xp, value = namespace(scores), 0.0
    own = None if y.ndim == 2 else (numbers_like(y), y)  # the score of the row's class
    if with_loss and (loss == "sigmoid" or (loss == "softmax" and weights is not None)):
        losses = _losses(scores, y, loss)
        value = (losses if weights is None else weights * losses).sum()
    if loss == "softmax":
        scores -= xp.max(scores, axis=1, keepdims=True)
        summed = xp.sum(scores[own], dtype=xp.float64) if with_loss and weights is None else None
        _exponentiate(scores, xp)
        sums = xp.sum(scores, axis=1, keepdims=True)
        if summed is not None:
            value = xp.sum(xp.log(sums), dtype=xp.float64) - summed
        scores /= sums
    elif loss == "sigmoid":  # 1 / (1 + e^-s) is (1 + tanh(s / 2)) / 2, which never overflows
        scores *= 0.5
        xp.tanh(scores, out=scores)
        scores += 1
        scores *= 0.5
    if own is None:
        scores -= y
    else:
        scores[own] -= 1
    if loss == "squared" and with_loss:
        squares = double(scores) ** 2
        value = xp.sum(squares if weights is None else weights[:, None] * squares) / 2
    if weights is not None:
        scores *= weights[:, None]
    return scores, value


def _exponentiate(scores: Array, xp: Any) -> None:
    """e^s in place, for scores (b, n_classes) of at most 0. Float64 is rounded so that the sum of a row is exact.

    Then it has the same bits in any order of additions, which on a GPU depends on the number of rows.
    """
    xp.exp(scores, out=scores)
    if scores.dtype == xp.float64:
        shift = 1.5 * 2.0 ** math.ceil(math.log2(scores.shape[1]))  # whole steps, which add up to at most 2^52 of them
        scores += shift
        scores -= shift


def _losses(scores: Array, y: Array, loss: Loss) -> Array:
    """Losses of rows in nats, shape (b,), float64: of softmax, or of sigmoid, summed over labels."""
    xp, wide = namespace(scores), double(scores)
    if loss == "sigmoid":
        return (wide.clip(0, None) - y * wide + xp.log1p(xp.exp(-abs(wide)))).sum(-1)
    most = xp.max(wide, axis=1, keepdims=True)
    return xp.log(xp.sum(xp.exp(wide - most), axis=1)) + most[:, 0] - wide[numbers_like(y), y]


def residual_norms(r: Array) -> Array:
    """L2 norms of residuals (b, n_classes), shape (b,), float64. Large residuals of squared loss do not overflow."""
    if isinstance(r, np.ndarray):
        return row_norms(r)
    xp = namespace(r)
    return xp.linalg.vector_norm(r, axis=1, dtype=xp.float64)


def check_weights(weights: NDArray[np.floating]) -> None:
    """Raise DivergedError for weights too large for float32 scores, where clip factors would not bound gradients.

    The check reveals nothing private: weights are initial values or releases.
    """
    if not np.linalg.norm(weights.astype(np.float64, copy=False)) < LARGEST_WEIGHTS:
        raise DivergedError(
            f"training diverged: the weights grew beyond {LARGEST_WEIGHTS:g}; no model was made; "
            "lower --learning-rate or --score-noise"
        )


def checked_weights(weights: Array) -> Array:
    """Weights after `check_weights`. On a GPU, zeros replace weights that fail it, as raising would synchronise.

    Such weights diverge again, and the check at the end of training raises the error.
    """
    if isinstance(weights, np.ndarray):
        check_weights(weights)
        return weights
    return namespace(weights).where(norm(double(weights)) < LARGEST_WEIGHTS, weights, 0.0)


def loss_and_gradient(
    rows: Rows, weights: Weights, loss: Loss = "softmax", *, backend: Backend = HOST
) -> tuple[Any, Weights]:
    """Summed loss and its gradient (n_features, n_classes). Not private."""
    return loss_gradient_and_norms(rows, weights, loss, backend=backend)[:2]


def loss_gradient_and_norms(
    rows: Rows, weights: Weights, loss: Loss = "softmax", *, backend: Backend = HOST
) -> tuple[Any, Weights, Sequence[Array]]:
    """`loss_and_gradient`, and the norms ||x_i|| ||r_i|| of per-example gradients, one array (b,) per block."""
    narrow = checked_weights(single(weights))

    def work(block: Block) -> tuple[Any, Array, Array]:
        value, gradient, r = _of_block(block, narrow, loss)
        return value, gradient, block.norms * residual_norms(r)

    total, summed_loss, norms = backend.zeros(*weights.shape[::-1]), 0.0, list[Array]()
    for value, gradient, lengths in in_order(rows.lazy_blocks(), work, backend.n_threads(rows, weights)):
        summed_loss = summed_loss + value
        total += gradient
        norms.append(lengths)
    return summed_loss, contiguous(total.T), norms


def _of_block(block: Block, narrow: Array, loss: Loss) -> tuple[Any, Array, Array]:
    """Summed loss, its gradient (n_classes, n_features), and residuals (b, n_classes)."""
    r, value = residuals_of(block.x @ narrow, block.y, loss, with_loss=True, weights=block.weights)
    return value, r.T @ block.x, r


def mean_squared_gradient(rows: Rows, weights: Weights, loss: Loss = "softmax") -> Weights:
    """Mean of the elementwise squares of per-example gradients, shape (n_features, n_classes). Not private.

    The sum of squares is (X * X)^T (R * R), in float64, as squared residuals may leave the range of float32.
    """
    check_weights(weights)
    narrow = np.ascontiguousarray(weights, dtype=np.float32)

    def squares(block: Block) -> Array:
        r = residuals(block.x, block.y, narrow, loss)
        return np.square(r, dtype=np.float64).T @ np.square(block.x, dtype=np.float64)

    total = np.zeros(weights.shape[::-1])
    for block_total in in_order(rows.lazy_blocks(), squares, HOST.n_threads(rows, weights)):
        total += block_total
    return total.T / rows.n_rows


def minimise(
    rows: Rows,
    start: Weights,
    *,
    weight_decay: float,
    reference: Weights,
    loss: Loss = "softmax",
    max_iterations: int = 300,
    on_iteration: Callable[[], None] | None = None,
    backend: Backend = HOST,
) -> Weights:
    """argmin of summed loss + weight_decay/2 ||W - reference||^2 by L-BFGS. Not private.

    Returns: weights (n_features, n_classes), float64, on the host.
    """
    shape, threads = start.shape, backend.n_threads(rows, start)
    few = rows.in_memory and rows.n_rows <= BLOCK_ROWS
    kept = list(rows.blocks()) if few else None

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(shape)
        check_weights(weights)
        work = partial(_of_block, narrow=backend.put(weights.astype(np.float32)), loss=loss)
        value, total = 0.0, np.zeros(shape[::-1])
        for part, gradient, _ in in_order(rows.lazy_blocks(), work, threads) if kept is None else map(work, kept):
            value += float(part)
            total += on_host(gradient)
        offset = weights - reference
        return value + weight_decay / 2 * float((offset**2).sum()), (total.T + weight_decay * offset).ravel()

    result = blas_module("scipy.optimize").minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=None if on_iteration is None else lambda _: on_iteration(),
        options={"maxiter": max_iterations, "maxcor": 20, "gtol": 1e-4, "ftol": 1e-9},
    )
    return np.asarray(result.x, dtype=np.float64).reshape(shape)
