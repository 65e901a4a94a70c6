"""Rounding in clipped sums: a public grid makes them independent of order, and a margin covers the remaining errors.

Adjacency: zero-out. One record is present, or its place is empty. The number of places is public. An empty place
contributes nothing, and every other record keeps its place. So `sum_i c_i g_i` with `c_i = min(1, tau / ||g_i||)`
changes by at most tau in exact arithmetic. In floating point, with u = 2^-24 and A the largest norm of a summand:

    Sums of n = SUM_ROWS rows are float32. A term is rounded once as a product and once in each of its additions; over
        all terms that is at most n (n + 3) / 2 roundings, in any order of additions. The error of such a sum is at
        most n (n + 3) / 2 u A, with the record and without it. All other sums are equal in both cases. The sums of a
        Poisson sample are over runs of places that hold fewer rows (`Sample`), with the same bound.
    These sums are added exactly: in float64, rounded to a public grid so coarse that no addition rounds (`ExactSum`).
        That changes each sum by at most one grid step per entry, and all sums of a sample by at most `SAMPLED_STEPS`.
        If more rows are rounded as a whole (without the kernel, on a GPU, with `Scale`), float64 sums of at most 512
        such sums, or of 4,096 rows, add an error of at most 2^-27 A.
    The relative error of norms of rows and of residuals is 17 u each (`linprobe.data.blocks.row_norms`), of
        factors and products 2 u.
    The scores of a row are the same numbers in both cases: the kernel adds them in one order at every place; BLAS gets
        the same rows at the same places in calls of the same shape; or no addition rounds (`SteadyProducts`).

Clip factors keep gradients below tau by a margin that covers all these errors. tests/mechanisms/test_clipping.py checks
each term, and that known attacks on the rounding stay far below the margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from linprobe.errors import ParameterError
from linprobe.parallel.array_api import Array, Indices, Mask, Reals, double, namespace

FLOAT32_ROUNDING = 2.0**-24
SUM_ROWS = 128  # rows of a float32 sum
UNIT_PLACES = 1 << 12  # runs of a sample do not cross multiples of this in a block, so that shards change none
TYPICAL_ROWS = 100  # sampled rows of a run of places, on average; few runs then have SUM_ROWS
GRID_STEP = 2.0**-52  # relative to the bound on a sum
SAMPLED_STEPS = 9  # grid steps by which one record moves the roundings of a sample; see `arithmetic`
LEAST_ROWS = 1 << 13  # smaller sums use the grid of this many rows, so that shards of one data set share a grid
SMALLEST_MARGIN = 2.0**-10
LARGEST_MARGIN = 2.0**-4
FLOAT64_BITS = 53
ROW_BITS = 26  # of the numbers of a row in `SteadyProducts`: two more than float32 has
STEADY_ROWS = 128  # of a call, so that they stay in cache
LEAST_TOP = 2.0**-400  # largest number of a row or column, at least, so that no product underflows
GRID_ROUNDINGS = 32  # grid steps by which one person moves the roundings of runs of rows: docs/proofs/people.md


class ExactSum:
    """A float64 sum that does not depend on the order of its terms: each term is first rounded to one public grid.

    Args:
        zeros: the empty sum, float64, on the host or a GPU.
        longest: bound on an entry of one row's term, shape () or one per entry; infinite for no grid.
        n_rows: bound on the number of rows in all processes. A grid step is at most `GRID_STEP * longest * n_rows`,
            and the sum is at most 2^53 steps, which float64 represents exactly. The margin covers what larger terms
            than an eighth of `longest * n_rows` add on a GPU: lemma 3 of docs/proofs/clipped-sum.md.

    Attributes:
        total: the sum so far.
        shift: a number whose float64 neighbours are one grid step apart, or an array of such numbers. Adding and
            subtracting it rounds to the grid.
    """

    def __init__(self, zeros: Any, longest: Reals, n_rows: int) -> None:
        self.total = zeros
        bound = longest * max(n_rows, LEAST_ROWS)
        shift = 1.5 * 2.0 ** (np.ceil(np.log2(bound)) - 1) if np.isfinite(bound).all() else np.zeros(())
        self.shift = shift if shift.ndim else float(shift)

    def add(self, term: Any) -> None:
        """Add a term, which is rounded in place."""
        term += self.shift
        term -= self.shift
        self.total += term


class SteadyProducts:
    """Products x @ matrix in float64, whose row i depends on row i of x and on the matrix alone.

    BLAS adds in an order that follows from the shape of a call and the place of a row in it. So no addition may round.
    Each row of x is rounded to whole numbers up to 2^`ROW_BITS`, times a power of two; the matrix is split into parts
    whose columns are whole numbers up to 2^b, times a power of two. n products of such numbers add up to at most 2^53,
    in any order, if `ROW_BITS` + b + log2(n) <= 53. The parts together keep `ROW_BITS` bits of each column or more. So
    the result differs from x @ matrix by at most n 2^-`ROW_BITS` times the largest numbers of the row and the column.

    Args:
        matrix: shape (n_features, n_columns), finite, on the host or a GPU.
    """

    def __init__(self, matrix: Array) -> None:
        self._matrix, self._n_columns = matrix, matrix.shape[1]

    @cached_property
    def _parts(self) -> Array:
        """The parts of the matrix side by side, shape (n_features, n_parts n_columns)."""
        bits = FLOAT64_BITS - ROW_BITS - math.ceil(math.log2(self._matrix.shape[0]))
        left, parts = double(self._matrix), []
        for _ in range(-(-ROW_BITS // bits)):
            parts.append(_leading(left, bits, axis=0))
            left = left - parts[-1]
        return namespace(left).concatenate(parts, axis=1)

    def of(self, x: Array) -> Array:
        """x @ matrix, shape (n, n_columns), for finite rows x (n, n_features)."""
        if not isinstance(x, np.ndarray):
            return self._products(x)
        found = np.empty((len(x), self._n_columns))
        for first in range(0, len(x), STEADY_ROWS):
            rows = slice(first, first + STEADY_ROWS)
            found[rows] = self._products(x[rows])
        return found

    def _products(self, x: Array) -> Array:
        products = _leading(double(x), ROW_BITS, axis=1) @ self._parts
        found = products[:, : self._n_columns]
        for first in range(self._n_columns, products.shape[1], self._n_columns):
            found = found + products[:, first : first + self._n_columns]
        return found


def _leading(x: Array, bits: int, axis: int) -> Array:
    """`x` rounded to whole numbers up to 2^bits times one power of two, which the largest number along `axis` gives."""
    xp = namespace(x)
    top = xp.max(abs(x), axis=axis, keepdims=True).clip(LEAST_TOP, None)
    shift = 1.5 * 2.0 ** (FLOAT64_BITS - 1 - bits) * (top / xp.frexp(top)[0])  # rounds as in `ExactSum`
    rounded = x + shift
    rounded -= shift
    return rounded


@dataclass(frozen=True)
class Sample:
    """The rows of a block that a Poisson sample selected, and the runs in which they are summed.

    Each `UNIT_PLACES` places of a block are split into equal runs of about `TYPICAL_ROWS` expected rows, which depends
    on public numbers only. A run with `SUM_ROWS` sampled rows or more is halved until each part has fewer. So one
    record changes the sum of its own run, or it is the row for which its run is halved: one sum of SUM_ROWS - 1 rows
    without it is two sums of SUM_ROWS rows in all with it. The bound n (n + 3) / 2 grows faster than n, so it is at
    most the bound for one sum.
    """

    places: Indices  # of the sampled rows in the block, increasing, (m,)
    ends: Indices  # numbers of sampled rows up to the end of each run that has some; the last is m

    @classmethod
    def of(cls, sampled: Mask, rate: float) -> Sample:
        """The sample of a block, from its mask (b,) and the public sampling rate."""
        places, bounds = np.flatnonzero(sampled), _bounds(len(sampled), rate)
        ends = places.searchsorted(bounds)
        sizes = ends[1:] - ends[:-1]
        if sizes.max(initial=0) < SUM_ROWS:
            return cls(places, ends[1:][sizes > 0])
        halved = [0]
        for first, stop in pairwise(bounds.tolist()):
            halved += _ends(places, first, stop, halved[-1])
        return cls(places, np.array(halved[1:], np.int64))

    def fits(self, n: int) -> bool:
        """Whether these are places in a block of n rows, in runs of at most `SUM_ROWS`; the kernel does not check."""
        if not (len(self.places) and len(self.ends)):
            return not (len(self.places) or len(self.ends))
        inside = 0 <= self.places.min() <= self.places.max() < n
        sizes = self.ends - np.concatenate([[0], self.ends[:-1]])
        return bool(inside and self.ends[-1] == len(self.places) and 0 < sizes.min() <= sizes.max() <= SUM_ROWS)

    def runs(self) -> Iterator[slice]:
        """The slice of `places` in each run."""
        return (slice(start, stop) for start, stop in pairwise([0, *self.ends.tolist()]))

    def parts(self, most: int, *, rounded: bool) -> Iterator[Sample]:
        """Samples of consecutive runs, of at most `most` rows each or of one run.

        If each part is `rounded` as a whole, it lies in `UNIT_PLACES` places of the block, so that neither one record
        nor the bounds of shards change the parts of other units.
        """
        start, ends = 0, list[int]()
        for end in self.ends.tolist():
            crosses = rounded and self.places[end - 1] // UNIT_PLACES != self.places[start] // UNIT_PLACES
            if ends and (end - start > most or crosses):
                yield Sample(self.places[start : ends[-1]], np.array(ends) - start)
                start, ends = ends[-1], []
            ends.append(end)
        if ends:
            yield Sample(self.places[start:], np.array(ends) - start)


@lru_cache(maxsize=16)
def _bounds(n: int, rate: float) -> Indices:
    """The places where the runs of a block of n rows begin, and n."""
    bounds = [0]
    for unit in range(0, n, UNIT_PLACES):
        places = min(UNIT_PLACES, n - unit)
        n_runs = max(1, round(places * rate / TYPICAL_ROWS))
        bounds += [unit + places * run // n_runs for run in range(1, n_runs + 1)]
    return np.array(bounds)


def _ends(places: Indices, first: int, stop: int, start: int) -> list[int]:
    """Ends of the runs from place `first` to `stop`; `start` is the number of sampled rows before them."""
    end = int(places.searchsorted(stop))
    if end - start < SUM_ROWS:
        return [end] if end > start else []
    middle = (first + stop) // 2
    ends = _ends(places, first, middle, start)
    return ends + _ends(places, middle, stop, ends[-1] if ends else start)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`margin` of a clipped sum, the share of the clip norm for rounding errors; `dtype` of sums of `SUM_ROWS` rows."""

    margin: float
    dtype: type[np.float32] | type[np.float64]


