"""Norms by which gradients are clipped: plain, around a public origin, or in a public scale.

The gradient of one record is `x r^T`, so each norm has a closed form in `x` and `r`:

    plain     ||x r^T||         = ||x|| ||r||
    origin    ||x r^T - g||^2   = ||x||^2 ||r||^2 - 2 x^T g r + ||g||^2       (one more product, X g)
    scale     ||(x r^T) / A||^2 = (x*x)^T (1/A^2) (r*r)                       (one more product; / and * elementwise)

The gradient of a person with several rows is a sum of such matrices; `linprobe.gradients.clipped_sum` has its norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import SEGMENT, Block
from linprobe.errors import ParameterError
from linprobe.gradients.rounding import FLOAT32_ROUNDING, SteadyProducts
from linprobe.parallel.array_api import Array, norm

LARGEST_SPREAD = 1e6
WIDE_SLACK = 2.0**-36  # of a float64 inner product of up to 2^14 terms, and some sums of such
Multiply = Callable[[Any, Any], Any]


class Geometry:
    """The plain geometry: norms of the gradients themselves.

    Attributes:
        weighs: whether `finish` needs the sum of clip factors.
        forms: whether the norm of a sum of gradients needs the sum as a matrix.
    """

    weighs = False
    forms = False

    def norms(
        self, block: Block, r: NDArray[np.float32], r_norms: NDArray[np.float64], multiply: Multiply = np.matmul
    ) -> NDArray[np.float64]:
        """Norms to be clipped, rounded up, shape (b,), for residuals r (b, n_classes).

        `multiply` computes products of rows with the one matrix of this geometry.
        """
        return block.norms * r_norms

    def along(self, x: Array, r: Array) -> Array:
        """Inner products of gradients with the origin, for rows x (b, n_features) and residuals r (b, n_classes).

        Shape (b,), or 0 without an origin.
        """
        return 0.0

    def unit_norms(self, squared: Array, along: Array, spread: Array) -> Array:
        """Norms of the gradients of people, shape (n,), from their squared plain norms and `along`.

        `spread` is the sum of the norms of each person's rows' gradients, to which rounding is relative.
        """
        return squared.clip(0.0, None) ** 0.5

    def norm_of(self, matrix: Array) -> Any:
        """Norm of one person's gradient (n_features, n_classes), float64."""
        return norm(matrix)

    def amplification(self, clip_norm: float) -> float:
        """Largest summand, in units of `clip_norm`, in this geometry; public."""
        return 1.0

    def longest(self, clip_norm: float) -> NDArray[np.float64]:
        """Bound on an entry of a clipped gradient before `finish`; public.

        Shape () for one bound, or (n_features, n_classes) for one per entry.
        """
        return np.array(clip_norm * self.amplification(clip_norm))

    def finish(self, total: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """The sum of clipped vectors from `total`, sum_i c_i x_i r_i^T, and `weight`, sum_i c_i."""
        return total


class Origin(Geometry):
    """Differences from a public vector `origin`, shape (n_features, n_classes): sum_i clip(g_i - origin)."""

    weighs = True

    def __init__(self, origin: NDArray[np.float64]) -> None:
        self._narrow = np.ascontiguousarray(origin, dtype=np.float32)
        self._origin = self._narrow.astype(np.float64)  # the rounded origin, as in `norms`
        self._products = SteadyProducts(self._origin)
        self._length = float(np.linalg.norm(self._origin))
        # an inner product of n terms has an error of at most n roundings, in any order; a row norm, SEGMENT roundings
        self._slack = 2 * (origin.shape[0] + 1) * FLOAT32_ROUNDING * self._length
        self._own_slack = 1 + 2 * (SEGMENT + 2) * FLOAT32_ROUNDING

    def norms(
        self, block: Block, r: NDArray[np.float32], r_norms: NDArray[np.float64], multiply: Multiply = np.matmul
    ) -> NDArray[np.float64]:
        """||g_i - origin||, rounded up: the inner product may cancel."""
        inner: NDArray[np.float64] = np.einsum("ij,ij->i", multiply(block.x, self._narrow), r, dtype=np.float64)
        # float32 norms of residuals are not accurate enough under cancellation
        squared: NDArray[np.float64] = np.einsum("ij,ij->i", r, r, dtype=np.float64)
        own: NDArray[np.float64] = block.norms * np.sqrt(squared)
        apart: NDArray[np.float64] = (
            np.maximum(own**2 * self._own_slack - 2 * inner + self._length**2, 0.0) + self._slack * own
        )
        return np.sqrt(apart)

    def along(self, x: Array, r: Array) -> Array:
        """x_j^T origin r_j."""
        return (self._products.of(x) * r).sum(-1)

    def unit_norms(self, squared: Array, along: Array, spread: Array) -> Array:
        """||S_u - origin||, rounded up."""
        apart = (squared - 2 * along + self._length**2).clip(0.0, None)
        return (apart + WIDE_SLACK * (spread + self._length) ** 2) ** 0.5

    def norm_of(self, matrix: Array) -> Any:
        """||S_u - origin||."""
        return norm(matrix - self._origin)

    def amplification(self, clip_norm: float) -> float:
        """c_i ||g_i|| <= clip_norm + ||origin||, as c_i <= 1."""
        return 1 + self._length / clip_norm

    def finish(self, total: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """sum_i c_i g_i - (sum_i c_i) origin."""
        return total - weight * self._origin


class Scale(Geometry):
    """Elementwise quotients by a public, positive `scale`, shape (n_features, n_classes): sum_i clip(g_i / scale).

    The error of a float32 sum is relative to the terms of each entry, and the grid of exact sums is relative to
    `longest` of each entry. So a scale amplifies neither.

    Raises ParameterError: a scale whose squares leave the range of float32.
    """

    forms = True

    def __init__(self, scale: NDArray[np.float64]) -> None:
        if not 0 < scale.max() <= LARGEST_SPREAD * scale.min():
            raise ParameterError(
                f"scale is from {scale.min():.3g} to {scale.max():.3g}; allowed: at most {LARGEST_SPREAD:.0e} times as "
                "large in one place as in another; raise --scale-floor"
            )
        self._scale = scale
        self._inverse_square = np.ascontiguousarray(1 / scale**2, dtype=np.float32)

    def norms(
        self, block: Block, r: NDArray[np.float32], r_norms: NDArray[np.float64], multiply: Multiply = np.matmul
    ) -> NDArray[np.float64]:
        """||g_i / scale||, rounded up: a sum of n positive terms has a relative error of at most n roundings."""
        squared: NDArray[np.float64] = np.einsum(
            "ij,ij->i", multiply(np.square(block.x), self._inverse_square), np.square(r, dtype=np.float64)
        )
        return np.asarray(np.sqrt(squared * (1 + 2 * block.x.shape[1] * FLOAT32_ROUNDING)), dtype=np.float64)

    def norm_of(self, matrix: Array) -> Any:
        """||S_u / scale||."""
        return norm(matrix / self._scale)

    def longest(self, clip_norm: float) -> NDArray[np.float64]:
        """clip_norm * scale, as |c g| <= clip_norm * scale in every entry."""
        return clip_norm * self._scale

    def finish(self, total: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """The sum of clipped quotients."""
        return total / self._scale


PLAIN = Geometry()
