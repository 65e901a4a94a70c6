"""Blocks of rows: raw ones from a source, the map to training space, and stored blocks, which back ends clip and sum.

The map acts on single rows and uses public constants only, so it costs no privacy. A unit is what is protected: a row,
or all rows of one person. Where people are protected, a block holds whole people; numbers and places are of people.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from linprobe.data.labels import Bounds
from linprobe.errors import DataError, UsageError
from linprobe.native import LIBRARY, KernelPeople, KernelRows, address
from linprobe.options import Precision as Precision
from linprobe.parallel.array_api import Array, Floats, Indices, Mask, Reals, Singles, double, namespace

BLOCK_ROWS = 1024
SHARD_ROWS = 4 * BLOCK_ROWS  # shards begin at multiples of this

RawBlocks = Iterator[tuple[Floats, Indices]]


def whole_blocks(blocks: RawBlocks, sizes: Iterable[int] | None = None) -> RawBlocks:
    """The same rows in blocks of `sizes`, or of `BLOCK_ROWS` (the last may be shorter); fitting ones are not copied."""
    wanted = repeat(BLOCK_ROWS) if sizes is None else iter(sizes)
    waiting: list[tuple[Floats, Indices]] = []
    missing = next(wanted, BLOCK_ROWS)
    for x, y in blocks:
        start = 0
        while len(y) - start >= missing:
            waiting.append((x[start : start + missing], y[start : start + missing]))
            start += missing
            yield concatenated(waiting)
            waiting, missing = [], next(wanted, BLOCK_ROWS)
        if start < len(y):
            waiting.append((x[start:], y[start:]))
            missing -= len(y) - start
    if waiting:
        yield concatenated(waiting)


def concatenated(blocks: Iterable[tuple[Floats, Indices]]) -> tuple[Floats, Indices]:
    every = list(blocks)
    if len(every) == 1:
        return every[0]
    return np.concatenate([x for x, _ in every]), np.concatenate([y for _, y in every])


class Source(Protocol):
    """Raw rows with labels that can be read any number of times."""

    n_rows: int
    n_features: int

    def blocks(self) -> RawBlocks:
        """Blocks of raw rows (b, n_features) and class indices (b,), in order."""

    def shard(self, start: int, stop: int) -> Source:
        """The rows from `start` up to `stop`."""


class ArraySource:
    """Raw rows in memory: `x` (n_rows, n_features), class indices `y` (n_rows,)."""

    def __init__(self, x: Floats, y: Indices) -> None:
        self._x, self._y = x, y
        self.n_rows, self.n_features = x.shape

    def shard(self, start: int, stop: int) -> ArraySource:
        return ArraySource(self._x[start:stop], self._y[start:stop])

    def blocks(self) -> RawBlocks:
        for start in range(0, self.n_rows, BLOCK_ROWS):
            here = slice(start, start + BLOCK_ROWS)
            yield self._x[here], self._y[here]


class ChainedSource:
    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self.n_rows = sum(source.n_rows for source in sources)
        self.n_features = sources[0].n_features

    def shard(self, start: int, stop: int) -> ChainedSource:
        shards, first = [], 0
        for source in self._sources:
            low, high = max(start - first, 0), min(stop - first, source.n_rows)
            if low < high:
                shards.append(source.shard(low, high))
            first += source.n_rows
        return ChainedSource(*shards)

    def blocks(self) -> RawBlocks:
        for source in self._sources:
            yield from source.blocks()


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
    """An uninitialised array aligned to a cache line, so that no SIMD vector crosses two."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def narrowed(x: Singles, precision: Precision) -> NDArray[Any]:
    """`x` rounded to `precision`, ties to even; bfloat16 as bits in uint16. UsageError: unknown, or out of range."""
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
        raise UsageError(f"a row holds {np.abs(x).max():.3g}; allowed in {precision}: {largest:g}; use float32")
    return half if precision == "float16" else bits


def halved(x: Floats) -> NDArray[np.float16]:
    """`x` rounded to float16, to nearest, ties to even, beyond its range to an infinity: a contiguous copy."""
    if LIBRARY is None or x.dtype != np.float32:
        with np.errstate(over="ignore", under="ignore"):
            return x.astype(np.float16, order="C")
    x, half = np.ascontiguousarray(x), np.empty(x.shape, np.float16)
    LIBRARY.linprobe_halve(x.ctypes.data, half.ctypes.data, x.size)
    return half


def widened(x: NDArray[Any]) -> NDArray[Any]:
    """`x` converted from float16, or from the bits of bfloat16 in uint16, to float32; else `x` itself."""
    if x.dtype not in STORED[1:]:
        return x
    wide: Singles = aligned_empty(x.shape, np.float32)
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
    """A public vector `shift` (n_features,), float32, subtracted from each row, and a constant `column` after it."""

    shift: Singles
    column: float


