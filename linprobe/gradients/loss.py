"""The gradient of one record: losses in closed form, norms by which it is clipped, and passes over public rows.

The gradient is the rank-one matrix `x r^T` with residual `r = softmax(W^T x) - onehot(y)`, or `r = W^T x - y` for
squared loss. Rows with several labels have binary cross-entropy, summed over the labels, and `r = sigmoid(W^T x) - y`:

    loss_i = sum_k log(1 + e^{s_ik}) - y_ik s_ik,    s_i = W^T x_i,    y_ik in {0, 1}

No per-example gradient is formed: each norm has a closed form in `x` and `r`, plain, around a public origin g, or in a
public scale A:

    plain     ||x r^T||         = ||x|| ||r||
    origin    ||x r^T - g||^2   = ||x||^2 ||r||^2 - 2 x^T g r + ||g||^2       (one more product, X g)
    scale     ||(x r^T) / A||^2 = (x*x)^T (1/A^2) (r*r)                       (one more product; / and * elementwise)

The gradient of a person with several rows is a sum of such matrices; `linprobe.gradients.clipped_sum` has its norm.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from linprobe.data.blocks import BLOCK_ROWS, SEGMENT, Block, row_norms
from linprobe.data.rows import Rows
from linprobe.errors import DivergedError, ParameterError
from linprobe.gradients.backend import HOST, Backend
from linprobe.gradients.rounding import FLOAT32_ROUNDING, ROW_BITS, SteadyProducts
from linprobe.options import Loss
from linprobe.parallel.array_api import (
    Array,
    Floats,
    Reals,
    Singles,
    beside,
    contiguous,
    double,
    namespace,
    norm,
    on_host,
    row_products,
    single,
)
from linprobe.parallel.threads import blas_module, in_order

LARGEST_SPREAD = 1e6
WIDE_SLACK = 2.0**-36  # of a float64 inner product of up to 2^14 terms, and some sums of such
Multiply = Callable[[Any, Any], Any]


class Geometry:
    """The plain geometry: norms of the gradients themselves."""

    weighs = False
    forms = False

    def norms(self, block: Block, r: Singles, r_norms: Reals, multiply: Multiply = np.matmul) -> Reals:
        """Norms to be clipped, rounded up, (b,), for residuals r (b, n_classes); `multiply` is for its matrix."""
        return block.norms * r_norms

    def along(self, x: Array, r: Array) -> Array:
        """Inner products (b,) with the origin, 0 without one, of rows x (b, n_features), residuals r (b, n_classes)."""
        return 0.0

    def unit_norms(self, squared: Array, along: Array, spread: Array) -> Array:
        """Norms of people, (n,), from squared plain norms, `along`, and `spread`, the summed norms of their rows."""
        return squared.clip(0.0, None) ** 0.5

    def norm_of(self, matrix: Array) -> Any:
        """Norm of one person's gradient (n_features, n_classes), float64."""
        return norm(matrix)

    def amplification(self, clip_norm: float) -> float:
        """Largest summand, in units of `clip_norm`, in this geometry; public."""
        return 1.0

    def longest(self, clip_norm: float) -> Reals:
        """Public bound on an entry of a clipped gradient before `finish`: shape (), or (n_features, n_classes)."""
        return np.array(clip_norm * self.amplification(clip_norm))

    def finish(self, total: Reals, weight: float) -> Reals:
        """The sum of clipped vectors from `total`, sum_i c_i x_i r_i^T, and `weight`, sum_i c_i."""
        return total


