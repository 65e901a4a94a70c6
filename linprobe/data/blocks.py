"""How rows are stored, and blocks of them, which a back end clips and sums.

A unit is what is protected: a row, or all rows of one person. Where people are protected, a block holds whole people,
and numbers and places of units are of people.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from linprobe.data.owners import Bounds
from linprobe.errors import UsageError
from linprobe.native import LIBRARY, KernelPeople, KernelRows, address
from linprobe.options import Precision as Precision
from linprobe.parallel.array_api import Array, double, namespace

CACHE_LINE = 64  # bytes
STORAGE: dict[Precision, type[np.generic]] = {
    "float32": np.float32,
    "bfloat16": np.uint16,  # its bits: NumPy has no bfloat16
    "float16": np.float16,
}
STORED = tuple(np.dtype(stored) for stored in STORAGE.values())  # in the order of `enum stored` in native/clipped_sum.c
PAIRED_ROWS = 16  # people with more rows have no inner products of pairs; PAIRED in native/clipped_sum.c
PAIRS_AT_ONCE = 1024


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An uninitialised array aligned to a cache line, so that no SIMD vector crosses two lines."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def narrowed(x: NDArray[np.float32], precision: Precision) -> NDArray[Any]:
    """`x` rounded to `precision`, to nearest, ties to even; bfloat16 as its bits in uint16.

    Raises:
        UsageError: an unknown precision, or a number out of its range.
    """
    if precision not in STORAGE:
        raise UsageError(f"precision is {precision!r}; allowed: {', '.join(STORAGE)}")
    if precision == "float32":
        return x
    if precision == "float16":
        half = halved(x)
        bits, infinity, largest = half.view(np.uint16), 0x7C00, 65504.0
    else:
        rounded = x.view(np.uint32) >> 16
        rounded &= 1
        rounded += x.view(np.uint32)
        rounded += 0x7FFF
        rounded >>= 16
        bits, infinity, largest = rounded.astype(np.uint16), 0x7F80, 3.38e38
    if (bits & 0x7FFF).max(initial=0) >= infinity:
        raise UsageError(
            f"a row holds a number of size {np.abs(x).max():.3g}, which {precision} does not; allowed: at most "
            f"{largest:g}; use precision float32"
        )
    return half if precision == "float16" else bits


def halved(x: NDArray[np.floating]) -> NDArray[np.float16]:
    """`x` rounded to float16, to nearest, ties to even, beyond its range to an infinity: a contiguous copy."""
    if LIBRARY is None or x.dtype != np.float32:
        with np.errstate(over="ignore", under="ignore"):
            return x.astype(np.float16, order="C")
    x, half = np.ascontiguousarray(x), np.empty(x.shape, np.float16)
    LIBRARY.linprobe_halve(x.ctypes.data, half.ctypes.data, x.size)
    return half


def widened(x: NDArray[Any], out: NDArray[np.float32] | None = None) -> NDArray[Any]:
    """`x` converted from float16, or from the bits of bfloat16 in uint16, to float32, in `out` if given; else `x`."""
    if x.dtype not in STORED[1:]:
        return x
    wide: NDArray[np.float32] = aligned_empty(x.shape, np.float32) if out is None else out
    if LIBRARY is not None:
        x = np.ascontiguousarray(x)
        LIBRARY.linprobe_widen(x.ctypes.data, STORED.index(x.dtype), wide.ctypes.data, x.size)
    elif x.dtype == np.uint16:
        np.left_shift(x, 16, out=wide.view(np.uint32), dtype=np.uint32)
    else:
        wide[...] = x
    return wide


@dataclass(frozen=True)
class Translation:
    """A public vector subtracted from each row, and a constant column appended after it.

    Attributes:
        shift: the vector, shape (n_features,), float32.
        column: value of the constant column.
    """

    shift: NDArray[np.float32]
    column: float


@dataclass(frozen=True)
class StoredRows:
    """Rows as they are stored, to be widened and translated when they are used.

    Attributes:
        x: shape (n, n_features): float32, float16, the bits of bfloat16 in uint16, or float64.
        places: the rows meant, shape (m,), int64; None for all.
        translation: of each row; None for rows as they are.
    """

    x: NDArray[Any]
    places: NDArray[np.int64] | None = None
    translation: Translation | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of the rows meant, and their width after translation."""
        n = len(self.x) if self.places is None else len(self.places)
        return n, self.x.shape[1] + (self.translation is not None)

    def for_kernel(self) -> KernelRows:
        """The kernel's argument. It holds addresses, so `self` must outlive it.

        Raises:
            ValueError: rows that are not contiguous or have no storage type, or places outside the rows.
        """
        places, translation = self.places, self.translation
        if self.x.dtype not in STORED or not self.x.flags.c_contiguous:
            raise ValueError(f"rows of type {self.x.dtype} and strides {self.x.strides}; the kernel reads neither")
        if places is not None and len(places) and not 0 <= places.min() <= places.max() < len(self.x):
            raise ValueError(f"places are from {places.min()} to {places.max()}; allowed: 0 to {len(self.x) - 1}")
        shift, column = (None, 0.0) if translation is None else (translation.shift, translation.column)
        addresses = address(self.x), address(places), address(shift)
        return KernelRows(*addresses, self.x.shape[1], column, STORED.index(self.x.dtype))

    def wide(self, out: NDArray[np.float32] | None = None) -> NDArray[Any]:
        """The rows meant, float32 (float64 rows stay so), in `out` if given; `x` itself if there is nothing to do."""
        if self.places is None and self.translation is None:
            return widened(self.x, out)
        if LIBRARY is not None and self.x.dtype in STORED and self.x.flags.c_contiguous:
            found: NDArray[np.float32] = aligned_empty(self.shape, np.float32) if out is None else out
            LIBRARY.linprobe_load(ctypes.byref(self.for_kernel()), found.ctypes.data, len(found))
            return found
        x = widened(self.x if self.places is None else self.x[self.places])
        if self.translation is None:
            return x
        found = np.empty(self.shape, np.float32)
        np.subtract(x, self.translation.shift, out=found[:, :-1])
        found[:, -1] = self.translation.column
        return found