@dataclass(frozen=True)
class StoredRows:
    """Rows as they are stored, to be widened and translated when they are used."""

    x: NDArray[Any]  # (n, n_features): float32, float16, the bits of bfloat16 in uint16, or float64
    places: Indices | None = None  # the rows meant, (m,), int64; None for all
    translation: Translation | None = None  # of each row

    @property
    def shape(self) -> tuple[int, int]:
        n = len(self.x) if self.places is None else len(self.places)
        return n, self.x.shape[1] + (self.translation is not None)

    def for_kernel(self) -> KernelRows:
        """The kernel's argument, of addresses: `self` must outlive it. ValueError: not contiguous, or places beyond."""
        places, translation = self.places, self.translation
        if self.x.dtype not in STORED or not self.x.flags.c_contiguous:
            raise ValueError(f"rows of type {self.x.dtype} and strides {self.x.strides}; the kernel reads neither")
        if places is not None and len(places) and not 0 <= places.min() <= places.max() < len(self.x):
            raise ValueError(f"places are from {places.min()} to {places.max()}; allowed: 0 to {len(self.x) - 1}")
        shift, column = (None, 0.0) if translation is None else (translation.shift, translation.column)
        addresses = self.x.ctypes.data, address(places), address(shift)
        return KernelRows(*addresses, self.x.shape[1], column, STORED.index(self.x.dtype))

    def wide(self) -> NDArray[Any]:
        """The rows meant, float32 (float64 rows stay so); `x` itself if there is nothing to do."""
        if self.places is None and self.translation is None:
            return widened(self.x)
        if LIBRARY is not None and self.x.dtype in STORED and self.x.flags.c_contiguous:
            found: Singles = aligned_empty(self.shape, np.float32)
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
    """The rows in a block of people who have few, and all pairs of two rows of the same person."""

    rows: Array  # places of these rows in the block, (n,), or all
    owner: Array  # index of the person of each of them
    units: Array  # indices of these people
    counts: Array  # number of these rows of every person, (n_units,)
    first: Array  # of each pair, (n_pairs,), as an index into `rows`
    second: Array
    pair_owner: Array  # index of the person of each pair
    pair_counts: Array  # number of pairs of every person, (n_units,)
    formed: NDArray[np.intp]  # indices of the people with more rows, which are in no pair
    inner: Array = None  # inner product of the two rows of each pair, float64

    @property
    def places(self) -> Indices | None:
        return None if isinstance(self.rows, slice) else self.rows


@dataclass(frozen=True)
class Block:
    """Consecutive rows, or the rows of some people in order."""

    start: int  # index of the first unit among the units of this process
    stored: NDArray[Any]  # (b, n_features): float32, float16, the bits of bfloat16 in uint16, or float64
    y: NDArray[Any]  # classes int64 (b,), targets float32 (b, n_targets), or labels 0 and 1 uint8 (b, n_labels)
    norms: Reals  # L2 norms of the rows, (b,)
    sampled: Mask | None = None  # units in the sample, (n_units,); None if all are
    bounds: Indices | None = None  # rows of unit u are bounds[u] to bounds[u + 1]; None if each row is a unit
    pairs: Pairs | None = None  # of its rows, if kept from an earlier pass
    translation: Translation | None = None  # of the rows in `stored`, when they are used; None for people
    weights: Reals | None = None  # public factors on the losses of the rows, (b,); None for ones

    @property
    def n_units(self) -> int:
        return len(self.y) if self.bounds is None else len(self.bounds) - 1

    @property
    def rows(self) -> StoredRows:
        return StoredRows(self.stored, translation=self.translation)

    @cached_property
    def x(self) -> Singles:
        """The rows as float32, or float64 if `stored` is float64; one feature wider if they are translated."""
        return self.rows.wide()

    def compact(self) -> Block:
        """The rows of the people in the sample; all keep their places. ValueError: no sample, or no people."""
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

    def chosen(self, places: Indices) -> Block:
        """The rows at some places of the block, shape (m,), widened; each is a unit by itself."""
        x = replace(self.rows, places=places).wide()
        weights = None if self.weights is None else self.weights[places]
        return Block(self.start, x, self.y[places], self.norms[places], weights=weights)


LazyBlock = Callable[[], Block]  # loads its block when called


