"""Back ends on the host: products by BLAS, or by the C kernel if it was built, and the choice between them.

The kernel is `linprobe/native/clipped_sum.c`; `gpu.py` has products on a GPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import BLOCK_ROWS, STORED, Block, Pairs, StoredRows, aligned_empty, paired, widened
from linprobe.data.rows import BLOCK_UNITS, Rows
from linprobe.gradients.rounding import SUM_ROWS, ExactSum, Sample
from linprobe.mechanisms.noise import NoiseSource
from linprobe.native import LIBRARY, KernelPart, KernelPeople, KernelRows, address, arithmetic_name
from linprobe.parallel.array_api import Array, Indices, Mask, Reals, Singles
from linprobe.parallel.threads import n_threads

SUM_CLASSES = 128  # classes per BLAS call, so that the sum stays in cache


@dataclass(frozen=True)
class Part:
    """Products with a range of features, from `first` on."""

    first: int
    products: Products

    def scores(self, x: Array) -> Array:
        """Scores of rows x (b, all features), shape (b, n_classes of `products`)."""
        return self.products.scores(x[:, self.first : self.first + self.products.n_features])


class Products:
    """Products of rows (b, n_features) with float32 weights (n_classes, n_features), by BLAS, for a single thread."""

    def __init__(self, weights: Array) -> None:
        self._weights: Array = np.asarray(weights, np.float32)
        self.n_classes, self.n_features = self._weights.shape

    def for_thread(self) -> Products:
        """The same products with their own buffers."""
        return Products(self._weights)

    def zeros(self) -> Array:
        """The empty sum, shape (n_classes, n_features), float64, in the memory layout that `add` needs."""
        return np.zeros(self._weights.shape)

    def sample(self, mask: Array, rate: float) -> Sample:
        """The sample of a block for `add`, from its mask (b,) and the public sampling rate."""
        return Sample.of(mask, rate)

    def clip_block(
        self, total: ExactSum, block: Block, bound: float, parts: Sequence[Part] = (), *, sample: Sample | None = None
    ) -> ClippedBlock | None:
        """Score, clip and add the rows of a block in one pass; None, and nothing is added, without a kernel for it."""
        return None

    @cached_property
    def _block_sum(self) -> Array:
        """Buffer for the sum of a block, which is then rounded as a whole."""
        return self.zeros()

    def scores(self, x: Array) -> Array:
        """x W^T, shape (b, n_classes), float32, which the caller may overwrite. A range of columns is not copied."""
        self.check(x)
        return np.asarray(strided_rows(widened(x))[0] @ self._weights.T)

    def add(self, total: ExactSum, r: Array, x: Array, sample: Sample | None = None) -> None:
        """Add sum_i r_i x_i^T to `total`, for r (b, n_classes), over the rows of `sample`, or all.

        Each run of `SUM_ROWS` rows, or of `sample`, is summed in float32. Their sum is rounded to the grid of `total`.
        """
        self.check(x, r.shape == (len(x), self.n_classes) and (sample is None or sample.fits(len(x))))
        self._add(total, r, np.ascontiguousarray(widened(x), np.float32), sample)

    def _add(self, total: ExactSum, r: Singles, x: Singles, sample: Sample | None) -> None:
        self._block_sum[:] = 0
        if sample is None:
            runs: list[slice | Indices] = [slice(i, i + SUM_ROWS) for i in range(0, len(x), SUM_ROWS)]
        else:
            runs = [sample.places[run] for run in sample.runs()]
        for first in range(0, self.n_classes, SUM_CLASSES):
            classes = slice(first, first + SUM_CLASSES)
            for run in runs:
                self._block_sum[classes] += r[run, classes].T @ x[run]
        total.add(self._block_sum)

    def check(self, x: Singles | StoredRows, others_fit: bool = True) -> None:
        """Raise ValueError unless rows `x` fit the weights, and `others_fit`; the kernel does not check shapes."""
        if len(x.shape) != 2 or x.shape[1] != self.n_features or not others_fit:
            raise ValueError(
                f"rows of shape {x.shape} do not fit weights of shape {self._weights.shape}, or other arrays"
            )


def strided_rows(rows: Singles) -> tuple[Singles, int]:
    """Rows as float32, each contiguous, and the stride between rows in elements; copied only if needed."""
    rows = np.asarray(rows, np.float32)
    if rows.strides[1] != rows.itemsize or rows.strides[0] < 0 or rows.strides[0] % rows.itemsize:
        rows = np.ascontiguousarray(rows)
    return rows, rows.strides[0] // rows.itemsize


TILE = 32  # features; sums are padded to a multiple, which every vector width of the kernel divides
SPARE_ROWS = 13  # in a tile beyond the rows of a run, as in clipped_sum.c
GROUP = 32  # rows that the kernel widens together, as in clipped_sum.c
PADDING = 8  # doubles in a cache line
PANEL = 6  # classes in a panel of packed weights, as in clipped_sum.c
CHUNK = 16  # features or classes in a chunk of packed weights, as in clipped_sum.c; floats in the widest vector
FEATURES = 64  # packed together, so that their weights stay in cache


class PackedWeights:
    """Weights (n_classes, n_features), float32, packed once for all threads."""

    def __init__(self, weights: Singles) -> None:
        self.weights = np.asarray(weights, np.float32)
        self._made: dict[str, Singles] = {}

    @property
    def panels(self) -> Singles:
        """By panel, chunk of features, class and feature, padded with zeros: the order of groups."""
        return self._kept("panels", self._make_panels)

    @property
    def columns(self) -> Singles:
        """By chunk of classes, feature and class, padded with zeros: the order of runs."""
        return self._kept("columns", self._make_columns)

    def _kept(self, name: str, make: Callable[[], Singles]) -> Singles:
        """The array of the first of several threads. It lives as long as these weights, as the kernel gets its address;
        `cached_property` would keep the array of the last thread from Python 3.12 on.
        """
        return self._made[name] if name in self._made else self._made.setdefault(name, make())

    def _make_panels(self) -> Singles:
        weights, (n_classes, n_features) = self.weights, self.weights.shape
        if n_features % CHUNK:
            weights = np.zeros((n_classes, whole_multiple(n_features, CHUNK)), np.float32)
            weights[:, :n_features] = self.weights
        by_chunk = weights.reshape(n_classes, -1, CHUNK).swapaxes(0, 1)
        packed: Singles = aligned_empty((n_classes, weights.shape[1]), np.float32)
        n_panels, first = -(-n_classes // PANEL), 0
        for panel in range(n_panels):
            stop = first + n_classes // n_panels + (panel < n_classes % n_panels)
            packed[first:stop].reshape(-1, stop - first, CHUNK)[:] = by_chunk[:, first:stop]
            first = stop
        return packed.reshape(-1)

    def _make_columns(self) -> Singles:
        n_classes, n_features = self.weights.shape
        padded = whole_multiple(n_classes, CHUNK)
        columns: Singles = aligned_empty((padded // CHUNK, n_features, CHUNK), np.float32)
        some = np.zeros((FEATURES, padded), np.float32)
        chunk = np.dtype((np.void, CHUNK * some.itemsize))  # to move a chunk is faster than to move its numbers
        for first in range(0, n_features, FEATURES):
            here = slice(first, min(first + FEATURES, n_features))
            taken = some[: here.stop - first]
            taken[:, :n_classes] = self.weights[:, here].T
            columns.view(chunk)[:, here, 0] = taken.view(chunk).T
        return columns


def whole_multiple(number: int, whole: int) -> int:
    return -(-number // whole) * whole


class ClippedBlock(NamedTuple):
    """What clipping a block reads and writes."""

    y: Indices  # class indices, (b,)
    lengths: Reals  # norms of the rows, (b,)
    bound: float  # largest norm of a clipped gradient
    r_norms: Reals  # norms of the residuals, (b,)
    factors: Reals  # clip factors, (b,)
    parts: Sequence[Part]  # further products
    scores: list[Singles]  # of the parts, (b, n_classes of the part) each

    @classmethod
    def empty(cls, y: Indices, lengths: Reals, bound: float, parts: Sequence[Part] = ()) -> ClippedBlock:
        """Arrays for rows of classes y and these norms, yet to be clipped."""
        scores = [_padded(len(y), part.products.n_classes) for part in parts]
        return cls(y, lengths, bound, np.empty(len(y)), np.empty(len(y)), parts, scores)

    def arguments(self) -> tuple[int | float, ...]:
        y, lengths, r_norms, factors = (each.ctypes.data for each in (self.y, self.lengths, self.r_norms, self.factors))
        return y, lengths, self.bound, r_norms, factors


class ChosenRows(NamedTuple):
    """Some rows, as the kernel reads them, and the ends of their runs."""

    rows: StoredRows
    read: KernelRows
    clipped: ClippedBlock
    ends: Indices


@dataclass(frozen=True)
class People:
    """People and their clip factors, min(1, bound / max(norm, spread / most)); rows are (b,), people (n_units,)."""

    bounds: Indices  # rows of person u are bounds[u] to bounds[u + 1], (n_units + 1,)
    y: Indices
    norms: Reals
    weights: Reals | None
    inner: Reals  # products of the pairs of rows of each person with at most `PAIRED_ROWS` rows
    factors: Reals  # an output, as `lengths`; 0 for people whom the kernel leaves out
    lengths: Reals

    # long: a list of what the kernel does not check before it reads memory
    @classmethod
    def of(cls, block: Block, n_classes: int, cells: Indices | None = None) -> People:
        """The people of a block, checked as the kernel does not, and `cells`. ValueError, IndexError: not fitting."""
        pairs, bounds = paired(block), np.ascontiguousarray(block.bounds, np.int64)
        y, norms = np.ascontiguousarray(block.y, np.int64), np.ascontiguousarray(block.norms, np.float64)
        weights = None if block.weights is None else np.ascontiguousarray(block.weights, np.float64)
        n_rows, n_units = (len(block.stored),), len(bounds) - 1
        fit = all(each is None or each.shape == n_rows for each in (y, norms, weights))
        fit = fit and bounds[0] == 0 and bounds[-1] == n_rows[0] and bool((bounds[1:] >= bounds[:-1]).all())
        fit = fit and len(pairs.inner) == int(pairs.pair_counts.sum()) and len(pairs.pair_counts) == n_units
        if cells is not None and len(cells):
            fit = fit and cells[0] > 0 and cells[-1] == n_units and bool((cells[1:] > cells[:-1]).all())
        if not fit or (block.sampled is not None and block.sampled.shape != (n_units,)):
            raise ValueError(f"{n_units} people with bounds {bounds[0]} to {bounds[-1]} do not fit {n_rows[0]} rows")
        if n_rows[0] and not 0 <= y.min() <= y.max() < n_classes:
            raise IndexError(f"classes are from {y.min()} to {y.max()}; allowed: 0 to {n_classes - 1}")
        return cls(bounds, y, norms, weights, pairs.inner, np.zeros(n_units), np.zeros(n_units))

    def few(self, pairs: Pairs) -> People:
        """The same people without the rows of those with more than `PAIRED_ROWS`, and the same outputs."""
        places, bounds = pairs.places, np.concatenate([[0], np.cumsum(pairs.counts)])
        weights = None if self.weights is None else self.weights[places]
        return replace(self, bounds=bounds, y=self.y[places], norms=self.norms[places], weights=weights)

    def for_kernel(
        self, bound: float, most: float, joined: Mask | None = None, ends: Indices | None = None
    ) -> KernelPeople:
        """The kernel's argument for people in the mask `joined`, or all, in cells up to `ends`: addresses of arrays."""
        ends = None if ends is None or not len(ends) else ends
        arrays = (self.bounds, ends, self.y, self.norms, self.weights, self.inner, joined, self.factors, self.lengths)
        return KernelPeople(*map(address, arrays), bound, most, len(self.factors))


