"""Epsilon of Gaussian releases on Poisson samples, composed: a proven upper bound (docs/proofs/sampled.md).

A release with noise multiplier sigma and rate q is dominated by P = (1 - q) N(0, sigma^2) + q N(1, sigma^2) and
Q = N(0, sigma^2), in both directions. The privacy loss log dP/dQ is spread over a grid so that no delta(epsilon) falls
(Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022), with masses in ball arithmetic. Masses are tilted by an
exponential, which moves losses near epsilon to the middle and so keeps their digits, and composed by `convolved`.
Only grids and windows are chosen in plain float64 (`grid_for`): a bad choice makes the bound larger, not wrong.

NumPy's Fourier transform states no bound on its error. The transform here has one pass per power of two and consists of
additions and multiplications of float64 alone, so a count of the operations bounds its error. All lengths are powers of
two.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.figures import upper_float
from linprobe.accounting.loss_grid import LARGEST_EXPONENT, Grid, Kind, Window, grid_for
from linprobe.parallel.array_api import Indices, Reals
from linprobe.parallel.threads import blas_held_to_one_thread

Complexes = NDArray[np.complex128]
Values = TypeVar("Values", Reals, Complexes)

UNIT = 2.0**-53  # unit roundoff of float64
PASS = 12 * UNIT  # relative error of one pass: root 6.83, product 2.83, sum 1, in units
PRODUCT = 3 * UNIT  # of one product of complex numbers: 2 sqrt(2) (Higham 2002, Lemma 3.5)
TINY = 1e-280  # more than all underflow in one value, or in a sum of 2^20
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


BITS = tuple(96 << doublings for doublings in range(6))
ACCURATE = 2.0**-45  # relative width of all masses together
SUMS = 1 + 2.0**-32  # covers the rounding of a sum of at most 2^20 positive numbers, and of its terms
TILTS = (1.0, 0.5, 0.1, 2.0)  # powers of delta at which a whole curve is resolved
ROUGHEST = 0.1  # fineness for a direction that is not the larger one
SIMILAR = 0.9
QUIETLY = np.errstate(over="ignore", invalid="ignore")  # what is not finite is infinite epsilon, and no warning
SKEWED, FINEST = 4.0, 0.125  # epsilon is estimated too high where losses are skewed: a finer grid, by 8 at most


class UnresolvedError(ArithmeticError):
    """The numbers are beyond what the grid or float64 holds."""


@dataclass(frozen=True)
class Measure:
    """Losses of a group of releases."""

    start: int  # index on the grid of the first mass
    masses: Reals  # upper bounds of the masses times exp(tilt index - scale), (n,)
    scale: Any  # a logarithm that was taken out of the masses, a ball
    infinite: float  # a bound on the mass of infinite losses


@dataclass(frozen=True)
class Composed(Measure):
    """All releases composed, in one direction, on the coarse grid. `tilt` and `step` are as in `Grid`."""

    tilt: float
    step: float
    weights: Reals  # exp(-tilt i) (1 - exp(-step i)) for i from 1, (n,)

    def delta_at(self, index: int) -> float:
        """A bound on delta(epsilon) for epsilon = index step; 1 below the window."""
        from flint import arb

        if index < self.start:
            return 1.0
        above = self.masses[index - self.start + 1 :]
        total = float(above @ self.weights[: len(above)]) * SUMS + TINY
        exact = arb(total) * (self.scale - arb(self.tilt) * index).exp() + self.infinite
        return min(1.0, upper_float(exact)) if exact.is_finite() else 1.0

    def delta(self, epsilon: float) -> float:
        """A bound on delta(`epsilon`): between two points of the grid, it is linear in exp(epsilon)."""
        from flint import arb

        low = math.floor(epsilon / self.step)
        while arb(self.step) * low > arb(epsilon):
            low -= 1
        while arb(self.step) * (low + 1) <= arb(epsilon):
            low += 1
        first, then = self.delta_at(low), self.delta_at(low + 1)
        share = (arb(epsilon) - arb(self.step) * low).expm1() / arb(self.step).expm1()
        return min(first, upper_float(first - (first - arb(then)) * share.lower())) if then < first else first

    def epsilon(self, delta: float) -> float:
        """An epsilon at which the bound is at most `delta`: the least, up to rounding."""
        from flint import arb

        low, high = max(self.start, 0) - 1, self.start + len(self.masses)
        if self.delta_at(high) > delta:
            return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            if self.delta_at(middle) > delta:
                low = middle
            else:
                high = middle
        if low < max(self.start, 0):
            return upper_float(arb(self.step) * high)
        first, then = arb(self.delta_at(low)), arb(self.delta_at(high))
        share = (first - arb(delta)) / (first - then)
        return upper_float(arb(self.step) * low + (share * arb(self.step).expm1()).log1p())


@QUIETLY
@blas_held_to_one_thread()  # its threads make sums of so few numbers slower, and their order depend on the machine
def epsilon_of_kinds(kinds: Sequence[Kind], delta: float, fineness: float) -> float:
    """Epsilon of all releases together at `delta`, an upper bound; infinite if it cannot be resolved.

    Args:
        kinds: at least one. delta: in (0, 1).
        fineness: of the grid, in standard deviations of a release's loss; the excess of epsilon grows with its square.
    """
    if _indistinguishable(kinds, delta):
        return 0.0
    grids = _grids(kinds, delta, fineness)
    largest = max((grid.guess for grid in grids if grid is not None), default=math.inf)
    found, added = 0.0, largest_added(kinds)
    for reverse, grid in sorted(enumerate(grids), key=lambda one: -math.inf if one[1] is None else -one[1].guess):
        bound = added if reverse else math.inf
        if bound > found and grid is not None:
            if grid.guess < SIMILAR * largest:  # a rougher bound is likely to be below the other direction's
                rough = grid_for(kinds, delta, max(ROUGHEST, fineness), grid.reverse)
                bound = min(bound, math.inf if rough is None else _epsilon(kinds, rough, delta))
            bound = bound if bound <= found else min(bound, _refined(kinds, grid, delta, fineness))
        found = max(found, bound)
    return found


def _indistinguishable(kinds: Sequence[Kind], delta: float) -> bool:
    """Whether total variations, at most q / (sigma sqrt(2 pi)) for each release, add up to at most `delta`."""
    from flint import arb

    scale = (2 * arb.pi()).sqrt()
    return bool(sum((kind.count * arb(kind.rate) / (arb(kind.multiplier) * scale) for kind in kinds), arb(0)) <= delta)


def largest_added(kinds: Sequence[Kind]) -> float:
    """The largest loss of a record that is added, log dQ/dP: -log(1 - q) for each release, rounded up."""
    from flint import arb

    if any(kind.rate == 1 for kind in kinds):
        return math.inf
    return upper_float(-sum((kind.count * (-arb(kind.rate)).log1p() for kind in kinds), arb(0)))


def _refined(kinds: Sequence[Kind], grid: Grid, delta: float, fineness: float) -> float:
    """Epsilon on `grid`, or on a better one: all are upper bounds.

    The rounding of the composition counts on a grid that is coarser than asked for, and where epsilon is far below the
    guess, from which step and tilt of the grid follow. A larger tilt hides it. In the second case a finer grid helps.
    """
    bound = _epsilon(kinds, grid, delta)
    skewed = 0 < SKEWED * bound < grid.guess
    if skewed or grid.fineness > fineness:
        steeper = grid_for(kinds, delta, fineness, grid.reverse, tilted=1.0)
        bound = bound if steeper is None else min(bound, _epsilon(kinds, steeper, delta))
    if not skewed:
        return bound
    finer = grid_for(kinds, delta, fineness * max(math.sqrt(bound / grid.guess), FINEST), grid.reverse)
    return bound if finer is None else min(bound, _epsilon(kinds, finer, delta))


def _epsilon(kinds: Sequence[Kind], grid: Grid, delta: float) -> float:
    try:
        return total_loss(kinds, grid).epsilon(delta)
    except UnresolvedError:
        return math.inf


def _grids(kinds: Sequence[Kind], delta: float, fineness: float) -> list[Grid | None]:
    """One grid for each direction; one is enough for sums over all rows, whose directions mirror one another."""
    ways = (False,) if all(kind.rate == 1 for kind in kinds) else (False, True)
    return [grid_for(kinds, delta, fineness, reverse) for reverse in ways]


@QUIETLY
@blas_held_to_one_thread()
def deltas_of_kinds(kinds: Sequence[Kind], epsilons: Sequence[float], delta: float, fineness: float) -> Reals:
    """delta(epsilon) of all releases together, upper bounds, shape (len(epsilons),); resolved best near `delta`."""
    curves = []
    for power in TILTS:
        grids = _grids(kinds, delta**power, fineness)
        try:
            ways = [total_loss(kinds, grid) for grid in grids]
        except UnresolvedError:
            continue
        curves.append((max(grid.guess for grid in grids if grid is not None), ways))
    curves.sort(key=lambda curve: curve[0])
    guesses = [guess for guess, _ in curves]
    bounds = np.ones(len(epsilons))
    for place, epsilon in enumerate(epsilons):
        last = bisect.bisect(guesses, epsilon)
        for _, ways in curves[max(last - 1, 0) : last + 1]:
            bounds[place] = min(bounds[place], max(way.delta(epsilon) for way in ways))
    return bounds


def total_loss(kinds: Sequence[Kind], grid: Grid | None) -> Composed:
    """All releases in one direction. Losses above the window count as infinite, by Chernoff's bound."""
    from flint import arb

    if grid is None or not _proves(grid):
        raise UnresolvedError
    parts: list[tuple[Measure, int]] = []
    for kind, points, groups in zip(kinds, grid.points, grid.groups, strict=True):
        one = loss_of(kind, grid, points)
        parts += [(_grouped(one, members, window, grid), count) for members, count, window in groups]
        parts += [(one, kind.count)] if grid.ratio == 1 else []
    tilt, step, window = grid.tilt * grid.ratio, grid.step * grid.ratio, grid.final
    held = _convolved(parts, window)
    scale = sum((count * one.scale for one, count in parts), arb(0))
    above = sum((count * _log_transform(one, window.above) for one, count in parts), scale)
    over = (above - (arb(tilt) + arb(window.above)) * (window.start + window.kept)).exp()
    infinite = sum((count * arb(one.infinite) for one, count in parts), over)
    weights = (exponentials(-tilt, window.size + 1) * gains(step, window.size + 1))[1:]
    return Composed(window.start, held, scale, upper_float(infinite), tilt, step, weights)


