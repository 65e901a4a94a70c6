"""The grid cell of value + std Z for one number, decided without rounding.

Float64 arithmetic leaves about two numbers in a million undecided. Here more bits of U are read until the answer is
certain. The distribution function is computed in ball arithmetic (Arb).

`value + std Z < b` holds exactly where `Z < (b - value) / std`. So a cell needs no inverse of the distribution
function: `Phi` compares its two boundaries with Z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import scipy

BITS = 63  # of U in a word of the stream; the last bit of the word is the sign
EXTRA_BITS = 512  # further bits of U for one number
SPARE = 64  # bits of the ball arithmetic beyond those of U
STEPS = (64, 192, EXTRA_BITS)  # numbers of further bits to try, in this order


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
    for n_extra in STEPS:
        bits = BITS + 1 + n_extra  # U is below 1/2
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