def _rows_of(sampled: Mask, bounds: Indices, cells: Indices | None) -> Sample:
    """The rows of sampled people, in runs of `SUM_ROWS` rows that cross no cell."""
    sizes = np.diff(bounds)
    joined = np.concatenate([[0], np.cumsum(sizes * sampled)])
    ends = [joined[-1]] if cells is None else joined[cells].tolist()
    runs = [range(first + SUM_ROWS, stop, SUM_ROWS) for first, stop in pairwise([0, *ends])]
    run_ends = sorted({*chain(*runs), *ends} - {0})
    return Sample(np.flatnonzero(np.repeat(sampled, sizes)), np.array(run_ends, np.int64))


class KernelProducts(Products):
    """Any number of classes: the kernel scores, clips and sums a run of rows at a time, in one call."""

    by_groups = False

    def __init__(self, packed: PackedWeights, library: ctypes.CDLL) -> None:
        super().__init__(packed.weights)
        self._packed, self._library = packed, library
        self._whole_tiles = whole_multiple(self.n_features, TILE)
        self._stride = self._whole_tiles + PADDING  # doubles from one row of a sum to the next

    def for_thread(self) -> KernelProducts:
        self._order()  # before the threads start
        return type(self)(self._packed, self._library)

    def _order(self) -> Singles:
        """The weights in the order of a pass."""
        return self._packed.columns

    def zeros(self) -> Reals:
        """The empty sum, shape (n_classes, n_features).

        Rows are padded to whole tiles, so that the kernel needs no code for the end of a row. The stride is an odd
        number of cache lines, so that the same columns of different rows map to different cache sets.
        """
        total: Reals = aligned_empty((self.n_classes, self._stride), np.float64)
        total[:] = 0
        return total[:, : self.n_features]

    @cached_property
    def _room(self) -> Singles:
        """Buffer for a run of rows and their residuals, and for the rows and residuals of a sample."""
        tiles = (SUM_ROWS + SPARE_ROWS) * self._whole_tiles
        residuals = SUM_ROWS * whole_multiple(self.n_classes, CHUNK)
        room: Singles = aligned_empty((2 * tiles + self._whole_tiles + 3 * residuals,), np.float32)
        room[:] = 0
        return room

    @cached_property
    def _group_room(self) -> Singles:
        """Buffer for a group of widened rows, for sums, which are zero between calls, and for residuals of a group."""
        widened_rows, residuals = GROUP * self.n_features, GROUP * whole_multiple(self.n_classes, CHUNK)
        room: Singles = aligned_empty((widened_rows + self.n_classes * self._whole_tiles + residuals,), np.float32)
        room[widened_rows:] = 0
        return room

    def _add(self, total: ExactSum, r: Singles, x: Singles, sample: Sample | None) -> None:
        """Round the sum of each run to the grid; with `Scale`, whose grid differs by entry, the sum of each block."""
        if isinstance(total.shift, float):
            self._sum(total.total, total.shift, r, x, sample)
            return
        self._block_sum[:] = 0
        self._sum(self._block_sum, 0.0, r, x, sample)
        total.add(self._block_sum)

    def _sum(self, total: Reals, shift: float, r: Singles, x: Singles, sample: Sample | None) -> None:
        r, stride = strided_rows(r)
        chosen = (None, None) if sample is None else (sample.places.ctypes.data, sample.ends.ctypes.data)
        n_rows = len(x) if sample is None else len(sample.places)
        buffers = (self._address(total), self._room.ctypes.data)
        shape = (n_rows, self.n_features, self.n_classes, stride, self._stride)
        self._library.linprobe_sum(x.ctypes.data, r.ctypes.data, *chosen, *buffers, *shape, shift)

    def scores(self, x: NDArray[Any]) -> Singles:
        """As of all products, in rows padded to whole vectors of the kernel."""
        self.check(x)
        scores = _padded(len(x), self.n_classes)
        self._score(_storable(StoredRows(x)), [self.part(0, scores)])
        return scores

    def clip_block(
        self, total: ExactSum, block: Block, bound: float, parts: Sequence[Part] = (), *, sample: Sample | None = None
    ) -> ClippedBlock:
        """Add sum_i c_i r_i x_i^T to `total`, for softmax residuals r_i and c_i = min(1, bound / (length_i ||r_i||)).

        The scores and the factor of a row, and what the row adds, have the same bits at any position and beside any
        other rows. All rows are scored and clipped, also those outside `sample`. ValueError, IndexError: not fitting.
        """
        inside = all(0 <= part.first <= self.n_features - part.products.n_features for part in parts)
        rows, y, lengths = self._checked(block, sample, inside)
        clipped = ClippedBlock.empty(y, lengths, bound, parts)
        some, ends = (None, None) if sample is None else (sample.places, sample.ends)
        self._pass(total, rows.for_kernel(), clipped, self._parts(rows, clipped), some, ends)
        return clipped

    def chosen(self, block: Block, bound: float, sample: Sample) -> ChosenRows:
        """The rows of `sample`, for `add_chosen` of any such products; no other is read. Else as `clip_block`."""
        rows, y, lengths = self._checked(block, sample)
        rows = StoredRows(rows.x, sample.places, rows.translation)
        clipped = ClippedBlock.empty(y[sample.places], lengths[sample.places], bound)
        return ChosenRows(rows, rows.for_kernel(), clipped, sample.ends)

    def add_chosen(self, total: ExactSum, chosen: ChosenRows) -> None:
        """Add the clipped gradients of `chosen` rows to `total`. What is added of a row depends on no other row."""
        self._pass(total, chosen.read, chosen.clipped, ends=chosen.ends)

    def _checked(
        self, block: Block, sample: Sample | None, others_fit: bool = True
    ) -> tuple[StoredRows, Indices, Reals]:
        """Rows, classes and norms as the kernel reads them. Raises ValueError: shapes that do not fit."""
        rows, y, lengths = block.rows, block.y, block.norms
        fit = y.shape == lengths.shape == rows.shape[:1] and y.dtype.kind in "iu"
        self.check(rows, others_fit and fit and (sample is None or sample.fits(len(y))))
        return _storable(rows), np.ascontiguousarray(y, np.int64), np.ascontiguousarray(lengths, np.float64)

    def _pass(
        self,
        total: ExactSum,
        rows: KernelRows,
        clipped: ClippedBlock,
        parts: Sequence[KernelPart] = (),
        summed: Indices | None = None,
        ends: Indices | None = None,
    ) -> None:
        """Score and clip the rows, and sum them, or those at places `summed`, in runs that end at `ends`.

        The scores and factor of a row depend on no other row.
        """
        if len(clipped.y) and not 0 <= clipped.y.min() <= clipped.y.max() < self.n_classes:
            raise IndexError(
                f"classes are from {clipped.y.min()} to {clipped.y.max()}; allowed: 0 to {self.n_classes - 1}"
            )
        if not isinstance(total.shift, float):
            raise ValueError("the clipped sums of the kernel do not fit a sum with a shift for each entry")
        clip_and_sum, room = self._way()
        given = ctypes.byref(rows), room.ctypes.data, self._order().ctypes.data, *clipped.arguments()
        runs = address(summed), 0 if summed is None else len(summed), address(ends)
        shape, more = (self.n_classes, self._stride, total.shift), ((KernelPart * len(parts))(*parts), len(parts))
        clip_and_sum(*given, self._address(total.total), len(clipped.y), *runs, *shape, *more)

    def _way(self) -> tuple[Any, Singles]:
        """The function of a pass, and its buffer."""
        return self._library.linprobe_clipped_runs, self._room

    def _parts(self, rows: StoredRows, clipped: ClippedBlock) -> list[KernelPart]:
        """The parts whose scores a pass computes. Parts with many classes take a pass by runs, which comes first."""
        parts, in_runs = [], []
        for part, out in zip(clipped.parts, clipped.scores, strict=True):
            if isinstance(part.products, type(self)):
                parts.append(part.products.part(part.first, out, by_groups=self.by_groups))
            elif isinstance(part.products, KernelProducts):
                in_runs.append(part.products.part(part.first, out))
            else:
                out[:] = part.scores(rows.wide())
        if in_runs:
            self._score(rows, in_runs)
        return parts

    def _score(self, rows: StoredRows, parts: list[KernelPart]) -> None:
        """Compute the scores of parts, which `part` made, and nothing else."""
        nothing = ClippedBlock.empty(np.empty(0, np.int64), np.empty(0), 0.0).arguments()
        nowhere, shape = (None, rows.shape[0], None, 0, None), (self.n_classes, self._stride, 0.0)
        given = (KernelPart * len(parts))(*parts), len(parts)
        read = ctypes.byref(rows.for_kernel())
        self._library.linprobe_clipped_runs(read, self._room.ctypes.data, None, *nothing, *nowhere, *shape, *given)

    def part(self, first: int, scores: Singles, *, by_groups: bool = False) -> KernelPart:
        """The argument of a pass: write `scores`, which `_padded` made, of features from `first` on."""
        packed = self._packed.panels if by_groups else self._packed.columns
        return KernelPart(
            packed.ctypes.data, scores.ctypes.data, first, self.n_features, _stride(scores), self.n_classes
        )

    def add_units(
        self, total: ExactSum, block: Block, bound: float, most: float, cells: Indices | None = None
    ) -> tuple[Reals, Reals]:
        """Add sum_u c_u S_u over the people of a block, or of its sample, to `total`.

        S_u is the sum of x_j r_j^T over the rows of person u, for softmax residuals times the weights of rows. Its
        factor is c_u = min(1, bound / max(||S_u||, sum_j ||x_j|| ||r_j|| / most)). What is added of a person depends on
        nobody else, up to the rounding of float32 sums of at most `SUM_ROWS` rows. No such sum crosses `cells`, places
        of people, the last n_units; with them, rows outside the sample are not read.

        For people with more than `PAIRED_ROWS` rows, S_u is formed and rounded alone, and c_u min(1, bound / ||S_u||).

        Returns: c_u and ||S_u||, (n_units,).
        """
        block = block if cells is None else block.compact()
        pairs = paired(block)
        people, stored = People.of(replace(block, pairs=pairs), self.n_classes), block.stored
        if pairs.places is not None:
            self._over_people(self._library.linprobe_formed, total, block, people, bound, most, cells)
            people, stored = people.few(pairs), stored[pairs.places]
        x = np.ascontiguousarray(widened(stored), np.float32)
        r = self.scores(x)
        given = ctypes.byref(people.for_kernel(bound, most))
        self._library.linprobe_clip_people(r.ctypes.data, _stride(r), given, self.n_classes)
        self._add(total, r, x, None if block.sampled is None else _rows_of(block.sampled, people.bounds, cells))
        return people.factors, people.lengths

    def _over_people(
        self, entry: Callable[..., None], total: ExactSum, block: Block, people: People, *clip: Any
    ) -> None:
        """Score, clip and sum the people of a block by an entry point; `clip` ends the arguments of `add_units`."""
        self.check(block.rows)
        (bound, most, cells), rows, joined = clip, _storable(block.rows), block.sampled
        given = ctypes.byref(rows.for_kernel()), self._group_room.ctypes.data, self._packed.panels.ctypes.data
        if joined is not None and cells is None:
            everyone = ctypes.byref(people.for_kernel(bound, most))
            entry(*given, everyone, None, self.n_classes, self._stride, 0.0)
        some = ctypes.byref(people.for_kernel(bound, most, joined, cells))
        entry(*given, some, self._address(total.total), self.n_classes, self._stride, total.shift)

    def _address(self, total: Reals) -> int:
        """Address of a sum that `zeros` made. Raises ValueError: any other array; the kernel would write outside it."""
        row_bytes = self._stride * total.itemsize
        made_here = total.shape == self._weights.shape and total.dtype == np.float64 and total.strides == (row_bytes, 8)
        memory = total if total.base is None else total.base
        left = memory.ctypes.data + memory.nbytes - total.ctypes.data
        if not made_here or left < row_bytes * self.n_classes:
            raise ValueError("a sum that does not begin with zeros() of these products")
        return int(total.ctypes.data)