def _proves(grid: Grid) -> bool:
    """Whether the bounds below hold on a grid: `grid_for` makes only such grids, and others are refused.

    With exponent r, Chernoff's method bounds the mass above a window if r >= 0. Mass below is moved up to its lowest
    point, where the tilt makes it larger: the method covers that if its exponent is at least the tilt. A group's window
    begins and ends at points of both grids.
    """
    groups = [window for found in grid.groups for _, _, window in found]
    kept = all(0 < window.kept <= window.size for window in (*groups, grid.final))
    above = grid.tilt >= 0 and all(window.above >= 0 for window in (*groups, grid.final))
    below = all(window.below >= grid.tilt for window in groups)
    whole = all(window.start % grid.ratio == window.kept % grid.ratio == 0 for window in groups)
    return kept and above and below and whole


def loss_of(kind: Kind, grid: Grid, points: Indices) -> Measure:
    """The loss of one release on the fine grid: masses in balls, rounded up.

    Each loss is divided between the two points around it, in the one way that is linear in exp(loss). Under Q, a point
    holds the change of slope of delta(a) = P(loss > log a) - a Q(loss > log a), a = exp(epsilon), interpolated between
    points; under P, a times that. The lowest point takes all losses below; above the highest, a part is infinite.
    """
    for bits in BITS:
        found = _spread(kind, grid, points, bits)
        if found is not None:
            return found
    raise UnresolvedError