def arithmetic(
    amplification: float = 1.0, n_entries: int = 1, n_rows: int = 1, sampling_rate: float = 1.0
) -> Arithmetic:
    """Margin and dtype of sums of `SUM_ROWS` rows, which are then added exactly.

    The margin is SUM_ROWS (SUM_ROWS + 3) u for the sums, a grid step for each entry of the gradient, or `SAMPLED_STEPS`
    in a sample (which matters above 10^8 rows), and 2^-10 for the rest: 0.2 % in total. Sums are float64 where float32
    would need a margin above `LARGEST_MARGIN`.

    In a sample, one record changes at most three runs, by half a step each. Where a part of a sample is rounded as a
    whole, it may move the ends of all parts of its `UNIT_PLACES` places. Two neighbouring parts have more than 1,024
    rows, so these are at most nine parts with the record and nine without, by half a step each.

    Args:
        amplification: largest summand, in units of the clip norm and in the geometry of the clip; public.
        n_entries: number of entries of the gradient.
        n_rows: number of rows in all processes.
        sampling_rate: 1 without sampling.
    Raises ParameterError: an amplification beyond which rounding could not be bounded.
    """
    grid = (1 if sampling_rate == 1 else SAMPLED_STEPS) * n_rows * math.sqrt(n_entries) * GRID_STEP
    margin = SMALLEST_MARGIN + amplification * (SUM_ROWS * (SUM_ROWS + 3) * FLOAT32_ROUNDING + grid)
    if margin <= LARGEST_MARGIN:
        return Arithmetic(margin, np.float32)
    # factors and residuals stay float32
    return _wide(amplification, grid, n_rows)


