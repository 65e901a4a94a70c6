"""Raw rows with labels, before preprocessing: the protocol of a source, arrays, and several sources in a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 1024
SHARD_ROWS = 4 * BLOCK_ROWS  # shards begin at multiples of this
EVEN_ROWS = 2 * BLOCK_ROWS  # the last rows, fewer than SHARD_ROWS, are divided into two blocks for so many of them
STEP_ROWS = BLOCK_ROWS // 8  # rows of a float32 sum, of which sizes of blocks are multiples

RawBlocks = Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]


def block_sizes(n_rows: int) -> list[int]:
    """Rows in each block of a pass over `n_rows` rows.

    The last rows are in an even number of blocks of about the same size, which two threads finish at the same time.
    Sizes depend on places from the last multiple of SHARD_ROWS on, so that shards change none.
    """
    last = n_rows % SHARD_ROWS
    whole = [min(BLOCK_ROWS, n_rows - last - start) for start in range(0, n_rows - last, BLOCK_ROWS)]
    n_blocks = 2 * -(-last // EVEN_ROWS) if last > BLOCK_ROWS else 1
    size = -(-last // (n_blocks * STEP_ROWS)) * STEP_ROWS
    return whole + [min(size, last - start) for start in range(0, last, size or 1)]


def whole_blocks(blocks: RawBlocks, sizes: Iterable[int] | None = None) -> RawBlocks:
    """The same rows in blocks of the given `sizes`, or of `BLOCK_ROWS`; the last may be shorter.

    Blocks of the right size are not copied.
    """
    wanted = repeat(BLOCK_ROWS) if sizes is None else iter(sizes)
    waiting: list[tuple[NDArray[np.floating], NDArray[np.int64]]] = []
    missing = next(wanted, BLOCK_ROWS)
    for x, y in blocks:
        start = 0
        while len(y) - start >= missing:
            waiting.append((x[start : start + missing], y[start : start + missing]))
            start += missing
            yield _concatenated(waiting)
            waiting, missing = [], next(wanted, BLOCK_ROWS)
        if start < len(y):
            waiting.append((x[start:], y[start:]))
            missing -= len(y) - start
    if waiting:
        yield _concatenated(waiting)


def _concatenated(
    blocks: list[tuple[NDArray[np.floating], NDArray[np.int64]]],
) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])


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

    def __init__(self, x: NDArray[np.floating], y: NDArray[np.int64]) -> None:
        self._x, self._y = x, y
        self.n_rows, self.n_features = x.shape

    def shard(self, start: int, stop: int) -> ArraySource:
        """The rows from `start` up to `stop`."""
        return ArraySource(self._x[start:stop], self._y[start:stop])

    def blocks(self) -> RawBlocks:
        """All rows in blocks."""
        for start in range(0, self.n_rows, BLOCK_ROWS):
            here = slice(start, start + BLOCK_ROWS)
            yield self._x[here], self._y[here]


class ChainedSource:
    """The rows of several sources, one after another."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self.n_rows = sum(source.n_rows for source in sources)
        self.n_features = sources[0].n_features

    def shard(self, start: int, stop: int) -> ChainedSource:
        """The rows from `start` up to `stop`."""
        shards, first = [], 0
        for source in self._sources:
            low, high = max(start - first, 0), min(stop - first, source.n_rows)
            if low < high:
                shards.append(source.shard(low, high))
            first += source.n_rows
        return ChainedSource(*shards)

    def blocks(self) -> RawBlocks:
        """All rows in blocks."""
        for source in self._sources:
            yield from source.blocks()
