"""Choose grids and windows for `loss_distribution` by float64 estimates, on which no guarantee rests.

The composed loss is estimated by its cumulants, log E exp(order loss), by numerical integration over the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from linprobe.parallel.array_api import Indices, Reals

REACH = 60.0  # of the integrals, in standard deviations of the noise
PER_DEVIATION = 6
MOST_PLACES = 12000
LARGEST_TILT = 50.0  # in multiples of sigma / q
TRUNCATED = 1e-9  # share of delta that is given to each kind of truncation
SMALLEST_DELTA = 1e-300  # grids for smaller ones, whose shares float64 does not hold, are grids for this one
WRAPPED = 25.0  # nats: share of the tilted mass outside a window, which is added within
# deviations at which lower tails are bounded
STANDARD = (0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
MANY = 512  # releases that are composed in two stages
LARGEST = 2100.0  # product of fineness and the length of a transform
MOST_POINTS = 20000
SIZE_OF_POINT = 16  # in ball arithmetic, a point takes as long as several values of a transform
MOST_TRIES = 20
CLOSER = (0.7, 1.4), (0.95, 1.06), (1.0, 1.0)  # where the search for a tilt goes on, relative to the best so far
TILTED = 0.7  # of the tilt of Chernoff's bound, which is too large where losses are skewed
COARSE = 0.1  # deviations that a grid adds to those of a sum of losses, from which on a window allows for them
COARSENING = 1.5  # spacing of points at losses far from 0, relative to the spacing near it
LARGEST_EXPONENT = 600.0
ERROR_EXPONENT = 15.0  # by which the error of a group's masses may grow in a bound on the mass above a window


@dataclass(frozen=True)
class Kind:
    """`count` Gaussian releases with one noise multiplier and sampling rate."""

    multiplier: float
    rate: float
    count: int


@dataclass(frozen=True)
class Window:
    """`size` indices from `start`, of which `kept` are kept. Chernoff's method bounds the mass on either side."""

    start: int
    size: int
    kept: int
    above: float  # exponent per index of the bound above, 0 or more
    below: float = 0.0  # and below, at least the tilt of the grid


@dataclass(frozen=True)
class Grid:
    """Grids and windows for one direction."""

    reverse: bool  # whether the loss is of Q against P, not of P against Q
    step: float  # of the fine grid
    ratio: int  # of the steps of the coarse and the fine grid, a power of two
    tilt: float  # exponent per index of the fine grid
    points: tuple[Indices, ...]  # indices of the loss of one release of each kind: increasing, 0 inside
    groups: tuple[tuple[tuple[int, int, Window], ...], ...]  # by kind: members, groups, window; empty for one grid
    final: Window  # of all releases on the coarse grid
    guess: float  # of epsilon
    fineness: float  # as in `epsilon_of_kinds`; more than was asked for if the grid would have been too large