@dataclass(frozen=True)
class Pairs:
    """The rows in a block of people who have few, and all pairs of two rows of the same person.

    Attributes:
        rows: places of these rows in the block, shape (n,), or all. owner: index of the person of each of them.
        units: indices of these people. counts: number of these rows of every person, shape (n_units,).
        first, second: the rows of each pair, as indices into `rows`, shape (n_pairs,).
        pair_owner: index of the person of each pair. pair_counts: number of pairs of every person, shape (n_units,).
        formed: indices of the people with more rows, which are in no pair.
        inner: inner product of the two rows of each pair, float64; None if not computed.
    """

    rows: Array
    owner: Array
    units: Array
    counts: Array
    first: Array
    second: Array
    pair_owner: Array
    pair_counts: Array
    formed: NDArray[np.intp]
    inner: Array = None

    @property
    def places(self) -> NDArray[np.int64] | None:
        """`rows`, or None for all rows."""
        return None if isinstance(self.rows, slice) else self.rows


@dataclass(frozen=True)
class Block:
    """Consecutive rows, or the rows of some people in order.

    A unit is what is protected: a row, or where the block has `bounds`, all rows of one person.

    Attributes:
        start: index of the first unit among the units of this process.
        stored: the rows (b, n_features): float32, float16, the bits of bfloat16 in uint16, or float64.
        y: class indices int64, shape (b,), targets float32, shape (b, n_targets), or labels 0 and 1 uint8, same shape.
        norms: L2 norms of the rows, shape (b,), float64.
        sampled: mask of the units in the sample, shape (n_units,); None if all are.
        bounds: rows of unit u are bounds[u] to bounds[u + 1], shape (n_units + 1,); None if each row is a unit.
        pairs: of its rows, if kept from an earlier pass.
        translation: of the rows in `stored`, when they are used; None for rows as they are, and for people.
        weights: public factors on the losses of the rows, shape (b,), float64; None for ones.
    """

    start: int
    stored: NDArray[Any]
    y: NDArray[Any]
    norms: NDArray[np.float64]
    sampled: NDArray[np.bool_] | None = None
    bounds: NDArray[np.int64] | None = None
    pairs: Pairs | None = None
    translation: Translation | None = None
    weights: NDArray[np.float64] | None = None

    @property
    def n_units(self) -> int:
        """Number of units in the block."""
        return len(self.y) if self.bounds is None else len(self.bounds) - 1

    @property
    def rows(self) -> StoredRows:
        """The rows as they are stored, with their translation."""
        return StoredRows(self.stored, translation=self.translation)

    @cached_property
    def x(self) -> NDArray[np.float32]:
        """The rows as float32, or float64 if `stored` is float64; one feature wider if they are translated."""
        return self.rows.wide()

    def compact(self) -> Block:
        """The rows of the people in the sample. All people keep their places; those outside have no rows.

        Raises:
            ValueError: a block without a sample, or without people.
        """
        if self.sampled is None or self.bounds is None:
            raise ValueError("compact() is for a sample of people")
        sizes = np.diff(self.bounds)
        rows = np.flatnonzero(np.repeat(self.sampled, sizes))
        return replace(
            self,
            stored=self.stored[rows],
            y=self.y[rows],
            norms=self.norms[rows],
            bounds=np.concatenate([[0], np.cumsum(sizes * self.sampled)]),
            pairs=None,
            weights=None if self.weights is None else self.weights[rows],
        )

    def chosen(self, places: NDArray[np.int64]) -> Block:
        """The rows at some places of the block, shape (m,), widened; each is a unit by itself."""
        x = replace(self.rows, places=places).wide()
        weights = None if self.weights is None else self.weights[places]
        return Block(self.start, x, self.y[places], self.norms[places], weights=weights)