class Origin(Geometry):
    """Differences from a public vector `origin`, shape (n_features, n_classes): sum_i clip(g_i - origin)."""

    weighs = True

    def __init__(self, origin: Reals) -> None:
        self._narrow = np.ascontiguousarray(origin, dtype=np.float32)
        self._origin = self._narrow.astype(np.float64)  # the rounded origin, as in `norms`
        self._products = SteadyProducts(self._origin)
        self._length = float(np.linalg.norm(self._origin))
        # an inner product of n terms has an error of at most n roundings, in any order; a row norm, SEGMENT roundings
        self._slack = 2 * (origin.shape[0] + 1) * FLOAT32_ROUNDING * self._length
        self._own_slack = 1 + 2 * (SEGMENT + 2) * FLOAT32_ROUNDING
        self._unit_slack = WIDE_SLACK + 2.0**-ROW_BITS * math.sqrt(origin.shape[0])  # the second of `along`

    def norms(self, block: Block, r: Singles, r_norms: Reals, multiply: Multiply = np.matmul) -> Reals:
        """||g_i - origin||, rounded up: the inner product may cancel."""
        inner: Reals = row_products(multiply(block.x, beside(r, self._narrow)), r)
        # float32 norms of residuals are not accurate enough under cancellation
        own: Reals = block.norms * row_products(r, r) ** 0.5
        apart: Reals = (own**2 * self._own_slack - 2 * inner + self._length**2).clip(0.0, None) + self._slack * own
        lengths: Reals = apart**0.5
        return lengths

    def along(self, x: Array, r: Array) -> Array:
        """x_j^T origin r_j."""
        products = self._products if isinstance(x, np.ndarray) else SteadyProducts(beside(x, self._origin))
        return (products.of(x) * r).sum(-1)

    def unit_norms(self, squared: Array, along: Array, spread: Array) -> Array:
        """||S_u - origin||, rounded up."""
        apart = (squared - 2 * along + self._length**2).clip(0.0, None)
        return (apart + self._unit_slack * (spread + self._length) ** 2) ** 0.5

    def norm_of(self, matrix: Array) -> Any:
        """||S_u - origin||."""
        return norm(matrix - beside(matrix, self._origin))

    def amplification(self, clip_norm: float) -> float:
        """c_i ||g_i|| <= clip_norm + ||origin||, as c_i <= 1."""
        return 1 + self._length / clip_norm

    def finish(self, total: Reals, weight: float) -> Reals:
        """sum_i c_i g_i - (sum_i c_i) origin."""
        difference: Reals = total - weight * beside(total, self._origin)
        return difference


class Scale(Geometry):
    """Elementwise quotients by a public, positive `scale`, shape (n_features, n_classes): sum_i clip(g_i / scale).

    The error of a float32 sum is relative to the terms of each entry, and the grid of exact sums is relative to
    `longest` of each entry. So a scale amplifies neither.
    """

    forms = True

    def __init__(self, scale: Reals) -> None:
        if not 0 < scale.max() <= LARGEST_SPREAD * scale.min():
            raise ParameterError(
                f"scale is from {scale.min():.3g} to {scale.max():.3g}; allowed: at most {LARGEST_SPREAD:.0e} times as "
                "large in one place as in another; raise --scale-floor"
            )
        self._scale = scale
        self._inverse_square = np.ascontiguousarray(1 / scale**2, dtype=np.float32)

    def norms(self, block: Block, r: Singles, r_norms: Reals, multiply: Multiply = np.matmul) -> Reals:
        """||g_i / scale||, rounded up: a sum of n positive terms has a relative error of at most n roundings.

        `SteadyProducts` would drop the small entries of a row, which may be most of this norm. Positive float64 terms
        need no fixed order.
        """
        squares = np.square(block.x)
        products = (np.matmul if squares.dtype == np.float64 else multiply)(squares, self._inverse_square)
        squared: Reals = np.einsum("ij,ij->i", products, np.square(r, dtype=np.float64))
        return np.asarray(np.sqrt(squared * (1 + 2 * block.x.shape[1] * FLOAT32_ROUNDING)), dtype=np.float64)

    def norm_of(self, matrix: Array) -> Any:
        """||S_u / scale||."""
        return norm(matrix / self._scale)

    def longest(self, clip_norm: float) -> Reals:
        """clip_norm * scale, as |c g| <= clip_norm * scale in every entry."""
        return clip_norm * self._scale

    def finish(self, total: Reals, weight: float) -> Reals:
        return total / self._scale


PLAIN = Geometry()


MOST_ITERATIONS = 300  # of L-BFGS
LARGEST_WEIGHTS = 1e9  # norm at which weights count as diverged; scores and their squares stay in the range of float32
Weights = Reals


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
    own = None if y.ndim == 2 else _own_class(y)
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