class FusedProducts(KernelProducts):
    """Few classes: the kernel takes a group of rows at a time, where they are, which saves a copy."""

    by_groups = True

    def _order(self) -> Singles:
        return self._packed.panels

    def scores(self, x: NDArray[Any]) -> Singles:
        self.check(x)
        x, stride = strided_rows(widened(x))
        scores = np.empty((len(x), self.n_classes), np.float32)
        arrays = x.ctypes.data, self._packed.panels.ctypes.data, scores.ctypes.data
        self._library.linprobe_scores(*arrays, *x.shape, self.n_classes, stride)
        return scores

    def add_units(
        self, total: ExactSum, block: Block, bound: float, most: float, cells: Indices | None = None
    ) -> tuple[Reals, Reals]:
        """As of products by runs, in one pass over all people, and one over the sample."""
        people = People.of(block, self.n_classes, cells)
        for entry in (self._library.linprobe_people, self._library.linprobe_formed):
            self._over_people(entry, total, block, people, bound, most, cells)
        return people.factors, people.lengths

    def _way(self) -> tuple[Any, Singles]:
        return self._library.linprobe_clipped_sum, self._group_room


def _storable(rows: StoredRows) -> StoredRows:
    """The same rows, contiguous and of a storage type."""
    stored = rows.x.dtype in STORED
    if stored and rows.x.flags.c_contiguous:
        return rows
    return replace(rows, x=np.ascontiguousarray(rows.x, None if stored else np.float32))


