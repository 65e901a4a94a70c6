"""The grid cell of value + std Z: by float64 arithmetic with a proven error bound, and without rounding if in doubt.

The first look decides many numbers at once and leaves about two in a million to the second. The kernel and SciPy
compute the inverse of the normal distribution function in different ways, with errors below the bound. So they give the
same cells where both are sure (`docs/proofs/gaussian.md`, lemma 3).

The second look reads more bits of U until the answer is certain, in ball arithmetic (Arb). `value + std Z < b` holds
exactly where `Z < (b - value) / std`. So a cell needs no inverse of the distribution function: `Phi` compares its two
boundaries with Z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.native import LIBRARY

GRID_BITS = 20  # a grid step is between 2^-21 and 2^-20 of the noise's standard deviation
UNSURE = 2.0**-21  # bound on the error of a number in grid steps; lemma 3 of docs/proofs/gaussian.md
DEEP = 1 << 43  # magnitudes below have too few leading bits for that bound
WORD_BITS = 63  # of U in a word of the stream; the last bit of the word is the sign
EXTRA_BITS = 512  # further bits of U for one number
SPARE = 64  # bits of the ball arithmetic beyond the bits of U
EXTRA_STEPS = (64, 192, EXTRA_BITS)  # numbers of further bits to try, in this order


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


def nearest_cell(value: float, std: float, grid: float, word: int, further_bits: Callable[[], int]) -> float:
    """The integer k with value + std Z in ((k - 1/2) grid, (k + 1/2) grid).

    Args:
        value, std, grid: finite; the grid step is a power of two.
        word: 64 bits of the stream: 63 bits of U, and the sign of Z.
        further_bits: returns `EXTRA_BITS` more bits of U, the same in every call.

    Raises:
        ArithmeticError: the bits of U do not decide; the probability is below 2^-500.
    """
    exact_value, exact_std, exact_grid = Fraction(value), Fraction(std), Fraction(grid)
    leading, extra = word >> 1, further_bits()
    for n_extra in EXTRA_STEPS:
        bits = WORD_BITS + 1 + n_extra  # U is below 1/2
        low = leading << n_extra | extra >> (EXTRA_BITS - n_extra)
        z = float(scipy.special.ndtri(float(Fraction(2 * low + 1, 2 << bits))))
        first_guess = exact_value + exact_std * Fraction(-z if word & 1 else z)
        cell = math.floor(first_guess / exact_grid + Fraction(1, 2))
        while True:
            below = _is_below((exact_grid * (2 * cell - 1) / 2 - exact_value) / exact_std, word & 1, low, bits)
            above = _is_below((exact_grid * (2 * cell + 1) / 2 - exact_value) / exact_std, word & 1, low, bits)
            if below is None or above is None:
                break
            if not below and above:
                return float(cell)
            cell += -1 if below else 1
    raise ArithmeticError("a number of the noise needs more than 575 random bits")


def _is_below(boundary: Fraction, positive: int, low: int, bits: int) -> bool | None:
    """Whether Z is below `boundary`; None if the bits of U do not decide.

    |Z| = -Phi^-1(U) for a U in [low, low + 1] 2^-bits; `positive` says that Z > 0.
    """
    if positive and boundary <= 0:
        return False
    if not positive and boundary >= 0:
        return True
    from flint import arb, ctx, fmpq

    with ctx.workprec(bits + SPARE):
        tail = (arb(fmpq(abs(boundary.numerator), boundary.denominator)) / arb(2).sqrt()).erfc() / 2
        first = arb(low) * arb(2) ** -bits
        last = arb(low + 1) * arb(2) ** -bits
        # |Z| < |boundary| where U > Phi(-|boundary|)
        nearer, farther = bool(first >= tail), bool(last <= tail)
    if not (nearer or farther):
        return None
    return nearer if positive else farther