def pairs_of(bounds: Bounds) -> Pairs:
    sizes = np.diff(bounds)
    few = np.where(sizes <= PAIRED_ROWS, sizes, 0)
    owner = np.repeat(np.arange(len(sizes)), few)
    rows = np.arange(len(owner)) + np.repeat(bounds[:-1] - (np.cumsum(few) - few), few)
    # row j of a person is paired with the rows after it
    later = np.repeat(np.cumsum(few), few) - np.arange(len(owner)) - 1
    first = np.repeat(np.arange(len(owner)), later)
    second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
    chosen = slice(None) if len(owner) == bounds[-1] - bounds[0] else rows
    units, formed = np.flatnonzero(few), np.flatnonzero(sizes > PAIRED_ROWS)
    return Pairs(chosen, owner, units, few, first, second, owner[first], few * (few - 1) // 2, formed)


def inner_products(stored: Array, pairs: Pairs) -> Array:
    if LIBRARY is not None and isinstance(stored, np.ndarray) and stored.dtype in STORED:
        rows, bounds = StoredRows(np.ascontiguousarray(stored), pairs.places), np.append(0, np.cumsum(pairs.counts))
        wide, found = np.empty((PAIRED_ROWS, rows.shape[1]), np.float32), np.empty(len(pairs.first))
        people = ctypes.byref(KernelPeople(bounds=bounds.ctypes.data, n=len(pairs.counts)))
        LIBRARY.linprobe_inner_products(ctypes.byref(rows.for_kernel()), wide.ctypes.data, people, found.ctypes.data)
        return found
    x, parts = stored[pairs.rows], []
    for start in range(0, len(pairs.first), PAIRS_AT_ONCE):
        here = slice(start, start + PAIRS_AT_ONCE)
        parts.append((double(widened(x[pairs.first[here]])) * double(widened(x[pairs.second[here]]))).sum(-1))
    return namespace(stored).concatenate(parts) if parts else double(stored[:0, 0])


def paired(block: Block) -> Pairs:
    """The pairs of the rows of a block of people, with their inner products. Raises ValueError: bounds do not fit."""
    pairs, bounds = block.pairs, block.bounds
    if pairs is None or pairs.inner is None:
        if bounds is None or bounds[0] or bounds[-1] != len(block.stored) or (bounds[1:] < bounds[:-1]).any():
            raise ValueError(f"bounds of people do not fit {len(block.stored)} rows")
        pairs = pairs_of(bounds) if pairs is None else pairs
        pairs = replace(pairs, inner=inner_products(block.stored, pairs))
    return pairs


SMALLEST_FLOAT32_NORM = 1e-30
BIAS_TOLERANCE = 1e-3
SHORTEST_ROW = 0.4  # least typical norm of a row around the mean
CACHED_ROWS = 64  # that every step of a map works on, so that they stay in the cache; no row depends on another
SEGMENT = 32  # squares of a float32 sum
SQUARES = (1e-20, 1e30)  # range in which float32 sums of squares neither overflow nor lose accuracy


def row_norms(x: Singles) -> Reals:
    """L2 norm of each row, shape (n,), float64, with a relative error of at most 1e-6, whatever the other rows are.

    Squares are summed in float32 in segments of `SEGMENT`, and the segments in float64: at most SEGMENT + 1 roundings
    of 2^-24, halved by the root. Rows whose squares leave the range of float32 are summed in float64.
    """
    n_segments = x.shape[1] // SEGMENT
    whole = n_segments * SEGMENT
    segments = x[:, :whole].reshape(len(x), n_segments, SEGMENT)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # invalid: NaN and infinity, refused elsewhere
        sums: Reals = np.einsum("isj,isj->is", segments, segments).astype(np.float64).sum(axis=1)
        sums += np.einsum("ij,ij->i", x[:, whole:], x[:, whole:])
        odd = ~((sums > SQUARES[0]) & (sums < SQUARES[1]))
        if odd.any():
            # `einsum` would add the numbers of a long row in another order if it is the only one
            sums[odd] = np.square(x[odd], dtype=np.float64).sum(axis=1)
    norms: Reals = np.sqrt(sums)
    return norms


def normalise_rows(x: Singles, norms: Reals | None = None, out: Singles | None = None) -> Singles:
    """Each row divided by its L2 norm, or its number in `norms` (n,), in `out`; zeros stay. DataError: not finite."""
    norms = row_norms(x) if norms is None else norms
    if not np.isfinite(norms).all():
        raise DataError("a row holds NaN or infinity; allowed: finite rows; stop what writes to them, then run again")
    extreme = (norms > 0) & ((norms < SMALLEST_FLOAT32_NORM) | (norms > 1 / SMALLEST_FLOAT32_NORM))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=(norms > 0) & ~extreme)
    unit: Singles = aligned_empty(x.shape, np.float32) if out is None else out
    np.multiply(x, inverse[:, None].astype(np.float32), out=unit)
    # the inverse of such a norm leaves the range of float32
    unit[extreme] = (x[extreme].astype(np.float64) / norms[extreme, None]).astype(np.float32)
    return unit


