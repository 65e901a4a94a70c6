"""Proof that the inverse normal distribution of the kernel and of SciPy is right between the points measured.

    python benchmarks/ndtri/certify.py

Lemma 3 of docs/proofs/gaussian.md needs |z - Phi^-1(u)| <= 1.03e-13 for each float64 u in [2^-21, 1/2] and its computed
z. The interval is halved into small pieces, in q = u - 1/2 or, in the tail, in t = sqrt(-log u) or sqrt(-2 log u). On
each piece:

    G(t) = Phi(z(t)) - u(t), for z without rounding, is at most sum_k |G_k| w^k + |G_N| w^N, with G_k for k < N the
        Taylor coefficients at the centre, G_N a ball around the N-th ones of the whole piece, w half the width (Arb)
    |z - Phi^-1(u)| <= b, if |G| <= b phi(|z| + b)
    plus the rounding of z, operation by operation, each off by at most 2^-53 of its result (or fused with the next)

Assumed: float64 is IEEE 754; log of the C library is off by at most 4 units in the last place (`LOG`); SciPy computes
what `scipy` states, which is compared at random points. The kernel's coefficients are read from noise.h.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flint import arb, arb_series, ctx
from scipy.special import ndtri

SOURCE = Path(__file__).parents[2] / "linprobe/native/noise.h"
NEEDED = 1.03e-13
PIECES = 128  # of each branch, at least
NONE, ROUNDING, LOG = arb(0), arb(2) ** -53, arb(2) ** -50  # errors, relative to the result
ORDER, SLACK = 12, 1e-9  # of the Taylor series; b is at most this
GOAL, LEAST = 1e-16, 1e-6  # pieces on which the N-th term is larger are halved; no piece is smaller
P0 = (
    "-59.9633501014107895267 98.0010754185999661536 -56.6762857469070293439 13.9312609387279679503 "
    "-1.23916583867381258016"
)
Q0 = (
    "1.95448858338141759834 4.67627912898881538453 86.3602421390890590575 -225.462687854119370527 "
    "200.260212380060660359 -82.0372256168333339912 15.9056225126211695515 -1.18331621121330003142"
)
P1 = (
    "4.05544892305962419923 31.5251094599893866154 57.1628192246421288162 44.0805073893200834700 "
    "14.6849561928858024014 2.18663306850790267539 -0.140256079171354495875 "
    "-0.0350424626827848203418 -8.57456785154685413611e-4"
)
Q1 = (
    "15.7799883256466749731 45.3907635128879210584 41.3172038254672030440 15.0425385692907503408 "
    "2.50464946208309415979 -0.142182922854787788574 -0.0380806407691578277194 "
    "-9.33259480895457427372e-4"
)


@dataclass(frozen=True)
class Rounded:
    """A float64 number: a ball around the number without rounding, and a bound on its error."""

    exact: arb
    error: arb = field(default_factory=lambda: NONE)

    def rounded(self, by: arb = ROUNDING) -> Rounded:
        return Rounded(self.exact, (self.error + by * (self.exact.abs_upper() + self.error)).upper())

    def __neg__(self) -> Rounded:
        return Rounded(-self.exact, self.error)

    def __add__(self, other: Rounded | float) -> Rounded:
        other = number(other)
        return Rounded(self.exact + other.exact, self.error + other.error).rounded()

    def __sub__(self, other: Rounded | float) -> Rounded:
        return self + -number(other)

    def __rsub__(self, other: float) -> Rounded:
        return number(other) + -self

    def __mul__(self, other: Rounded | float) -> Rounded:
        other = number(other)
        error = self.exact.abs_upper() * other.error + other.exact.abs_upper() * self.error + self.error * other.error
        return Rounded(self.exact * other.exact, error).rounded()

    __rmul__ = __mul__

    def __truediv__(self, other: Rounded) -> Rounded:
        exact, least = self.exact / other.exact, other.exact.abs_lower() - other.error
        assert least > 0
        return Rounded(exact, (self.error + exact.abs_upper() * other.error) / least).rounded()

    def __rtruediv__(self, other: float) -> Rounded:
        return number(other) / self

    def sqrt(self) -> Rounded:
        return Rounded(self.exact.sqrt(), self.error / (2 * (self.exact.lower() - self.error).sqrt())).rounded()

    def log(self) -> Rounded:
        return Rounded(self.exact.log(), self.error / (self.exact.lower() - self.error)).rounded(LOG)


def number(value: Rounded | float) -> Rounded:
    return value if isinstance(value, Rounded) else Rounded(arb(value))


@dataclass(frozen=True)
class Branch:
    """z on a part of the interval, for u (`from_u`), and as a function of the parameter t without rounding (`of`).

    Attributes:
        u: of t. first, last: the range of t.
    """

    from_u: Callable[[Any], Any]
    of: Callable[[Any], Any]
    u: Callable[[Any], Any]
    first: float
    last: float


def horner(coefficients: Sequence[float], x: Any, start: Any = None) -> Any:
    """Cephes' polevl; with `start`, its p1evl, where `start` is x."""
    total = coefficients[0] if start is None else start + coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def log(x: Any) -> Any:
    return math.log(x) if isinstance(x, float) else x.log()


def sqrt(x: Any) -> Any:
    return math.sqrt(x) if isinstance(x, float) else x.sqrt()


