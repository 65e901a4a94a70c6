"""Where gradients are measured before they are clipped: as they are, around a public origin, or in a public scale.

The gradient of one record is `x r^T`, so every one of these norms has a closed form in `x` and `r`:

    plain     ||x r^T||         = ||x|| ||r||
    origin    ||x r^T - g||^2   = ||x||^2 ||r||^2 - 2 x^T g r + ||g||^2       (one more product, X g)
    scale     ||(x r^T) / A||^2 = (x*x)^T (1/A^2) (r*r)                       (one more product; / and * elementwise)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linprobe.data.preprocessing import SEGMENT
from linprobe.data.rows import Block
from linprobe.errors import ParameterError
from linprobe.gradients.rounding import FLOAT32_ROUNDING

LARGEST_SPREAD = 1e6


class Geometry:
    """Gradients as they are.

    Attributes:
        weighs: whether `finish` asks for the sum of clip factors.
    """

    weighs = False

    def norms(self, block: Block, r: NDArray[np.float32], r_norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Upper bounds, tight to rounding, on the lengths to be clipped; residuals r (b, n_classes); shape (b,)."""
        return block.norms * r_norms

    def amplification(self, clip_norm: float) -> float:
        """Largest summand, in units of `clip_norm`, in this geometry; public."""
        return 1.0

    def longest(self, clip_norm: float) -> NDArray[np.float64]:
        """Bound on what a clipped gradient adds to an entry of the sum before `finish`.

        Public. Shape () for one bound, (n_features, n_classes) for one per entry.
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
        self._origin = self._narrow.astype(np.float64)  # the very numbers that norms are taken of
        self._length = float(np.linalg.norm(self._origin))
        # an inner product of n terms is off by at most n roundings, in whatever order; a row's norm by a segment's
        self._slack = 2 * (origin.shape[0] + 1) * FLOAT32_ROUNDING * self._length
        self._own_slack = 1 + 2 * (SEGMENT + 2) * FLOAT32_ROUNDING

    def norms(self, block: Block, r: NDArray[np.float32], r_norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """||g_i - origin||, with the rounding of the inner product, which may cancel, on the safe side."""
        inner: NDArray[np.float64] = np.einsum("ij,ij->i", block.x @ self._narrow, r, dtype=np.float64)
        # float32 norms of residuals are not exact enough for what may cancel
        squared: NDArray[np.float64] = np.einsum("ij,ij->i", r, r, dtype=np.float64)
        own: NDArray[np.float64] = block.norms * np.sqrt(squared)
        apart: NDArray[np.float64] = (
            np.maximum(own**2 * self._own_slack - 2 * inner + self._length**2, 0.0) + self._slack * own
        )
        return np.sqrt(apart)

    def amplification(self, clip_norm: float) -> float:
        """c_i ||g_i|| <= clip_norm + ||origin||, as c_i <= 1."""
        return 1 + self._length / clip_norm

    def finish(self, total: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """sum_i c_i g_i - (sum_i c_i) origin."""
        return total - weight * self._origin


class Scale(Geometry):
    """Elementwise quotients by a public, positive `scale`, shape (n_features, n_classes): sum_i clip(g_i / scale).

    What a float32 sum loses in one place is relative to the terms in that place, and the grid of exact sums to
    `longest` there, so a scale amplifies nothing.

    Raises:
        ParameterError: a scale so uneven that its squares leave single precision.
    """

    def __init__(self, scale: NDArray[np.float64]) -> None:
        if not 0 < scale.max() <= LARGEST_SPREAD * scale.min():
            raise ParameterError(
                f"scale is from {scale.min():.3g} to {scale.max():.3g}; allowed: at most {LARGEST_SPREAD:.0e} times as "
                "large in one place as in another; raise --scale-floor"
            )
        self._scale = scale
        self._inverse_square = np.ascontiguousarray(1 / scale**2, dtype=np.float32)

    def norms(self, block: Block, r: NDArray[np.float32], r_norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """||g_i / scale||; of positive terms, a sum loses at most as many roundings as it has terms."""
        squared: NDArray[np.float64] = np.einsum(
            "ij,ij->i", np.square(block.x) @ self._inverse_square, np.square(r, dtype=np.float64)
        )
        return np.asarray(np.sqrt(squared * (1 + 2 * block.x.shape[1] * FLOAT32_ROUNDING)), dtype=np.float64)

    def longest(self, clip_norm: float) -> NDArray[np.float64]:
        """clip_norm A, as |c g| <= clip_norm A in every entry."""
        return clip_norm * self._scale

    def finish(self, total: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """The sum, scaled."""
        return total / self._scale


PLAIN = Geometry()
