"""From raw feature rows to training space: norms, normalisation, a public centre, a bias column.

Each transformation acts on single rows and uses public constants only, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linprobe.data.blocks import aligned_empty, widened
from linprobe.errors import UsageError

SMALLEST_FLOAT32_NORM = 1e-30
BIAS_TOLERANCE = 1e-3
SHORTEST_ROW = 0.4  # least typical norm of a row around the mean
CACHED_ROWS = 64  # that every step of a map works on, so that they stay in the cache; no row depends on another
SEGMENT = 32  # squares of a float32 sum
SQUARES = (1e-20, 1e30)  # range in which float32 sums of squares neither overflow nor lose accuracy


def row_norms(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """L2 norm of each row, shape (n,), float64, with a relative error of at most 1e-6 (1e-8 is usual).

    Squares are summed in float32 in segments of `SEGMENT`, and the segments in float64. So the error is at most
    SEGMENT + 1 roundings of 2^-24, halved by the root. Rows whose squares leave the range of float32 are summed in
    float64. The norm of a row does not depend on other rows.
    """
    n_segments = x.shape[1] // SEGMENT
    whole = n_segments * SEGMENT
    segments = x[:, :whole].reshape(len(x), n_segments, SEGMENT)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # invalid: NaN and infinity, refused elsewhere
        sums: NDArray[np.float64] = np.einsum("isj,isj->is", segments, segments).astype(np.float64).sum(axis=1)
        sums += np.einsum("ij,ij->i", x[:, whole:], x[:, whole:])
        odd = ~((sums > SQUARES[0]) & (sums < SQUARES[1]))
        if odd.any():
            wide = x[odd].astype(np.float64)
            sums[odd] = np.einsum("ij,ij->i", wide, wide)
    norms: NDArray[np.float64] = np.sqrt(sums)
    return norms


def normalise_rows(
    x: NDArray[np.float32], norms: NDArray[np.float64] | None = None, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Each row divided by its L2 norm, or by its number in `norms` (n,), in `out` if given; a zero row stays zero."""
    norms = row_norms(x) if norms is None else norms
    extreme = (norms > 0) & ((norms < SMALLEST_FLOAT32_NORM) | (norms > 1 / SMALLEST_FLOAT32_NORM))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=(norms > 0) & ~extreme)
    unit: NDArray[np.float32] = aligned_empty(x.shape, np.float32) if out is None else out
    np.multiply(x, inverse[:, None].astype(np.float32), out=unit)
    # the inverse of such a norm leaves the range of float32
    unit[extreme] = (x[extreme].astype(np.float64) / norms[extreme, None]).astype(np.float32)
    return unit


def default_intercept(n_features: int) -> float:
    """The value of a bias column: 2 / sqrt(n_features), twice a typical feature of a unit row.

    It is rounded to a power of 2, which every precision holds exactly.
    """
    return float(2.0 ** round(1 - np.log2(n_features) / 2))


@dataclass(frozen=True)
class Preprocessing:
    """Map from raw feature rows to training space: L2-normalise, subtract a public centre and renormalise, add a bias.

    Attributes:
        centre: public or released mean of normalised rows, shape (n_features,), or None.
        centred_norm: estimated mean norm of centred rows before they are renormalised; 1 without a centre.
        intercept: value of the constant column appended last, part of the row's norm; 0 appends none.
    """

    centre: NDArray[np.float64] | None = None
    centred_norm: float = 1.0
    intercept: float = 0.0

    def apply(self, raw: ArrayLike, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Rows in training space, float32, contiguous, from raw rows (n, n_features); in `out` if given."""
        given = np.asarray(raw)
        n_rows, width = given.shape
        found = aligned_empty((n_rows, width + bool(self.intercept)), np.float32) if out is None else out
        centre = None if self.centre is None else self.centre.astype(np.float32)
        for start in range(0, n_rows, CACHED_ROWS):
            here = slice(start, start + CACHED_ROWS)
            x = widened(given[here]) if given.dtype == np.float16 else given[here].astype(np.float32, copy=False)
            if centre is not None:
                x = normalise_rows(x)
                x -= centre
            normalise_rows(x, out=found[here, :width])
        found[:, width:] = self.intercept
        return found

    def around(self, mean: NDArray[np.float64], error: float) -> Preprocessing:
        """This map with unit rows centred on `mean` (n_features,), a release whose noise has std `error` per entry.

        The mean norm of centred rows follows from E ||x - m||^2 = 1 - ||m||^2, which the noise changes by 2 `error` or
        so. A norm that is too large would let the bias of rare classes outweigh everything else.
        """
        least = min(SHORTEST_ROW**2, 2 * error)
        return replace(self, centre=mean, centred_norm=math.sqrt(max(least, 1 - float(mean @ mean))))

    @classmethod
    def centred_on(cls, public_raw: ArrayLike) -> Preprocessing:
        """Centre on the mean of public rows, shape (n_public, n_features)."""
        x = normalise_rows(np.asarray(public_raw, dtype=np.float32)).astype(np.float64)
        centre = x.mean(axis=0)
        return cls(centre, float(np.linalg.norm(x - centre, axis=1).mean()) or 1.0)

    def fold(
        self, weights: NDArray[np.float64], offset: NDArray[np.float64] | float = 0.0
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights and bias for L2-normalised raw rows, from weights in training space; `offset` is added to the bias.

        Training divides a centred row by its norm, which does not change the ranking of classes. Here the public mean
        of these norms replaces it, so that scores have the right scale on average.

        Returns: weights (n_features, n_classes) and bias (n_classes,), both float32; with a leading axis if `weights`
            is a stack.
        """
        folded, bias = weights, np.zeros_like(weights[..., 0, :])
        if self.intercept:
            folded, bias = weights[..., :-1, :], self.intercept * weights[..., -1, :]
        if self.centre is not None:
            folded = folded / self.centred_norm
            bias = bias - np.einsum("d,...dc->...c", self.centre, folded)
        return folded.astype(np.float32), (bias + offset).astype(np.float32)

    def unfold(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> NDArray[np.float64]:
        """Inverse of `fold` for one set of weights.

        Raises:
            UsageError: a bias that this training space cannot express.
        """
        wide, offset = weights.astype(np.float64), bias.astype(np.float64) - float(np.mean(bias))
        if self.intercept:
            return np.concatenate([wide, offset[None] / self.intercept])
        if self.centre is not None:
            offset = offset + self.centre @ wide
            offset -= offset.mean()
            wide = wide * self.centred_norm
        if np.abs(offset).max() > BIAS_TOLERANCE * max(1.0, float(np.abs(wide).max())):
            raise UsageError(
                f"the first model has a bias of up to {np.abs(offset).max():.3g}, which these rows cannot express; "
                "give --intercept 1 --centre none, or the public rows and --centre it was trained with"
            )
        return wide