def kernel(source: str) -> tuple[Branch, Branch]:
    """As noise.h has it."""
    for line in (
        "q = u[i] - 0.5, r = 0.180625 - q * q", "z[i] = q * above / below", "tails += u[i] < 0.075",
        "r = sqrt(-log(u[tail[k]])) - 1.6", "z[tail[k]] = -above / below",
    ):  # fmt: skip
        assert line in source, f"noise.h has changed: no {line!r}"
    above, below = (
        [float(text) for text in re.findall(rf"{name} (?:= {name} \* r \+|=) ([\d.e-]+)[,;]", source)]
        for name in ("above", "below")
    )
    assert len(above) == len(below) == 16, "noise.h has other polynomials"

    def central(q: Any) -> Any:
        r = 0.180625 - q * q
        return q * horner(above[:8], r) / horner(below[:8], r)

    def tail(root: Any) -> Any:
        r = root - 1.6
        return -(horner(above[8:], r) / horner(below[8:], r))

    edge = math.sqrt(-math.log(0.075)) - 1e-9
    return (
        Branch(lambda u: central(u - 0.5), central, lambda q: q + 0.5, -0.425 - 1e-9, 0.0),
        Branch(
            lambda u: tail(sqrt(-log(u))), tail, lambda t: (-(t * t)).exp(), edge, math.sqrt(21 * math.log(2)) + 1e-9
        ),
    )


def scipy() -> tuple[Branch, Branch]:
    """As Cephes has it (Moshier, ndtri.c), which SciPy takes over."""
    p0, q0, p1, q1 = ([float(text) for text in each.split()] for each in (P0, Q0, P1, Q1))

    def central(y: Any) -> Any:
        square = y * y
        return (y + y * (square * horner(p0, square) / horner(q0, square, square))) * 2.50662827463100050242

    def tail(x: Any) -> Any:
        z = 1.0 / x
        return z * horner(p1, z) / horner(q1, z, z) - (x - log(x) / x)

    return (
        Branch(lambda u: central(u - 0.5), central, lambda y: y + 0.5, math.exp(-2) - 0.5 - 1e-9, 0.0),
        Branch(
            lambda u: tail(sqrt(-2.0 * log(u))),
            tail,
            lambda x: (-(x * x) / 2).exp(),
            2 - 1e-9,
            math.sqrt(42 * math.log(2)) + 1e-9,
        ),
    )


def difference(branch: Branch, t: arb, order: int) -> list[arb]:
    """Taylor coefficients 0 to `order` of Phi(z(t)) - u(t)."""
    ctx.cap = order + 1
    at = arb_series([t, 1])
    found = (-branch.of(at) / arb(2).sqrt()).erfc() / 2 - branch.u(at)
    return [found[k] for k in range(order + 1)]


def error_on(branch: Branch, first: float, last: float) -> tuple[float, float]:
    """Bounds on |z - Phi^-1(u)| without rounding, and on the rounding of z, for t from `first` to `last`."""
    centre, half = arb((first + last) / 2), arb((last - first) / 2 * (1 + 2.0**-40))
    piece = arb(centre, half)
    at_centre, at_all = difference(branch, centre, ORDER), difference(branch, piece, ORDER)
    rest = at_all[ORDER].abs_upper() * half**ORDER
    most = sum((at_centre[k].abs_upper() * half**k for k in range(ORDER)), rest)
    z = branch.from_u(Rounded(branch.u(piece)))
    density = (-((z.exact.abs_upper() + SLACK) ** 2) / 2).exp() / (2 * arb.pi()).sqrt()
    approximation, rounding = (float(each.upper()) for each in (most / density, z.error))
    if last - first > LEAST and not float((rest / density).upper()) <= GOAL:
        middle = (first + last) / 2
        parts = error_on(branch, first, middle), error_on(branch, middle, last)
        return max(part[0] for part in parts), max(part[1] for part in parts)
    assert approximation < SLACK, f"no bound from {first} to {last}"
    return approximation, rounding


def certify(branches: Sequence[Branch]) -> tuple[float, float]:
    """The largest approximation error and the largest rounding error of all branches."""
    ctx.prec = 128
    approximation = rounding = 0.0
    for branch in branches:
        ends = np.linspace(branch.first, branch.last, PIECES + 1).tolist()
        for first, last in pairwise(ends):
            found = error_on(branch, first, last)
            approximation, rounding = max(approximation, found[0]), max(rounding, found[1])
    return approximation, rounding


def check_scipy(rounding: float, n: int = 20_000) -> None:
    """Refuse an `ndtri` that computes something else at random points."""
    generator, (central, tail) = np.random.default_rng(0), scipy()
    u = np.concatenate([generator.uniform(2.0**-21, 0.5, n), 2.0 ** generator.uniform(-21, -1, n)])
    stated = [(central if y > math.exp(-2) else tail).from_u(y) for y in u.tolist()]
    assert np.abs(ndtri(u) - stated).max() <= 2 * rounding, "ndtri of this SciPy is another function"


def main() -> int:
    """Certify both functions, print the bounds, and return 1 if one exceeds what lemma 3 uses."""
    worst = 0.0
    for name, branches in (("kernel", kernel(SOURCE.read_text())), ("SciPy", scipy())):
        start = time.perf_counter()
        approximation, rounding = certify(branches)
        worst = max(worst, approximation + rounding)
        print(
            f"{name}: off by at most {approximation:.3g} and {rounding:.3g} for rounding, together "
            f"{approximation + rounding:.3g}; needed {NEEDED}; {time.perf_counter() - start:.1f} s"
        )
        if name == "SciPy":
            check_scipy(rounding)
    return int(worst > NEEDED)


if __name__ == "__main__":
    sys.exit(main())