def _spread(kind: Kind, grid: Grid, points: Indices, bits: int) -> Measure | None:
    from flint import arb, ctx

    with ctx.workprec(bits):
        curve = _curve(kind, grid.step, points.tolist())
        if curve is None:
            return None
        places, above, below = curve
        # far below, delta(a) is nearly 1 - a, so `below`, the difference, keeps the digits there
        zero = points.tolist().index(0)
        widths = [after - before for before, after in pairwise(places)]
        left = [(below[place + 1] - below[place]) / widths[place] for place in range(zero)]
        right = [(above[place + 1] - above[place]) / widths[place] for place in range(zero, len(widths))]
        left, right = [below[0] / places[0], *left], [*right, arb(0)]
        under_q = [after - before for before, after in pairwise(left)]
        under_q += [right[0] + 1 - left[-1]]
        under_q += [after - before for before, after in pairwise(right)]
        sign, rate = (-1, arb(grid.tilt)) if grid.reverse else (1, arb(grid.tilt) + arb(grid.step))
        indices = sign * points
        balls = [mass * (rate * index).exp() for mass, index in zip(under_q, indices.tolist(), strict=True)]
        total = sum(balls, arb(0))
        if not total > 0 or sum((ball.rad() for ball in balls), arb(0)) > ACCURATE * total:
            return None
        scale = arb(float(total.log()))
        masses, start, whole = np.zeros(int(np.ptp(indices)) + 1), int(indices.min()), scale.exp()
        masses[indices - start] = [max(0.0, upper_float(ball / whole)) for ball in balls]
        infinite = below[0] / places[0] if grid.reverse else above[-1]
        return Measure(start, masses, scale, max(0.0, upper_float(infinite)))