class _Shape:
    """The loss of one release at many places of the noise, under Q."""

    def __init__(self, kind: Kind) -> None:
        sigma, rate, self.count = kind.multiplier, kind.rate, kind.count
        reach = REACH * sigma
        count = min(MOST_PLACES, int(PER_DEVIATION * (2 * reach + 1) / sigma))
        self.places = np.linspace(-reach, reach + 1, count)
        self.sigma, self.rate = sigma, rate
        self.losses = self._loss(self.places)
        density = -((self.places / sigma) ** 2) / 2
        self.logs = density - math.log(float(np.exp(density).sum()))
        with np.errstate(over="ignore"):
            self.weights, self.ratios = np.exp(self.logs), np.expm1(np.minimum(self.losses, LARGEST_EXPONENT))

    def _loss(self, places: Reals) -> Reals:
        exponent = (2 * places - 1) / (2 * self.sigma**2)
        if self.rate == 1:
            return exponent
        small = np.log1p(self.rate * np.expm1(np.minimum(exponent, 30)))
        large = (
            math.log(self.rate) + exponent + np.log1p((1 - self.rate) / self.rate * np.exp(-np.maximum(exponent, 30)))
        )
        return np.where(exponent < 30, small, large)

    def cumulants(self, orders: Reals) -> Reals:
        """log E_Q exp(order loss), for any orders, shape (n,)."""
        exponents = np.multiply.outer(orders, self.losses)
        heights = exponents + self.logs
        tops = heights.max(axis=1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = tops + np.log(np.exp(heights - tops[:, np.newaxis]).sum(axis=1))
            small = np.abs(found) < 0.1
            found[small] = self._small_cumulants(orders[small], exponents[small], heights[small])
            beyond = orders * self._loss(orders) - (orders / self.sigma) ** 2 / 2  # a second peak outside the places
        return np.asarray(np.where(orders > self.places[-1], np.maximum(found, beyond), found))

    def _small_cumulants(self, orders: Reals, exponents: Reals, heights: Reals) -> Reals:
        """`cumulants` without the terms whose means are known, so that small ones keep their digits."""
        gain = np.where(
            exponents < 1, np.expm1(exponents) * self.weights, np.exp(np.minimum(heights, 700)) - self.weights
        )
        less = np.where(
            self.losses < 1, self.ratios * self.weights, np.exp(np.minimum(self.losses + self.logs, 700)) - self.weights
        )
        lost = np.multiply.outer(orders, less)
        return np.asarray(np.log1p(np.maximum((gain - lost).sum(axis=1), -0.999)))

    def variance(self, order: float) -> float:
        heights = order * self.losses + self.logs
        weights = np.exp(heights - heights.max())
        weights /= weights.sum()
        mean = float(weights @ self.losses)
        return float(weights @ (self.losses - mean) ** 2)


@lru_cache(maxsize=64)
def _shape(kind: Kind) -> _Shape:
    return _Shape(kind)


class _Sum:
    """The composed loss of several kinds, in one direction."""

    def __init__(self, parts: Sequence[tuple[Kind, int]], reverse: bool) -> None:
        self.parts = [(_shape(kind), count) for kind, count in parts]
        self.reverse = reverse

    def cumulants(self, tilts: Reals) -> Reals:
        """log E exp(tilt loss). Each mass of P is the mass of Q times exp(loss)."""
        orders = -tilts if self.reverse else tilts + 1
        return np.asarray(sum(count * shape.cumulants(orders) for shape, count in self.parts))

    def deviation(self, tilt: float) -> float:
        order = -tilt if self.reverse else tilt + 1
        return math.sqrt(sum(count * shape.variance(order) for shape, count in self.parts))

    def tilt(self, delta: float, *, tight: bool = False) -> tuple[float, float]:
        """Chernoff's bound on epsilon at `delta`, or one that is a little tighter, and the tilt where it is least."""
        widest = LARGEST_TILT * max(max(shape.sigma, 1.0) / shape.rate for shape, _ in self.parts)
        tilts = np.geomspace(1e-4, widest, 80)
        for nearest, furthest in CLOSER if tight else CLOSER[:2]:
            less = (1 + tilts) * np.log1p(tilts) - tilts * np.log(tilts) if tight else 0.0
            bounds = (self.cumulants(tilts) - math.log(delta) - less) / tilts
            best = int(np.nanargmin(bounds))
            found = float(bounds[best]), float(tilts[best])
            tilts = tilts[best] * np.geomspace(nearest, furthest, 9)
        return found

    def upper(self, tilt: float, mass: float, most: float = math.inf) -> tuple[float, float, float]:
        """Losses with at most `mass`, and with little tilted mass too, above; the rise that shows the first best."""
        rises = tilt * np.array([0.0, *np.geomspace(1e-3, 1e4, 70)])
        values = self.cumulants(tilt + rises)
        further = float(np.nanmin((values[1:] - values[0] + WRAPPED) / rises[1:]))
        bounds = np.where(rises <= most, (values - math.log(mass)) / (tilt + rises), math.inf)
        best = int(np.nanargmin(bounds))
        return float(bounds[best]), max(float(bounds[best]), further), float(rises[best])

    def lower(
        self, tilt: float, nats: float, width: float, least: float = 0.0, moved: float = 0.0
    ) -> tuple[float, float]:
        """A loss below which there is exp(-nats) of the tilted mass, and the exponent above `least` that shows it.

        No loss is resolved to less than `width`. `moved`: by how much the grid moves the loss of each release, at most;
        a mean loss is kept, so the logarithm of a mean of exp(exponent move) is at most (exponent moved)^2 / 8.
        """
        exponents = least + np.array(STANDARD if least == 0 else (*STANDARD, 0.0)) / max(self.deviation(tilt), width)
        here = self.cumulants(np.array([tilt]))[0]
        spread = sum(count for _, count in self.parts) * (exponents * moved) ** 2 / 8
        bounds = (here - nats - self.cumulants(tilt - exponents) - spread) / exponents
        best = int(np.nanargmax(bounds[: len(STANDARD)]))
        if least > 0 and bounds[best] / 2 < bounds[-1] < 0:  # where large negative losses are rare, far nearer to 0
            best = len(STANDARD)
        return float(bounds[best]), float(exponents[best])


def grid_for(
    kinds: Sequence[Kind], delta: float, fineness: float, reverse: bool, tilted: float = TILTED
) -> Grid | None:
    """Grids for epsilon at `delta`; None if too large. `tilted`: tilt, as a share of the tilt of Chernoff's bound."""
    most, delta = LARGEST / fineness, max(delta, SMALLEST_DELTA)
    for _ in range(MOST_TRIES):
        grid = _grid(kinds, delta, fineness, reverse, tilted)
        sizes = [window.size for groups in grid.groups for _, _, window in groups]
        points = [max(SIZE_OF_POINT * len(one), int(np.ptp(one)) // 4) for one in grid.points]
        if max(grid.final.size, *sizes, *points) <= most:
            return grid
        fineness *= 2
    return None


def _grid(kinds: Sequence[Kind], delta: float, fineness: float, reverse: bool, tilted: float) -> Grid:
    whole = _Sum([(kind, kind.count) for kind in kinds], reverse)
    total, least = sum(kind.count for kind in kinds), TRUNCATED * delta
    guess, best = whole.tilt(delta)
    tilt = tilted * best
    ratio = 1 if total <= MANY else 2 ** round(math.log2(total) / 4)
    # a grid adds at most step^2 / 4 to the variance of a loss, so (tilt + 1) step^2 total / 8 to epsilon
    target = fineness * math.sqrt(guess / (best + 1) / total / (1 if ratio == 1 else 2))
    ranges = [_range(kind, reverse, tilt, least / total, target) for kind in kinds]
    bounds, low = [], whole.lower(tilt, WRAPPED, target)[0]
    low = max(low, sum(kind.count * (first - 3 * target) for kind, (first, _) in zip(kinds, ranges, strict=True)))
    most = math.inf if ratio > 1 else LARGEST_EXPONENT / max(last - first for first, last in ranges)
    for kind, (first, last) in zip(kinds, ranges, strict=True):
        members = [(ratio**2, kind.count // ratio**2), (kind.count % ratio**2, 1)] if ratio > 1 else []
        found = []
        for count, times in (one for one in members if min(one)):
            part = _Sum([(kind, count)], reverse)
            above = part.upper(tilt, least / times, LARGEST_EXPONENT / (last - first))
            spread = math.sqrt(count) * target / 2
            moved = target if spread > COARSE * part.deviation(tilt) else 0.0
            below = part.lower(tilt, WRAPPED + math.log(times), target, least=tilt, moved=moved)
            most = min(most, ERROR_EXPONENT / max(above[0], target))
            found.append((count, times, above, below))
        bounds.append(found)
    end, high, rise = whole.upper(tilt, least, most)
    size = _two_power((high - low) / target / ratio + 4)
    coarse = (high - low) / (size - 4)
    step = coarse / ratio
    points = tuple(_points(limits, reverse, best, step, fineness) for limits in ranges)
    groups = []
    for found, own in zip(bounds, points, strict=True):
        windows, lowest = [], -int(own[-1]) if reverse else int(own[0])
        for count, times, (top, further, over), (bottom, under) in found:
            start = math.floor(max(bottom / step, count * lowest) / ratio) * ratio
            kept = max(1, math.ceil(top / coarse)) * ratio - start
            size_of_group = _two_power(max(further / step - start, kept))
            windows.append((count, times, Window(start, size_of_group, kept, over * step, under * step)))
        groups.append(tuple(windows))
    start = math.floor(low / coarse)
    final = Window(start, size, min(size, math.ceil(end / coarse) + 1 - start), rise * coarse)
    return Grid(reverse, step, ratio, tilt * step, points, tuple(groups), final, guess, fineness)


def _range(kind: Kind, reverse: bool, tilt: float, mass: float, width: float) -> tuple[float, float]:
    """Limits of the loss of one release: `mass` is above, and little of the tilted mass below. 0 is between them."""
    one = _Sum([(kind, 1)], reverse)
    low, high = one.lower(tilt, WRAPPED - math.log(TRUNCATED), width)[0], one.upper(tilt, mass)[0]
    bound = -math.log1p(-kind.rate) if kind.rate < 1 else math.inf
    return (min(low, 0.0), min(high, bound)) if reverse else (max(min(low, 0.0), -bound), high)


def renyi_epsilon(kinds: Sequence[Kind], delta: float) -> float:
    """Epsilon of all releases at `delta` by Renyi divergences (Canonne et al. 2020, Prop. 12), float64: an estimate."""
    wholes = [_Sum([(kind, kind.count) for kind in kinds], reverse) for reverse in (False, True)]
    return max(0.0, *(whole.tilt(delta, tight=True)[0] for whole in wholes))


def _points(limits: tuple[float, float], reverse: bool, tilt: float, step: float, fineness: float) -> Indices:
    """Indices for the loss of one release: side by side near 0, further apart where losses are large and rare."""
    growth = min(0.3, COARSENING * fineness)

    def away(end: float, tilt: float) -> list[int]:
        found: list[int] = []
        last, widest = math.ceil(max(0.0, end) / step) + 2, growth / (1 + tilt) / step
        while (not found or found[-1] < last) and len(found) <= MOST_POINTS:
            here = found[-1] if found else 0
            found.append(here + max(1, int(min(growth * here, widest))))
        return found

    own = np.array([*(-place for place in reversed(away(-limits[0], 0.0))), 0, *away(limits[1], tilt)], dtype=np.int64)
    return -own[::-1] if reverse else own


def _two_power(length: float) -> int:
    return 1 << max(1, (math.ceil(min(length, 2.0**60)) - 1).bit_length())