def _own_class(y: Array) -> tuple[Array, Array]:
    """The index of the score of each row's own class, for classes y (b,)."""
    rows = np.arange(len(y)) if isinstance(y, np.ndarray) else namespace(y).arange(len(y), device=y.device)
    return rows, y


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
    return xp.log(xp.sum(xp.exp(wide - most), axis=1)) + most[:, 0] - wide[_own_class(y)]


def residual_norms(r: Array) -> Array:
    """L2 norms of residuals (b, n_classes), shape (b,), float64. Large residuals of squared loss do not overflow."""
    if isinstance(r, np.ndarray):
        return row_norms(r)
    xp = namespace(r)
    return xp.linalg.vector_norm(r, axis=1, dtype=xp.float64)


def check_weights(weights: Floats) -> None:
    """Raise DivergedError for weights too large for float32 scores, where clip factors would not bound gradients.

    The check reveals nothing private: weights are initial values or releases.
    """
    if not np.linalg.norm(weights.astype(np.float64, copy=False)) < LARGEST_WEIGHTS:
        raise DivergedError(
            f"training diverged: the weights grew beyond {LARGEST_WEIGHTS:g}; no model was made; "
            "lower --learning-rate or --score-noise; where they do nothing, raise --noise-ridge or "
            "--strong-convexity"
        )


def checked_weights(weights: Array) -> Array:
    """Weights after `check_weights`; on a GPU, zeros replace wrong ones, which diverge again and raise at the end."""
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


def _on_host(block: Block) -> Block:
    """The block as float32 rows on the host, where no iteration copies to and from a device."""
    weights = None if block.weights is None else on_host(block.weights)
    return Block(block.start, on_host(block.x), on_host(block.y), on_host(block.norms), weights=weights)


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
    on_iteration: Callable[[], None] | None = None,
    backend: Backend = HOST,
) -> Weights:
    """argmin of summed loss + weight_decay/2 ||W - reference||^2 by L-BFGS, float64, on the host. Not private."""
    shape, threads = start.shape, backend.n_threads(rows, start)
    few = rows.in_memory and rows.n_rows <= BLOCK_ROWS
    blocks = [_on_host(block) for block in rows.blocks()] if few else None

    def objective(flat: Reals) -> tuple[float, Reals]:
        weights = flat.reshape(shape)
        check_weights(weights)
        narrow = weights.astype(np.float32)
        work = partial(_of_block, narrow=narrow if few else backend.put(narrow), loss=loss)
        value, total = 0.0, np.zeros(shape[::-1])
        for part, gradient, _ in in_order(rows.lazy_blocks(), work, threads) if blocks is None else map(work, blocks):
            value += float(part)
            total += gradient if few else on_host(gradient)
        offset = weights - reference
        return value + weight_decay / 2 * float((offset**2).sum()), (total.T + weight_decay * offset).ravel()

    result = blas_module("scipy.optimize").minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=None if on_iteration is None else lambda _: on_iteration(),
        options={"maxiter": MOST_ITERATIONS, "maxcor": 20, "gtol": 1e-4, "ftol": 1e-9},
    )
    return np.asarray(result.x, dtype=np.float64).reshape(shape)


def best_scale(
    rows: Rows, direction: Weights, *, spread: float, most: float, loss: Loss = "softmax", backend: Backend = HOST
) -> float:
    """argmin over a in [0, most] of the summed loss of a * `direction` + (a / spread)^2 / 2. Not private.

    `direction`: weights (n_features, n_classes), whose scores of all rows are held in memory. A few rows that it
    divides by chance ask for a scale without bound.
    """
    narrow = backend.put(direction.astype(np.float32))
    scores = [(block.x @ narrow, block.y, block.weights) for block in rows.blocks()]

    def penalised(scale: float) -> float:
        losses = (residuals_of(scale * s, y, loss, with_loss=True, weights=w)[1] for s, y, w in scores)
        return sum(map(float, losses)) + (scale / spread) ** 2 / 2

    found = blas_module("scipy.optimize").minimize_scalar(
        penalised, bounds=(0, most), method="bounded", options={"xatol": 1e-3}
    )
    return float(found.x)