COLUMN_OF_ZEROS = 1e-60  # an intercept that is 0 in float32, and not in float64


def default_intercept(n_features: int) -> float:
    """The value of a bias column: 2 / sqrt(n_features), twice a typical feature of a unit row, to a power of 2."""
    return float(2.0 ** round(1 - np.log2(n_features) / 2))


@dataclass(frozen=True)
class Preprocessing:
    """Map from raw feature rows to training space: L2-normalise, subtract a centre, add a bias column, renormalise."""

    centre: Reals | None = None  # public or released mean of normalised rows, (n_features,)
    centred_norm: float = 1.0  # estimated mean norm of centred rows before they are renormalised
    intercept: float = 0.0  # of the column appended last to a row of norm `centred_norm`; 0 appends none

    def apply(self, raw: ArrayLike, out: Singles | None = None, *, unit: bool = False) -> Singles:
        """Rows in training space, float32, from raw rows (n, n_features), in `out`; `unit`: of `Preprocessing()`."""
        given = np.asarray(raw)
        n_rows, width = given.shape
        found = aligned_empty((n_rows, width + bool(self.intercept)), np.float32) if out is None else out
        centre = None if self.centre is None else self.centre.astype(np.float32)
        scratch = aligned_empty((min(n_rows, CACHED_ROWS), width), np.float32)
        for start in range(0, n_rows, CACHED_ROWS):
            here = slice(start, start + CACHED_ROWS)
            x = widened(given[here]) if given.dtype == np.float16 else given[here].astype(np.float32, copy=False)
            if centre is not None:
                x = np.subtract(x if unit else normalise_rows(x, out=scratch[: len(x)]), centre, out=scratch[: len(x)])
            column, lengths = np.array(self.intercept * self.centred_norm), None
            if centre is not None and self.intercept:
                lengths = np.hypot(row_norms(x), column)
                column = (column / lengths)[:, None]
            if unit and centre is None:
                found[here, :width] = x
            else:
                normalise_rows(x, lengths, out=found[here, :width])
            found[here, width:] = column
        return found

    def around(self, mean: Reals, squared_norm: float) -> Preprocessing:
        """This map with unit rows centred on `mean` (n_features,), which have `squared_norm` there on average."""
        return replace(self, centre=mean, centred_norm=math.sqrt(squared_norm) or 1.0)

    @classmethod
    def centred_on(cls, public_raw: ArrayLike, classes: Indices | None = None) -> Preprocessing:
        """Centre on the mean of public rows (n_public, n_features), halfway to that of class means with `classes`."""
        x = normalise_rows(np.asarray(public_raw, dtype=np.float32)).astype(np.float64)
        centre = x.mean(axis=0)
        if classes is not None:
            centre = (centre + np.mean([x[classes == label].mean(axis=0) for label in np.unique(classes)], axis=0)) / 2
        return cls(centre, float(np.linalg.norm(x - centre, axis=1).mean()) or 1.0)

    def fold(self, weights: Reals, offset: Reals | float = 0.0) -> tuple[Singles, Singles]:
        """Weights (n_features, n_classes) and bias, float32, for L2-normalised raw rows; `offset` is added to the bias.

        The mean norm stands for that of the centred row and its column, by which training divides: scores have the
        right scale on average.
        """
        folded, bias = weights, np.zeros_like(weights[..., 0, :])
        if self.intercept:
            folded, bias = weights[..., :-1, :], self.intercept * weights[..., -1, :]
        if self.centre is not None:
            folded = folded / self.centred_norm
            bias = bias - np.einsum("d,...dc->...c", self.centre, folded)
        return folded.astype(np.float32), (bias + offset).astype(np.float32)

    def unfold(self, weights: Floats, bias: Floats | float = 0.0) -> Reals:
        """Inverse of `fold` for one set of weights. Raises UsageError: a bias that this space cannot express."""
        wide = weights.astype(np.float64)
        offset = np.zeros(wide.shape[1]) + bias - float(np.mean(bias))
        if self.centre is not None:
            offset = offset + self.centre @ wide
            offset -= offset.mean()
            wide = wide * self.centred_norm
        if self.intercept:
            return np.concatenate([wide, offset[None] / self.intercept])
        if np.abs(offset).max() > BIAS_TOLERANCE * max(1.0, float(np.abs(wide).max())):
            raise UsageError(
                f"the first model has a bias of up to {np.abs(offset).max():.3g}, which these rows cannot express; "
                "give --intercept 1 --centre none, or the public rows and --centre it was trained with"
            )
        return wide