LazyBlock = Callable[[], Block]  # loads its block when called


def pairs_of(bounds: Bounds) -> Pairs:
    """The pairs of rows of the same person, for people with at most `PAIRED_ROWS` rows."""
    sizes = np.diff(bounds)
    few = np.where(sizes <= PAIRED_ROWS, sizes, 0)
    owner = np.repeat(np.arange(len(sizes)), few)
    rows = np.arange(len(owner)) + np.repeat(bounds[:-1] - (np.cumsum(few) - few), few)
    # row j of a person is paired with the rows after it
    later = np.repeat(np.cumsum(few), few) - np.arange(len(owner)) - 1
    first = np.repeat(np.arange(len(owner)), later)
    second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
    whole = len(owner) == bounds[-1] - bounds[0]
    return Pairs(
        slice(None) if whole else rows,
        owner,
        np.flatnonzero(few),
        few,
        first,
        second,
        owner[first],
        few * (few - 1) // 2,
        np.flatnonzero(sizes > PAIRED_ROWS),
    )


def inner_products(stored: Array, pairs: Pairs) -> Array:
    """Inner products of the pairs of the rows `stored`, float64, shape (n_pairs,)."""
    if LIBRARY is not None and isinstance(stored, np.ndarray) and stored.dtype in STORED:
        rows, bounds = StoredRows(np.ascontiguousarray(stored), pairs.places), np.append(0, np.cumsum(pairs.counts))
        wide, found = np.empty((PAIRED_ROWS, rows.shape[1]), np.float32), np.empty(len(pairs.first))
        people = ctypes.byref(KernelPeople(bounds=address(bounds), n=len(pairs.counts)))
        LIBRARY.linprobe_inner_products(ctypes.byref(rows.for_kernel()), address(wide), people, address(found))
        return found
    x, parts = stored[pairs.rows], []
    for start in range(0, len(pairs.first), PAIRS_AT_ONCE):
        here = slice(start, start + PAIRS_AT_ONCE)
        parts.append((double(widened(x[pairs.first[here]])) * double(widened(x[pairs.second[here]]))).sum(-1))
    return namespace(stored).concatenate(parts) if parts else double(stored[:0, 0])


def paired(block: Block) -> Pairs:
    """The pairs of the rows of a block of people, with their inner products.

    Raises:
        ValueError: bounds that do not fit the rows.
    """
    pairs, bounds = block.pairs, block.bounds
    if pairs is None or pairs.inner is None:
        if bounds is None or bounds[0] or bounds[-1] != len(block.stored) or (bounds[1:] < bounds[:-1]).any():
            raise ValueError(f"bounds of people do not fit {len(block.stored)} rows")
        pairs = pairs_of(bounds) if pairs is None else pairs
        pairs = replace(pairs, inner=inner_products(block.stored, pairs))
    return pairs
