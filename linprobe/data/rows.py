"""Sets of rows in training space, passed over in blocks: in memory or streamed from a file, whole or a part of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linprobe.data.precision import STORAGE, Precision, aligned_empty, narrowed, widened
from linprobe.data.preprocessing import Preprocessing, row_norms
from linprobe.errors import UsageError
from linprobe.parallel import available_memory
from linprobe.parallel.prefetch import prefetched
from linprobe.parallel.process_group import Group

BLOCK_ROWS = 1024
PART_ROWS = 4 * BLOCK_ROWS  # rows are parted among processes at multiples of this
READ_AHEAD_BLOCKS = 8
READ_AHEAD_BYTES = 64 << 20


@dataclass(frozen=True)
class Block:
    """Some rows, in order.

    Attributes:
        start: place of the first among all rows; of no meaning in a block of selected rows.
        stored: the rows (b, n_features), float32, float16, or the bits of bfloat16 in uint16; float64 where products
            of them are to be.
        y: class indices int64, shape (b,), or targets float32, shape (b, n_targets).
        norms: L2 norms of the rows, shape (b,), float64.
        joined: which of them a sample took, shape (b,); None for all.
    """

    start: int
    stored: NDArray[Any]
    y: NDArray[Any]
    norms: NDArray[np.float64]
    joined: NDArray[np.bool_] | None = None

    @cached_property
    def x(self) -> NDArray[np.float32]:
        """The rows, float32, or float64 if they are stored so."""
        return widened(self.stored)


Piece = Callable[[], Block]


class Blocks(ABC):
    """Rows that can be passed over, block by block, any number of times.

    `sampling_rate` is the Poisson probability with which each of the `n_rows` joined; `observed` whether blocks show
    all of them.
    """

    n_rows: int
    n_features: int
    sampling_rate: float = 1.0
    observed: bool = True

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """All rows in order, as calls that return one block each.

        Calls are independent of one another: they can be made in any order, in several threads at once, and each but
        once.
        """

    def blocks(self) -> Iterator[Block]:
        """All rows in order."""
        return (piece() for piece in self.pieces())

    @property
    def n_held(self) -> int:
        """Number of rows that this process holds, out of `n_rows` in all; blocks are of these."""
        return self.n_rows

    @property
    def first(self) -> int:
        """Number of the first row held, among all."""
        return 0


class Rows(Blocks):
    """Rows of which samples can be taken."""

    @abstractmethod
    def selected_pieces(self, joined: NDArray[np.bool_]) -> Iterator[Piece]:
        """The rows where `joined` (n_rows,) is true, as calls that return at most `BLOCK_ROWS` of them each."""


class ArrayRows(Rows):
    """Rows held in memory, already in training space.

    Args:
        x: shape (n_rows, n_features): float32, float16, or the bits of bfloat16 in uint16.
        y: class indices, shape (n_rows,), or float targets, shape (n_rows, n_targets).
        block_rows: rows per block, at most BLOCK_ROWS; changes no result beyond rounding.
    """

    def __init__(self, x: NDArray[Any], y: ArrayLike, block_rows: int = BLOCK_ROWS) -> None:
        self.x = x
        y = np.asarray(y)
        self.y = y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64, copy=False)
        self.n_rows, self.n_features = x.shape
        self._block_rows = min(block_rows, BLOCK_ROWS)
        self.norms = np.empty(self.n_rows)
        for start in range(0, self.n_rows, self._block_rows):
            part = slice(start, start + self._block_rows)
            self.norms[part] = row_norms(widened(x[part]))

    def _block(self, start: int, part: slice | NDArray[np.intp]) -> Block:
        return Block(start, self.x[part], self.y[part], self.norms[part])

    def pieces(self) -> Iterator[Piece]:
        """All rows in order; float32 rows are not copied."""
        for start in range(0, self.n_rows, self._block_rows):
            yield partial(self._block, start, slice(start, start + self._block_rows))

    def selected_pieces(self, joined: NDArray[np.bool_]) -> Iterator[Piece]:
        """The rows where `joined` is true, copied as each piece is called; no piece crosses a multiple of PART_ROWS."""
        for first in range(0, self.n_rows, PART_ROWS):
            places = first + np.flatnonzero(joined[first : first + PART_ROWS])
            for start in range(0, len(places), self._block_rows):
                yield partial(self._block, start, places[start : start + self._block_rows])


RawBlocks = Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]


def whole_blocks(blocks: RawBlocks) -> RawBlocks:
    """The same rows in blocks of `BLOCK_ROWS`, the last one aside; a block that is whole already is not copied."""
    waiting: list[tuple[NDArray[np.floating], NDArray[np.int64]]] = []
    missing = BLOCK_ROWS
    for x, y in blocks:
        start = 0
        while len(y) - start >= missing:
            waiting.append((x[start : start + missing], y[start : start + missing]))
            start += missing
            yield _concatenated(waiting)
            waiting, missing = [], BLOCK_ROWS
        if start < len(y):
            waiting.append((x[start:], y[start:]))
            missing -= len(y) - start
    if waiting:
        yield _concatenated(waiting)


def _concatenated(
    parts: list[tuple[NDArray[np.floating], NDArray[np.int64]]],
) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _read_ahead(blocks: RawBlocks, n_features: int) -> RawBlocks:
    """The same blocks, some of them read ahead of time."""
    return prefetched(blocks, max(1, min(READ_AHEAD_BLOCKS, READ_AHEAD_BYTES // (4 * BLOCK_ROWS * n_features))))


class StreamedRows(Rows):
    """Rows read anew at every pass, so that memory does not grow with their number; preprocessed as pieces are called.

    Args:
        read: a call that starts a pass over raw blocks `(x, y)`, of any sizes; no block may change afterwards.
        n_rows: number of rows a pass yields.
        n_features: width in training space.
        preprocessing: applied to each block.
        precision: to which rows are rounded, so that they equal those kept in memory bit for bit.
    """

    def __init__(
        self,
        read: Callable[[], RawBlocks],
        n_rows: int,
        n_features: int,
        preprocessing: Preprocessing,
        precision: Precision = "float32",
    ) -> None:
        self._read = read
        self.n_rows = n_rows
        self.n_features = n_features
        self._preprocessing = preprocessing
        self._precision = precision

    def _block(self, start: int, raw: NDArray[np.floating], y: NDArray[np.int64]) -> Block:
        x = widened(narrowed(self._preprocessing.apply(raw), self._precision))
        return Block(start, x, y, row_norms(x))

    def pieces(self) -> Iterator[Piece]:
        """All rows in order, read here and preprocessed when a piece is called."""
        start = 0
        for raw, y in _read_ahead(whole_blocks(self._read()), self.n_features):
            yield partial(self._block, start, raw, y)
            start += len(y)

    def selected_pieces(self, joined: NDArray[np.bool_]) -> Iterator[Piece]:
        """The rows where `joined` is true, in the pieces of `ArrayRows`; all are read, only those are preprocessed."""
        start, taken = 0, []
        for raw, y in _read_ahead(whole_blocks(self._read()), self.n_features):
            here = joined[start : start + len(y)]
            taken.append((raw[here], y[here]))
            start += len(y)
            if start % PART_ROWS == 0 or start == self.n_rows:
                for block, labels in whole_blocks(iter(taken)):
                    yield partial(self._block, start, block, labels)
                taken = []


class Source(Protocol):
    """Raw rows with labels that can be passed over any number of times."""

    n_rows: int
    n_features: int

    def blocks(self) -> RawBlocks:
        """Blocks of raw rows (b, n_features) and class indices (b,), in order."""

    def part(self, start: int, stop: int) -> Source:
        """The rows from `start` up to `stop`."""


class ArraySource:
    """Raw rows in memory: `x` (n_rows, n_features), class indices `y` (n_rows,)."""

    def __init__(self, x: NDArray[np.floating], y: NDArray[np.int64]) -> None:
        self._x, self._y = x, y
        self.n_rows, self.n_features = x.shape

    def part(self, start: int, stop: int) -> ArraySource:
        """The rows from `start` up to `stop`."""
        return ArraySource(self._x[start:stop], self._y[start:stop])

    def blocks(self) -> RawBlocks:
        """All rows in blocks."""
        for start in range(0, self.n_rows, BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            yield self._x[part], self._y[part]


class ChainedSource:
    """The rows of several sources, one after another."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self.n_rows = sum(source.n_rows for source in sources)
        self.n_features = sources[0].n_features

    def part(self, start: int, stop: int) -> ChainedSource:
        """The rows from `start` up to `stop`."""
        parts, first = [], 0
        for source in self._sources:
            low, high = max(start - first, 0), min(stop - first, source.n_rows)
            if low < high:
                parts.append(source.part(low, high))
            first += source.n_rows
        return ChainedSource(*parts)

    def blocks(self) -> RawBlocks:
        """All rows in blocks."""
        for source in self._sources:
            yield from source.blocks()


