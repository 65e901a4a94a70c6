"""Products by the C kernel, `linprobe/native/clipped_sum.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block
from linprobe.data.precision import STORED, StoredRows, aligned_empty, widened
from linprobe.data.unit_rows import paired
from linprobe.gradients.backend import ClippedBlock, Part
from linprobe.gradients.blas import NumpyProducts, strided_rows
from linprobe.gradients.kernel_people import People
from linprobe.gradients.rounding import SUM_ROWS, ExactSum, Sample
from linprobe.native import KernelPart, KernelPeople
from linprobe.parallel.threads import blas_held_to_one_thread

SCORED_ROWS = 8 * SUM_ROWS  # rows per BLAS call; with fewer, BLAS copies the weights too often
PANEL = 6  # classes in a panel of packed weights, as in clipped_sum.c
CHUNK = 16  # features in a chunk of packed weights, as in clipped_sum.c
TILE = 32  # features; sums are padded to a multiple, which every vector width of the kernel divides
LANES = 16  # floats in the widest vector of the kernel
GROUP = 32  # rows that the kernel widens together, as in clipped_sum.c
PADDING = 8  # doubles in a cache line
PLACES = SUM_ROWS  # rows of a BLAS call whose scores must not depend on the place of a row


class _Clipped(NamedTuple):
    """Arrays that clipping reads and writes, of shape (b,), and the further parts with their scores."""

    y: NDArray[np.int64]
    lengths: NDArray[np.float64]
    bound: float
    r_norms: NDArray[np.float64]
    factors: NDArray[np.float64]
    parts: Sequence[Part]
    scores: list[NDArray[np.float32]]

    @classmethod
    def empty(
        cls, y: NDArray[np.int64], lengths: NDArray[np.float64], bound: float, parts: Sequence[Part] = ()
    ) -> _Clipped:
        """Arrays for rows of classes y and these norms, yet to be clipped."""
        scores = [np.empty((len(y), part.products.n_classes), np.float32) for part in parts]
        return cls(y, lengths, bound, np.empty(len(y)), np.empty(len(y)), parts, scores)

    def arguments(self, rows: slice = slice(None)) -> tuple[int | float, ...]:
        """The kernel's arguments for `rows`."""
        addresses = (array[rows].ctypes.data for array in (self.y, self.lengths, self.r_norms, self.factors))
        y, lengths, r_norms, factors = addresses
        return y, lengths, self.bound, r_norms, factors