def unit_arithmetic(amplification: float, n_entries: int, n_units: int, *, block_units: int | None) -> Arithmetic:
    """Margin and dtype for units of people: leaving out one person changes the positions of other people's rows.

    Then all float32 sums of the cell change. A term is rounded at most SUM_ROWS times, so the error of all sums of a
    cell is at most SUM_ROWS u times the sum of the norms of its terms, which is at most `amplification` for a person.

    Args:
        amplification: largest sum of the norms of a person's clipped rows, in units of the clip norm; public.
        n_entries: number of entries of the gradient. n_units: number of people in all processes.
        block_units: people in a cell whose sums are float32; None if all sums are float64.
    Raises ParameterError: as in `arithmetic`.
    """
    grid = n_units * math.sqrt(n_entries) * GRID_STEP
    if block_units is None:
        return _wide(amplification, grid, n_units)
    rounded = 2 * (SUM_ROWS + 2) * FLOAT32_ROUNDING * block_units
    return Arithmetic(SMALLEST_MARGIN + amplification * (rounded + GRID_ROUNDINGS * grid), np.float32)


def _wide(amplification: float, grid: float, n_rows: int) -> Arithmetic:
    margin = SMALLEST_MARGIN + amplification * (2.0**-20 + grid)
    if margin > 0.5:
        raise ParameterError(
            f"gradients of {n_rows} rows are up to {amplification:.3g} times the clip norm before they are shifted or "
            f"scaled; allowed: at most {0.49 / (2.0**-20 + grid):.3g} times; raise --clip-norm"
        )
    return Arithmetic(margin, np.float64)