def prepare(source: Source, preprocessing: Preprocessing, precision: Precision = "float32", processes: int = 1) -> Rows:
    """Rows of `source` in training space, rounded to `precision`: in memory if they fit, else streamed.

    So many `processes` of this machine do the same with rows of their own.

    Raises:
        UsageError: an unknown precision, or one that cannot hold the bias column exactly.
    """
    column = np.full((1, 1), preprocessing.intercept, dtype=np.float32)
    held = widened(narrowed(column, precision))
    if not np.array_equal(held, column):
        raise UsageError(
            f"intercept is {preprocessing.intercept:g}, which {precision} cannot hold; nearest allowed: "
            f"{float(held[0, 0])!r}; give that, or precision float32"
        )
    n_features = source.n_features + bool(preprocessing.intercept)
    storage = np.dtype(STORAGE[precision])
    if not available_memory.fits(processes * storage.itemsize * source.n_rows * n_features):
        return StreamedRows(source.blocks, source.n_rows, n_features, preprocessing, precision)
    x = aligned_empty((source.n_rows, n_features), storage)
    y = np.empty(source.n_rows, dtype=np.int64)
    start = 0
    for raw, labels in _read_ahead(source.blocks(), n_features):
        here = slice(start, start + len(raw))
        x[here], y[here] = narrowed(preprocessing.apply(raw), precision), labels
        start += len(raw)
    return ArrayRows(x, y)