def _curve(kind: Kind, step: float, points: list[int]) -> tuple[list[Any], list[Any], list[Any]] | None:
    """a = exp(step point), delta(a) for points from 0 on, and delta(a) - (1 - a) for points up to 0.

    None if the number of bits does not resolve them.
    With x the place at which the loss is log a: delta(a) = P(X > x) - a Q(X > x), and q P(X > x | joined) - (a - 1 + q)
    Q(X > x) is the same. Losses are above log(1 - q).
    """
    from flint import arb

    sigma, rate, width = arb(kind.multiplier), arb(kind.rate), arb(step)
    per_nat, one = sigma / arb(2).sqrt(), 1 / (sigma * arb(2).sqrt())  # of x over sigma sqrt(2)
    places: list[Any] = []
    above: list[Any] = []
    below: list[Any] = []
    for point in points:
        loss = width * point
        excess = loss.expm1() + rate
        places.append(loss.exp())
        if excess <= 0:
            above.append(None)
            below.append(arb(0))
            continue
        if not excess > 0:
            return None
        absent = per_nat * (excess / rate).log() + one / 2
        present = absent - one
        above.append((rate * present.erfc() - excess * absent.erfc()) / 2 if point >= 0 else None)
        below.append((excess * (-absent).erfc() - rate * (-present).erfc()) / 2 if point <= 0 else None)
    return places, above, below


def _log_transform(measure: Measure, rate: float) -> Any:
    """Logarithm of a bound on sum(mass exp(rate index)), a ball."""
    from flint import arb

    length = len(measure.masses)
    anchor = max(0, length - int(LARGEST_EXPONENT / rate)) if rate > 0 else 0  # exponents rise to the largest at most
    total = float(measure.masses @ exponentials(rate, length, -anchor)) * SUMS + TINY
    if not math.isfinite(total):
        raise UnresolvedError
    return arb(total).log() + arb(rate) * (measure.start + anchor)


def _grouped(one: Measure, members: int, window: Window, grid: Grid) -> Measure:
    """`members` releases of a kind on the coarse grid; losses outside by Chernoff: infinite above, the lowest below."""
    from flint import arb

    above = members * (one.scale + _log_transform(one, window.above))
    over = (above - (arb(grid.tilt) + arb(window.above)) * (window.start + window.kept)).exp()
    under = arb(0)
    if window.start > members * one.start:
        under = (members * _log_transform(one, -window.below) + arb(window.below) * window.start).exp()
    if not (over < 1 and under < 1):
        raise UnresolvedError
    held = _convolved([(one, members)], window)
    held[0] += upper_float(under)
    infinite = upper_float(members * arb(one.infinite) + over)
    return Measure(window.start // grid.ratio, _coarser(held * SUMS, grid), members * one.scale, infinite)


def _coarser(masses: Reals, grid: Grid) -> Reals:
    """Masses of the fine grid, spread over the coarse one as in `loss_of`; the first point lies on both."""
    from flint import arb

    step, rate, ratio = arb(grid.step), arb(grid.tilt) + arb(grid.step), grid.ratio
    shares = [(step * place).expm1() / (step * ratio).expm1() for place in range(ratio)]
    down = [upper_float((-rate * place).exp() * (1 - share)) for place, share in enumerate(shares)]
    up = [upper_float((rate * (ratio - place)).exp() * share) for place, share in enumerate(shares)]
    blocks = masses.reshape(-1, ratio)
    result = np.zeros(len(blocks) + 1)
    result[:-1] += blocks @ np.array(down)
    result[1:] += blocks @ np.array(up)
    return result * SUMS


def _convolved(parts: Sequence[tuple[Measure, int]], window: Window) -> Reals:
    """Bounds on masses of the summed losses in a window, (kept,); indices modulo the size are one, so mass is added."""
    sums, error = convolved([(_folded(one, window.size), count) for one, count in parts])
    if not (math.isfinite(error) and np.isfinite(sums).all()):
        raise UnresolvedError
    return np.maximum(np.roll(sums, -window.start % window.size)[: window.kept] + error, 0.0)


def _folded(measure: Measure, size: int) -> Reals:
    """Masses at indices modulo `size`."""
    turns = -(-len(measure.masses) // size)
    padded = np.concatenate([measure.masses, np.zeros(turns * size - len(measure.masses))])
    total = padded.reshape(turns, size).sum(axis=0) * (SUMS if turns > 1 else 1.0)
    return np.asarray(np.roll(total, measure.start % size))