class KernelProducts(NumpyProducts):
    """Many classes: BLAS scores, the kernel clips and sums."""

    _widened_at_once = SCORED_ROWS

    def __init__(self, weights: NDArray[np.float32], library: ctypes.CDLL) -> None:
        super().__init__(weights)
        self._library = library
        self._whole_tiles = -(-self.n_features // TILE) * TILE
        self._stride = self._whole_tiles + PADDING  # doubles from one row of a sum to the next

    def zeros(self) -> NDArray[np.float64]:
        """The empty sum, shape (n_classes, n_features).

        Rows are padded to whole tiles, so that the kernel needs no code for the end of a row. The stride is an odd
        number of cache lines, so that the same columns of different rows map to different cache sets.
        """
        total: NDArray[np.float64] = aligned_empty((self.n_classes, self._stride), np.float64)
        total[:] = 0
        return total[:, : self.n_features]

    @cached_property
    def _packed_rows(self) -> NDArray[np.float32]:
        """Buffer for a run of rows and their residuals, in the kernel's order."""
        return aligned_empty(((SUM_ROWS + 1) * self._whole_tiles + SUM_ROWS * self.n_classes,), np.float32)

    @cached_property
    def _wide(self) -> NDArray[np.float32]:
        """Buffer for widened rows."""
        return aligned_empty((self._widened_at_once, self.n_features), np.float32)

    @cached_property
    def _scored(self) -> NDArray[np.float32]:
        """Buffer for scores; rows are padded to whole vectors of the kernel."""
        return aligned_empty((SCORED_ROWS, -(-self.n_classes // LANES) * LANES), np.float32)

    def _add(
        self,
        total: ExactSum,
        r: NDArray[np.float32],
        x: NDArray[np.float32],
        sample: Sample | None,
    ) -> None:
        """Round the sum of each run to the grid; with `Scale`, whose grid differs by entry, that of each block."""
        if isinstance(total.shift, float):
            self._sum(total.total, total.shift, r, x, sample)
            return
        self._block_sum[:] = 0
        self._sum(self._block_sum, 0.0, r, x, sample)
        total.add(self._block_sum)

    def _sum(
        self,
        total: NDArray[np.float64],
        shift: float,
        r: NDArray[np.float32],
        x: NDArray[np.float32],
        sample: Sample | None,
    ) -> None:
        r, stride = strided_rows(r)
        chosen = (None, None) if sample is None else (sample.places.ctypes.data, sample.ends.ctypes.data)
        n_rows = len(x) if sample is None else len(sample.places)
        buffers = (self._address(total), self._packed_rows.ctypes.data)
        shape = (n_rows, self.n_features, self.n_classes, stride, self._stride)
        self._library.linprobe_sum(x.ctypes.data, r.ctypes.data, *chosen, *buffers, *shape, shift)

    @cached_property
    def _packed(self) -> NDArray[np.float32]:
        """Weights in the kernel's order, by panel, chunk, class and feature, padded with zeros."""
        weights = self._weights
        if self.n_features % CHUNK:
            weights = np.pad(weights, ((0, 0), (0, -self.n_features % CHUNK)))
        panels = np.array_split(weights.reshape(self.n_classes, -1, CHUNK), -(-self.n_classes // PANEL))
        packed: NDArray[np.float32] = aligned_empty((weights.size,), np.float32)
        first = 0
        for panel in panels:
            classes, chunks, _ = panel.shape
            packed[first : first + panel.size].reshape(chunks, classes, CHUNK)[:] = panel.swapaxes(0, 1)
            first += panel.size
        return packed

    def row_scores(self, x: NDArray[Any], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """As in `linprobe.gradients.backend.ClippingProducts`; in `out` (b, n_classes) if given."""
        self.check(x)
        x, stride = strided_rows(widened(x))
        scores = np.empty((len(x), self.n_classes), np.float32) if out is None else out
        buffers = (self._packed.ctypes.data, scores.ctypes.data, scores.strides[0] // scores.itemsize)
        self._library.linprobe_scores(x.ctypes.data, *buffers, *x.shape, self.n_classes, stride)
        return scores

    def add_clipped(
        self,
        total: ExactSum,
        x: NDArray[Any] | StoredRows,
        y: NDArray[np.int64],
        lengths: NDArray[np.float64],
        bound: float,
        parts: Sequence[Part] = (),
        *,
        sample: Sample | None = None,
        observed: bool = True,
    ) -> ClippedBlock:
        """As in `linprobe.gradients.backend.ClippingProducts`."""
        rows = StoredRows(x) if isinstance(x, np.ndarray) else x
        y, lengths = np.asarray(y), np.ascontiguousarray(lengths, np.float64)
        inside = all(0 <= part.first <= self.n_features - part.products.n_features for part in parts)
        fit = y.shape == lengths.shape == rows.shape[:1] and y.dtype.kind in "iu" and isinstance(total.shift, float)
        if sample is not None:
            fit = fit and sample.fits(len(y)) and (len(y) <= SCORED_ROWS or not observed)
        self.check(rows, fit and inside)
        rows = _storable(rows)
        y = np.ascontiguousarray(y, np.int64)
        clipped = _Clipped.empty(y, lengths, bound, parts)
        if observed or sample is None:
            self._check_classes(y)
            self._add_clipped(total, rows, clipped, sample)
            return ClippedBlock(clipped.r_norms, clipped.factors, clipped.scores)
        if len(sample.places):
            self._check_classes(y[sample.places])
            chosen = _Clipped.empty(y[sample.places], lengths[sample.places], bound)
            self._add_sample(total, replace(rows, places=sample.places), chosen, sample)
        return ClippedBlock(np.empty(0), np.empty(0), [])

    def _check_classes(self, y: NDArray[np.int64]) -> None:
        if len(y) and not 0 <= y.min() <= y.max() < self.n_classes:
            raise IndexError(f"classes are from {y.min()} to {y.max()}; allowed: 0 to {self.n_classes - 1}")

    def _add_clipped(self, total: ExactSum, rows: StoredRows, clipped: _Clipped, sample: Sample | None) -> None:
        """`add_clipped` with all rows observed, after the shapes have been checked."""
        for start in range(0, len(clipped.y), SCORED_ROWS):
            here = slice(start, start + SCORED_ROWS)
            of_block = replace(rows, x=rows.x[here])
            wide = of_block.wide(self._wide[: of_block.shape[0]])
            r = np.matmul(wide, self._weights.T, out=self._scored[: len(wide), : self.n_classes])
            self._clip(r, clipped, here)
            self._add(total, r, wide, sample)
            for part, out in zip(clipped.parts, clipped.scores, strict=True):
                out[here] = part.scores(wide)

    def _clip(self, r: NDArray[np.float32], clipped: _Clipped, here: slice) -> None:
        """Replace scores in `_scored` by clipped residuals."""
        self._library.linprobe_clip(r.ctypes.data, self._scored.shape[1], *clipped.arguments(here), *r.shape)

    def _add_sample(self, total: ExactSum, rows: StoredRows, clipped: _Clipped, sample: Sample) -> None:
        """Add the rows of a sample, and nothing else, a run at a time; a row's scores depend on no other row."""
        for run in sample.runs():
            of_run = replace(rows, places=sample.places[run])
            wide = of_run.wide(self._wide[: of_run.shape[0]])
            r = self.row_scores(wide, self._scored[: len(wide), : self.n_classes])
            self._clip(r, clipped, run)
            self._add(total, r, wide, None)

    @property
    def placeless(self) -> bool:
        """Whether BLAS gives a row the same scores at every place of a call of `PLACES` rows."""
        return _placeless(self.n_classes, self.n_features)

    def add_units(
        self,
        total: ExactSum,
        block: Block,
        bound: float,
        most: float,
        cells: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As in `linprobe.gradients.backend.PlacelessProducts`: BLAS scores, the kernel clips each person and sums."""
        few = block if cells is None else block.compact()
        pairs = paired(few)
        if pairs.places is not None:
            weights = None if few.weights is None else few.weights[pairs.places]
            stored, y, norms = (each[pairs.places] for each in (few.stored, few.y, few.norms))
            bounds = np.concatenate([[0], np.cumsum(pairs.counts)])
            few = replace(few, stored=stored, y=y, norms=norms, weights=weights, bounds=bounds)
        few = replace(few, pairs=pairs)
        x, people = np.ascontiguousarray(widened(few.stored), np.float32), People.of(few, self.n_classes)
        self.check(x)
        r = _scores_in_place(x, self._weights)
        given = ctypes.byref(people.for_kernel(bound, most))
        self._library.linprobe_clip_people(r.ctypes.data, r.strides[0] // r.itemsize, given, self.n_classes)
        self._add(total, r, x, None if few.sampled is None else _rows_of(few.sampled, people.bounds, cells))
        return people.factors, people.lengths

    def _address(self, total: NDArray[np.float64]) -> int:
        """Address of a sum that `zeros` made.

        Raises:
            ValueError: any other array; the kernel would write outside it.
        """
        row_bytes = self._stride * total.itemsize
        made_here = total.shape == self._weights.shape and total.dtype == np.float64 and total.strides == (row_bytes, 8)
        memory = total if total.base is None else total.base
        left = memory.ctypes.data + memory.nbytes - total.ctypes.data
        if not made_here or left < row_bytes * self.n_classes:
            raise ValueError("a sum that does not begin with zeros() of these products")
        return int(total.ctypes.data)


class FusedProducts(KernelProducts):
    """Few classes: the kernel scores, clips and sums in one pass over the rows."""

    _widened_at_once = GROUP

    @cached_property
    def _sums(self) -> NDArray[np.float32]:
        """Buffer for sums of a run of rows; zero between calls."""
        return np.zeros((self.n_classes, self._whole_tiles), np.float32)

    def scores(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """x W^T, shape (b, n_classes), float32. Does not copy x if it is a range of columns."""
        return self.row_scores(x)

    @property
    def placeless(self) -> bool:
        """Always: the kernel sums the products of a row in one order, whatever the place of the row."""
        return True

    def add_units(
        self,
        total: ExactSum,
        block: Block,
        bound: float,
        most: float,
        cells: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As in `linprobe.gradients.backend.PlacelessProducts`: one pass over all people, and one over the sample."""
        people, joined = People.of(block, self.n_classes, cells), block.sampled
        self.check(block.rows)
        rows = _storable(block.rows)
        if joined is not None and cells is None:
            self._people_pass(None, rows, people.for_kernel(bound, most))
        self._people_pass(total, rows, people.for_kernel(bound, most, joined, cells))
        return people.factors, people.lengths

    def _people_pass(self, total: ExactSum | None, rows: StoredRows, people: KernelPeople) -> None:
        """Score, clip and sum the rows of people; without `total`, score and clip only."""
        self._library.linprobe_people(
            ctypes.byref(rows.for_kernel()),
            self._wide.ctypes.data,
            self._packed.ctypes.data,
            ctypes.byref(people),
            None if total is None else self._address(total.total),
            self._sums.ctypes.data,
            self.n_classes,
            self._stride,
            0.0 if total is None else total.shift,
        )

    def kernel_part(self, first: int, scores: NDArray[np.float32]) -> KernelPart:
        """The kernel's argument for writing `scores` of the features from `first` on."""
        return KernelPart(self._packed.ctypes.data, scores.ctypes.data, first, self.n_features, self.n_classes)

    def _add_clipped(self, total: ExactSum, rows: StoredRows, clipped: _Clipped, sample: Sample | None) -> None:
        """One pass of the kernel, and one more over `sample`. Parts with many classes are scored by BLAS."""
        in_pass = []
        for part, out in zip(clipped.parts, clipped.scores, strict=True):
            if isinstance(part.products, FusedProducts):
                in_pass.append(part.products.kernel_part(part.first, out))
            else:
                out[:] = part.scores(rows.wide())
        self._pass(total if sample is None else None, rows, clipped, in_pass, None)
        if sample is not None:
            chosen = _Clipped.empty(clipped.y[sample.places], clipped.lengths[sample.places], clipped.bound)
            self._add_sample(total, replace(rows, places=sample.places), chosen, sample)

    def _add_sample(self, total: ExactSum, rows: StoredRows, clipped: _Clipped, sample: Sample) -> None:
        """One pass of the kernel over the rows of a sample."""
        self._pass(total, rows, clipped, [], sample.ends)

    def _pass(
        self,
        total: ExactSum | None,
        rows: StoredRows,
        clipped: _Clipped,
        parts: list[KernelPart],
        ends: NDArray[np.int64] | None,
    ) -> None:
        """Score, clip and sum the rows in runs that end at `ends`; without `total`, score and clip only."""
        self._library.linprobe_clipped_sum(
            ctypes.byref(rows.for_kernel()),
            self._wide.ctypes.data,
            self._packed.ctypes.data,
            *clipped.arguments(),
            None if total is None else self._address(total.total),
            self._sums.ctypes.data,
            len(clipped.y),
            None if ends is None else ends.ctypes.data,
            self.n_classes,
            self._stride,
            0.0 if total is None else total.shift,
            (KernelPart * len(parts))(*parts),
            len(parts),
        )


def _rows_of(sampled: NDArray[np.bool_], bounds: NDArray[np.int64], cells: NDArray[np.int64] | None) -> Sample:
    """The rows of sampled people, in runs of `SUM_ROWS` rows that cross no cell."""
    sizes = np.diff(bounds)
    joined = np.concatenate([[0], np.cumsum(sizes * sampled)])
    ends = [joined[-1]] if cells is None else joined[cells].tolist()
    runs = [range(first + SUM_ROWS, stop, SUM_ROWS) for first, stop in pairwise([0, *ends])]
    found = sorted({*chain(*runs), *ends} - {0})
    return Sample(np.flatnonzero(np.repeat(sampled, sizes)), np.array(found, np.int64))


def _storable(rows: StoredRows) -> StoredRows:
    """The same rows, contiguous and of a storage type."""
    return replace(rows, x=np.ascontiguousarray(rows.x, None if rows.x.dtype in STORED else np.float32))


def _scores_in_place(x: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores of rows x (b, n_features), shape (b, n_classes), padded to whole vectors of the kernel.

    All calls of BLAS have `PLACES` rows; the last is filled up.
    """
    whole, n, n_classes = len(x) // PLACES * PLACES, -(-len(x) // PLACES) * PLACES, len(weights)
    scores: NDArray[np.float32] = aligned_empty((n, -(-n_classes // LANES) * LANES), np.float32)[:, :n_classes]
    for start in range(0, whole, PLACES):
        np.matmul(x[start : start + PLACES], weights.T, out=scores[start : start + PLACES])
    if whole < n:
        filled = np.zeros((PLACES, x.shape[1]), np.float32)
        filled[: len(x) - whole] = x[whole:]
        np.matmul(filled, weights.T, out=scores[whole:])
    return scores[: len(x)]


@lru_cache(maxsize=64)
def _placeless(n_classes: int, n_features: int) -> bool:
    """`KernelProducts.placeless`.

    The order of operations at a place depends on shapes, not on numbers. So a pair of calls decides, in which random
    rows move by one place: other orders would not agree in all of these sums.
    """
    g = np.random.default_rng(0)
    rows, weights = (g.standard_normal((n, n_features), np.float32) for n in (PLACES + 1, n_classes))
    with blas_held_to_one_thread():
        first, moved = (_scores_in_place(rows[start : start + PLACES], weights) for start in (0, 1))
    return bool(np.array_equal(first[1:], moved[:-1]))
