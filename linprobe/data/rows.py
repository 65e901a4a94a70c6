"""Rows in training space, read block by block: in memory or streamed from a file, all of them or one shard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linprobe.data.blocks import Block, LazyBlock, Rows
from linprobe.data.precision import (
    STORAGE,
    Precision,
    Translation,
    aligned_empty,
    narrowed,
    widened,
)
from linprobe.data.preprocessing import Preprocessing, row_norms
from linprobe.data.row_weights import RowWeights
from linprobe.data.sources import BLOCK_ROWS, RawBlocks, Source, block_sizes, whole_blocks
from linprobe.data.sources import SHARD_ROWS as SHARD_ROWS
from linprobe.errors import UsageError
from linprobe.parallel import available_memory
from linprobe.parallel.prefetch import prefetched
from linprobe.parallel.threads import n_threads

SAMPLED_ROWS = 1024  # in a block of a sample, about; it reads more places where few of them are in the sample
PREFETCHED_BLOCKS = 8
PREFETCHED_BYTES = 64 << 20


class ArrayRows(Rows):
    """Rows in memory, already in training space.

    Args:
        x: shape (n_rows, n_features): float32, float16, or the bits of bfloat16 in uint16.
        y: class indices, shape (n_rows,); float targets, shape (n_rows, n_targets); or 0 and 1, (n_rows, n_labels).
        block_rows: rows per block, at most BLOCK_ROWS; changes no result beyond rounding.
        weights: public factors on the losses of the rows, shape (n_rows,); None for ones.
    """

    in_memory = True

    def __init__(
        self,
        x: NDArray[Any],
        y: ArrayLike,
        block_rows: int = BLOCK_ROWS,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self.x, self.weights = x, weights
        y = np.asarray(y)
        plain = np.float32 if y.dtype.kind == "f" else np.int64 if y.ndim == 1 else np.uint8
        self.y = y.astype(plain, copy=False)
        self.n_rows, self.n_features = x.shape
        self._block_rows = min(block_rows, BLOCK_ROWS)
        self.norms = np.empty(self.n_rows)
        for start in range(0, self.n_rows, self._block_rows):
            here = slice(start, start + self._block_rows)
            self.norms[here] = row_norms(widened(x[here]))

    def _block(self, start: int, n: int, sampled: NDArray[np.bool_] | None = None) -> Block:
        here = slice(start, start + n)
        return self._chosen(start, here, None if sampled is None else sampled[here])

    def _chosen(self, start: int, rows: slice | NDArray[np.intp], sampled: NDArray[np.bool_] | None = None) -> Block:
        weights = None if self.weights is None else self.weights[rows]
        return Block(start, self.x[rows], self.y[rows], self.norms[rows], sampled, weights=weights)

    def cut(self, sizes: Iterable[int], keep: NDArray[np.bool_] | None = None) -> Iterator[LazyBlock]:
        """All rows in blocks of the given sizes; only those where `keep` (n_rows,) is true, if it is given."""
        start = 0
        for size in sizes:
            here = slice(start, start + size)
            yield partial(self._chosen, start, here if keep is None else start + np.flatnonzero(keep[here]))
            start += size

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """All rows in order; no row is copied."""
        start = 0
        for size in self._sizes():
            yield partial(self._block, start, size)
            start += size

    def _sizes(self) -> Iterator[int]:
        if self._block_rows == BLOCK_ROWS:
            return block_sizes(self.n_rows)
        return repeat(self._block_rows, -(-self.n_rows // self._block_rows))

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """All rows with their mask; no row is copied. The fewer rows are in the sample, the larger are the blocks."""
        threads, n_sampled = n_threads(), int(np.count_nonzero(sampled))
        # equal shares for all threads; a last block, of less than a shard, may be added
        n_blocks = threads * max(1, round(n_sampled / (SAMPLED_ROWS * threads)))
        n = max(1, round(self.n_rows / (SHARD_ROWS * n_blocks))) * SHARD_ROWS * self._block_rows // BLOCK_ROWS
        for start in range(0, self.n_rows, n):
            yield partial(self._block, start, n, sampled)


def _prefetch(blocks: RawBlocks, n_features: int) -> RawBlocks:
    """The same blocks, prefetched within a bound on memory."""
    return prefetched(blocks, max(1, min(PREFETCHED_BLOCKS, PREFETCHED_BYTES // (4 * BLOCK_ROWS * n_features))))


class StreamedRows(Rows):
    """Rows read again in every pass, so that memory does not grow with `n_rows`.

    Args:
        read: starts a pass over raw blocks `(x, y)` of any sizes, which must not change afterwards.
        n_rows: number of rows in a pass.
        n_features: width in training space.
        preprocessing: applied to each block.
        precision: rows are rounded to it, so that they equal rows in memory bit for bit.
        weights: public factors on the losses of the rows; None for ones.
    """

    def __init__(
        self,
        read: Callable[[], RawBlocks],
        n_rows: int,
        n_features: int,
        preprocessing: Preprocessing,
        precision: Precision = "float32",
        weights: RowWeights | None = None,
    ) -> None:
        self._read, self._weights = read, weights
        self.n_rows = n_rows
        self.n_features = n_features
        self._preprocessing = preprocessing
        self._precision = precision

    def _block(
        self, start: int, raw: NDArray[np.floating], y: NDArray[np.int64], weights: NDArray[np.float64] | None
    ) -> Block:
        x = widened(narrowed(self._preprocessing.apply(raw), self._precision))
        return Block(start, x, y, row_norms(x), weights=weights)

    def _weights_of(self, start: int, y: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return None if self._weights is None else self._weights.of(start, y)

    def cut(self, sizes: Iterable[int], keep: NDArray[np.bool_] | None = None) -> Iterator[LazyBlock]:
        """All rows in blocks of the given sizes; only those where `keep` (n_rows,) is true, if it is given."""
        start = 0
        for raw, y in _prefetch(whole_blocks(self._read(), sizes), self.n_features):
            kept = slice(None) if keep is None else keep[start : start + len(y)]
            weights = self._weights_of(start, y)
            yield partial(self._block, start, raw[kept], y[kept], None if weights is None else weights[kept])
            start += len(y)

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """All rows in order. The iterator reads them; a lazy block preprocesses its own."""
        start = 0
        for raw, y in _prefetch(whole_blocks(self._read(), block_sizes(self.n_rows)), self.n_features):
            yield partial(self._block, start, raw, y, self._weights_of(start, y))
            start += len(y)

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """The blocks of `ArrayRows` with zeros outside the sample. Reads all rows, preprocesses those in the sample."""
        start, taken = 0, []
        for raw, y in _prefetch(whole_blocks(self._read()), self.n_features):
            taken.append((raw[sampled[start : start + len(y)]], y))
            start += len(y)
            if start % SHARD_ROWS == 0 or start == self.n_rows:
                first = start - sum(len(labels) for _, labels in taken)
                yield partial(self._sampled_block, first, taken, sampled[first:start])
                taken = []

    def _sampled_block(
        self, start: int, taken: list[tuple[NDArray[np.floating], NDArray[np.int64]]], sampled: NDArray[np.bool_]
    ) -> Block:
        x = np.zeros((len(sampled), self.n_features), np.float32)  # memory of rows never written is never used
        norms = np.zeros(len(sampled))
        places, done = np.flatnonzero(sampled), 0
        for raw, _ in taken:
            here = places[done : done + len(raw)]
            block = self._block(start, raw, here, None)
            x[here], norms[here] = block.x, block.norms
            done += len(raw)
        y = np.concatenate([labels for _, labels in taken])
        return Block(start, x, y, norms, sampled, weights=self._weights_of(start, y))


def prepare(
    source: Source,
    preprocessing: Preprocessing,
    precision: Precision = "float32",
    processes: int = 1,
    weights: RowWeights | None = None,
) -> ArrayRows | StreamedRows:
    """Rows of `source` in training space, rounded to `precision`: in memory if they fit, else streamed.

    Each of `processes` processes on this machine is assumed to prepare a source of this size. `weights` are those of
    the rows.

    Raises:
        UsageError: an unknown precision, or one that cannot hold the bias column exactly.
    """
    column = np.full((1, 1), preprocessing.intercept, dtype=np.float32)
    rounded = widened(narrowed(column, precision))
    if not np.array_equal(rounded, column):
        raise UsageError(
            f"intercept is {preprocessing.intercept:g}, which {precision} cannot hold; nearest allowed: "
            f"{float(rounded[0, 0])!r}; give that, or precision float32"
        )
    n_features = source.n_features + bool(preprocessing.intercept)
    storage = np.dtype(STORAGE[precision])
    if not available_memory.fits(processes * storage.itemsize * source.n_rows * n_features):
        return StreamedRows(source.blocks, source.n_rows, n_features, preprocessing, precision, weights)
    x = aligned_empty((source.n_rows, n_features), storage)
    y, start = np.empty(source.n_rows, dtype=np.int64), 0
    for raw, labels in _prefetch(source.blocks(), n_features):
        here = slice(start, start + len(raw))
        if labels.ndim > y.ndim:
            y = np.empty((source.n_rows, labels.shape[1]), dtype=np.uint8)
        x[here], y[here] = narrowed(preprocessing.apply(raw), precision), labels
        start += len(raw)
    return ArrayRows(x, y, weights=None if weights is None else weights.of(0, y))


class ChainedRows(Rows):
    """The rows of several sets, one set after another."""

    def __init__(self, *sets: Rows) -> None:
        self._sets = sets
        self.n_rows = sum(rows.n_rows for rows in sets)
        self.n_features = sets[0].n_features
        self.units = any(rows.units for rows in sets)
        self.unit_rows = sum(rows.n_rows * rows.unit_rows for rows in sets) / max(1, self.n_rows)

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """All rows in order."""
        first = 0
        for rows in self._sets:
            for load in rows.lazy_blocks():
                yield partial(_moved, load, first)
            first += rows.n_rows

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """The blocks of each set with their part of the mask."""
        first = 0
        for rows in self._sets:
            for load in rows.sampled_blocks(sampled[first : first + rows.n_rows]):
                yield partial(_moved, load, first)
            first += rows.n_rows


def _moved(load: LazyBlock, first: int) -> Block:
    block = load()
    return replace(block, start=first + block.start)


class ChangedRows(Rows):
    """Rows of another set, each block changed when it is loaded."""

    def __init__(self, rows: Rows, n_features: int) -> None:
        self._rows = rows
        self.n_rows, self.n_features = rows.n_rows, n_features
        self.sampling_rate, self.observed = rows.sampling_rate, rows.observed
        self.units, self.unit_rows = rows.units, rows.unit_rows

    @property
    def n_local(self) -> int:
        """Number of rows in the shard of this process."""
        return self._rows.n_local

    @property
    def first(self) -> int:
        """Index of the first row of this shard among the rows of all processes."""
        return self._rows.first

    @abstractmethod
    def change(self, block: Block) -> Block:
        """A new block with other rows and `norms`; must not write to the block given.

        Rows outside the mask `block.sampled`, if it has one, may hold anything.
        """

    def _changed(self, load: LazyBlock) -> Block:
        return self.change(replace(load(), pairs=None))

    def _changed_sample(self, load: LazyBlock) -> Block:
        block = load()
        return self.change(block if block.bounds is None else block.compact())

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """All rows in order."""
        return (partial(self._changed, load) for load in self._rows.lazy_blocks())

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """The blocks of the other set with their part of the mask, changed."""
        return (partial(self._changed_sample, load) for load in self._rows.sampled_blocks(sampled))


class TranslatedRows(ChangedRows):
    """Rows minus a public vector, with a constant column appended.

    They are translated each time they are used; rows of people, when their block is loaded.

    Args:
        rows: the rows, n_features wide.
        shift: the vector, shape (n_features,).
        column: value of the constant column.
    """

    def __init__(self, rows: Rows, shift: NDArray[np.float64], column: float) -> None:
        super().__init__(rows, rows.n_features + 1)
        self.in_memory = rows.in_memory and not rows.units
        self._translation = Translation(shift.astype(np.float32), float(np.float32(column)))
        if self.units:
            return
        self._norms = np.empty(self.n_local)
        for block in rows.blocks():
            x = replace(block, translation=self._translation).x
            self._norms[block.start : block.start + len(x)] = row_norms(x)

    def change(self, block: Block) -> Block:
        """The same rows with their translation, one column wider."""
        if self.units:
            x = replace(block, translation=self._translation).x
            return replace(block, stored=x, norms=row_norms(x))
        here = slice(block.start, block.start + len(block.y))
        return replace(block, translation=self._translation, norms=self._norms[here])


def join(*sets: Rows) -> ArrayRows:
    """The rows of several sets in memory, one set after another."""
    blocks = [block for rows in sets for block in rows.blocks()]
    weights = None
    if any(block.weights is not None for block in blocks):
        weights = np.concatenate(
            [np.ones(len(block.y)) if block.weights is None else block.weights for block in blocks]
        )
    x, y = np.concatenate([block.x for block in blocks]), np.concatenate([block.y for block in blocks])
    return ArrayRows(x, y, weights=weights)