class PartRows(Rows):
    """The rows that one of several processes holds, out of all.

    Args:
        held: these rows. first, n_rows: number of the first of them, and of all rows.
    """

    def __init__(self, held: Rows, first: int, n_rows: int) -> None:
        self._held, self._first = held, first
        self.n_rows, self.n_features = n_rows, held.n_features

    @property
    def n_held(self) -> int:
        """Number of rows held here."""
        return self._held.n_rows

    @property
    def first(self) -> int:
        """Number of the first row held, among all."""
        return self._first

    def pieces(self) -> Iterator[Piece]:
        """The rows held here."""
        return self._held.pieces()

    def selected_pieces(self, joined: NDArray[np.bool_]) -> Iterator[Piece]:
        """Those rows held here where `joined` (n_held,) is true."""
        return self._held.selected_pieces(joined)


def prepare_part(source: Source, preprocessing: Preprocessing, precision: Precision, group: Group) -> Rows:
    """`prepare` for those rows of `source` that fall to this process of a group: as many, to a part, as to any other.

    Raises:
        UsageError: more processes than parts.
    """
    if group.size == 1:
        return prepare(source, preprocessing, precision)
    n_parts = -(-source.n_rows // PART_ROWS)
    if n_parts < group.size:
        raise UsageError(
            f"{group.size} processes were started for {source.n_rows} private rows; allowed: one for every {PART_ROWS} "
            f"of them; use --nproc-per-node {n_parts}"
        )
    bounds = (rank * n_parts // group.size * PART_ROWS for rank in (group.rank, group.rank + 1))
    first, stop = (min(source.n_rows, bound) for bound in bounds)
    held = prepare(source.part(first, stop), preprocessing, precision, group.local_size)
    return PartRows(held, first, source.n_rows)


class ChainedRows(Rows):
    """The rows of several sets, one set after another."""

    def __init__(self, *parts: Rows) -> None:
        self._parts = parts
        self.n_rows = sum(part.n_rows for part in parts)
        self.n_features = parts[0].n_features

    def pieces(self) -> Iterator[Piece]:
        """All rows in order."""
        first = 0
        for part in self._parts:
            for piece in part.pieces():
                yield partial(_moved, piece, first)
            first += part.n_rows

    def selected_pieces(self, joined: NDArray[np.bool_]) -> Iterator[Piece]:
        """The rows where `joined` is true."""
        first = 0
        for part in self._parts:
            yield from part.selected_pieces(joined[first : first + part.n_rows])
            first += part.n_rows


def _moved(piece: Piece, first: int) -> Block:
    block = piece()
    return replace(block, start=first + block.start)


class ChangedRows(Rows):
    """Rows of another set, each block changed as its piece is called."""

    def __init__(self, rows: Rows, n_features: int) -> None:
        self._rows = rows
        self.n_rows, self.n_features = rows.n_rows, n_features
        self.sampling_rate, self.observed = rows.sampling_rate, rows.observed

    @property
    def n_held(self) -> int:
        """Number of rows held by this process."""
        return self._rows.n_held

    @property
    def first(self) -> int:
        """Number of the first row held, among all."""
        return self._rows.first

    @abstractmethod
    def change(self, block: Block) -> Block:
        """The block with other rows and `norms`; the one given must stay as it is."""

    def _changed(self, piece: Piece) -> Block:
        return self.change(piece())

    def pieces(self) -> Iterator[Piece]:
        """All rows in order."""
        return (partial(self._changed, piece) for piece in self._rows.pieces())

    def selected_pieces(self, joined: NDArray[np.bool_]) -> Iterator[Piece]:
        """The rows where `joined` is true."""
        return (partial(self._changed, piece) for piece in self._rows.selected_pieces(joined))


class TranslatedRows(ChangedRows):
    """Rows minus a public vector with a constant column appended.

    Args:
        rows: the rows, n_features wide.
        shift: what is subtracted, shape (n_features,).
        column: value of the constant column.
    """

    def __init__(self, rows: Rows, shift: NDArray[np.float64], column: float) -> None:
        super().__init__(rows, rows.n_features + 1)
        self._shift, self._column = shift.astype(np.float32), np.float32(column)

    def change(self, block: Block) -> Block:
        """Its rows translated, one column wider."""
        x = np.empty((len(block.x), self.n_features), dtype=np.float32)
        np.subtract(block.x, self._shift, out=x[:, :-1])
        x[:, -1] = self._column
        return replace(block, stored=x, norms=row_norms(x))


def join(*parts: Rows) -> ArrayRows:
    """All rows of all parts, in order, in memory."""
    blocks = [block for part in parts for block in part.blocks()]
    return ArrayRows(np.concatenate([block.x for block in blocks]), np.concatenate([block.y for block in blocks]))