def _padded(n: int, n_classes: int) -> Singles:
    """Uninitialised scores (n, n_classes), with rows padded to whole chunks."""
    scores: Singles = aligned_empty((n, whole_multiple(n_classes, CHUNK)), np.float32)
    return scores[:, :n_classes]


def _stride(scores: Singles) -> int:
    """Floats from one row of `scores` to the next."""
    return scores.strides[0] // scores.itemsize


FEW_CLASSES = 32  # with more classes, runs are as fast as groups; at most MOST of clipped_sum.c
WORK_PER_THREAD = 1 << 23  # least number of multiplications
ARITHMETIC = "numpy" if LIBRARY is None else "kernel"


def products(weights: Singles) -> Products:
    """Products with `weights` (n_classes, n_features).

    The kernel scores, clips and sums in one pass over the rows. Without it, BLAS computes all products. The results
    differ by rounding only.
    """
    if LIBRARY is None or not len(weights):
        return Products(weights)
    kernel = FusedProducts if len(weights) <= FEW_CLASSES else KernelProducts
    return kernel(PackedWeights(weights), LIBRARY)


class Backend:
    """Where training keeps rows, weights and noise, and computes with them: here, the memory of this process."""

    def put(self, array: NDArray[Any]) -> Array:
        """`array` on this backend: itself on the host, a copy on a GPU."""
        return array

    def zeros(self, *shape: int) -> Array:
        return np.zeros(shape)

    @property
    def arithmetic(self) -> str:
        """What computes; bits of sums depend on it."""
        return arithmetic_name()

    def place(self, rows: Rows) -> Rows:
        """`rows` on this backend. Raises UsageError: rows that this backend does not support."""
        return rows

    def noise(self, insecure_seed: int | None = None) -> NoiseSource:
        """A source whose noise is generated on this backend."""
        return NoiseSource(insecure_seed)

    def products(self, weights: Array) -> Products:
        """Products with `weights` (n_classes, n_features), float32, for one thread."""
        return products(weights)

    def n_threads(self, rows: Rows, weights: Array) -> int:
        """Threads for a pass over `rows`: one per block or per `WORK_PER_THREAD` multiplications, the fewer of both."""
        n_rows = round(rows.n_local * rows.unit_rows)
        n_blocks = -(-rows.n_local // BLOCK_UNITS) if rows.units else -(-n_rows // BLOCK_ROWS)
        most = min(n_blocks, math.prod(map(int, weights.shape)) * n_rows // WORK_PER_THREAD)
        return 1 if most < 2 else min(n_threads(), most)


HOST = Backend()
