"""The grid cell of value + std Z for many numbers, by float64 arithmetic with a proven error bound.

About two numbers in a million are left to `linprobe.mechanisms.second_look`. The kernel and SciPy compute the inverse
of the normal distribution function in different ways, with errors below the bound. So they give the same cells where
both are sure (`docs/proofs/gaussian.md`, lemma 3).
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.native import LIBRARY

GRID_BITS = 20  # a grid step is between 2^-21 and 2^-20 of the noise's standard deviation
UNSURE = 2.0**-21  # bound on the error of a number in grid steps; lemma 3 of docs/proofs/gaussian.md
DEEP = 1 << 43  # magnitudes below have too few leading bits for that bound


def grid_step(std: float) -> float:
    """Step of the public grid for noise of standard deviation `std`: a power of two."""
    return 2.0 ** (math.floor(math.log2(std)) - GRID_BITS)


def first_look(
    value: NDArray[np.float64], words: NDArray[np.uint64], std: float, out: NDArray[np.float64]
) -> NDArray[np.integer]:
    """Write round(value + std Z) on the grid of `grid_step(std)` to `out`; all (n,), contiguous.

    Args:
        words: 64 bits of the stream for each number: 63 bits of U, and the sign of Z.

    Returns: places that the arithmetic leaves undecided.
    """
    grid = grid_step(std)
    if LIBRARY is not None:
        doubtful = np.empty(len(value), dtype=np.uint32)
        arrays = (array.ctypes.data for array in (words, value, out, doubtful))
        count = LIBRARY.linprobe_first_look(*arrays, len(value), std / grid, grid, UNSURE, DEEP)
        return doubtful[:count]
    magnitudes = words >> np.uint64(1)
    steps = value / grid  # exact, because `grid` is a power of two
    whole = np.rint(steps)
    steps -= whole
    steps += normals(magnitudes, words) * (std / grid)
    cells = np.rint(steps)
    steps -= cells
    np.abs(steps, out=steps)
    np.multiply(whole + cells, grid, out=out)
    return np.flatnonzero((steps > 0.5 - UNSURE) | (magnitudes < DEEP))


def normals(magnitudes: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Z in float64, for the leading 63 bits of U in `magnitudes` and the sign in the last bit of `words`."""
    z: NDArray[np.float64] = magnitudes.astype(np.float64)
    z += 0.5
    z *= 2.0**-64
    scipy.special.ndtri(z, out=z)
    np.negative(z, out=z, where=(words & np.uint64(1)).astype(np.bool_))
    return z
