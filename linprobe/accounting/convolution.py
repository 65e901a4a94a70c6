"""Sums of independent losses: convolutions of measures on a grid, with a proven bound on all rounding.

NumPy's Fourier transform states no bound on its error. The transform here has one pass per power of two and consists of
additions and multiplications of float64 alone, so a count of the operations bounds its error (docs/proofs/sampled.md).
All lengths are powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Values = TypeVar("Values", Reals, Complexes)

UNIT = 2.0**-53  # unit roundoff of float64
PASS = 12 * UNIT  # relative error of one pass: root 6.83, product 2.83, sum 1, in units
PRODUCT = 3 * UNIT  # of one product of complex numbers: 2 sqrt(2) (Higham 2002, Lemma 3.5)
TINY = 1e-280  # more than all underflow in one value
SLACK = 1 + 2.0**-20  # covers the rounding of the bounds themselves, sums of at most 2^24 positive numbers


def convolved(parts: Sequence[tuple[Reals, int]]) -> tuple[Reals, float]:
    """The cyclic convolution of `count` copies of each array.

    Args:
        parts: arrays of no negative number, shape (n,), and their counts, whose sum is at most 10^12.
    Returns: the convolution, shape (n,); a bound on the error of each of its values.
    """
    values, sizes = np.ones(1, dtype=np.complex128), np.ones(1)
    excess: Reals = np.full(1, 4 * PRODUCT * sum(count for _, count in parts))
    for masses, count in parts:
        spectrum = _transform(masses.astype(np.complex128))
        error = _passes(len(masses)) * float(masses.sum()) * SLACK + TINY
        size = np.sqrt(spectrum.real**2 + spectrum.imag**2) * SLACK + error
        excess = excess + count * error / size
        values, sizes = values * _power(spectrum, count), sizes * _power(size, count)
    length = len(values)
    sums = _transform(np.conj(values)).real / length
    errors = float((sizes * excess).mean() + _passes(length) * sizes.mean())
    return sums, errors * SLACK**2 + TINY


def _passes(length: int) -> float:
    """Error of one value of a transform, relative to the sum of the sizes of all inputs."""
    return PASS * length.bit_length() * SLACK


def _power(values: Values, count: int) -> Values:
    """`values` to the power `count` >= 1. Squaring doubles an error, so it is below `count` times `PRODUCT`."""
    if count == 1:
        return values
    half = _power(values, count // 2)
    return half * half * values if count % 2 else half * half


def _transform(values: Complexes) -> Complexes:
    """The Fourier transform of `values`, shape (n,): sum_j values[j] exp(-2 pi i j k / n).

    Pass by pass, transforms of length 2L of every (c/2)-th value follow from two of length L. The longer axis is kept
    last, for speed.
    """
    length = len(values)
    roots, part = _roots(length), values.reshape(1, length)
    while part.shape[1] > part.shape[0]:
        done, half = part.shape[0], part.shape[1] // 2
        turned = roots[:: length // (2 * done)][:done, np.newaxis] * part[:, half:]
        part = np.concatenate([part[:, :half] + turned, part[:, :half] - turned])
    part = np.ascontiguousarray(part.T)
    while part.shape[0] > 1:
        half, done = part.shape[0] // 2, part.shape[1]
        turned = roots[:: length // (2 * done)][:done] * part[half:]
        part = np.concatenate([part[:half] + turned, part[:half] - turned], axis=1)
    return np.asarray(part[0])


@lru_cache(maxsize=2)
def _roots(length: int) -> Complexes:
    """exp(-2 pi i j / n) for j below n / 2, at least one: products of two numbers, each within 2 `UNIT`."""
    count = max(length // 2, 1)
    fine = 1 << (count.bit_length() // 2)
    coarse, small = _few_roots(length, fine, count // fine), _few_roots(length, 1, fine)
    return np.asarray(np.multiply.outer(coarse, small).ravel())


def _few_roots(length: int, stride: int, count: int) -> Complexes:
    from flint import acb, ctx, fmpq

    with ctx.workprec(80):  # a ball is far smaller than the rounding to float64
        return np.array([complex(acb(fmpq(-2 * stride * place, length)).exp_pi_i()) for place in range(count)])


def exponentials(rate: float, count: int, start: int = 0) -> Reals:
    """exp(rate i) for `count` indices from `start`, relative error at most 8 `UNIT`; infinity or 0 beyond float64."""
    fine = _fine(count)
    with np.errstate(over="ignore"):
        return _outer(_table(rate, fine, -(-count // fine), start), _table(rate, 1, fine))[:count]


def gains(step: float, count: int) -> Reals:
    """1 - exp(-step i) for i below `count`, relative error at most 8 `UNIT`: sums of positive numbers."""
    fine = _fine(count)
    coarse, small = (-_table(-step, *shape, less_one=True) for shape in ((fine, -(-count // fine)), (1, fine)))
    kept = _table(-step, fine, len(coarse))
    return np.asarray((np.repeat(coarse, fine) + _outer(kept, small))[:count])


def _fine(count: int) -> int:
    return 1 << (count.bit_length() // 2)


def _outer(coarse: Reals, small: Reals) -> Reals:
    return np.asarray(np.multiply.outer(coarse, small).ravel())


def _table(rate: float, stride: int, count: int, start: int = 0, less_one: bool = False) -> Reals:
    """exp(rate (start + stride i)), or that less one, for i below `count`, within 2 `UNIT`."""
    from flint import arb, ctx

    with ctx.workprec(80):
        exponents = [arb(rate) * (start + stride * place) for place in range(count)]
        return np.array([float(one.expm1() if less_one else one.exp()) for one in exponents])
