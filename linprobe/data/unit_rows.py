"""Rows of people: all rows of one person are one unit, which is sampled, clipped and counted as a whole.

To the rest of the code, the people are what rows are otherwise: `n_rows`, places, samples and shards are of people, and
a block holds whole people. Blocks begin at fixed places among the people. So a person whose place is empty changes only
the block of that place, whatever number of rows the person had.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block, LazyBlock, Pairs, Rows
from linprobe.data.owners import Bounds
from linprobe.data.precision import STORED, Precision, StoredRows, widened
from linprobe.data.preprocessing import Preprocessing
from linprobe.data.row_weights import RowWeights
from linprobe.data.rows import ArrayRows, StreamedRows, prepare
from linprobe.data.shards import ShardRows, prepare_part, prepare_shard, shard_bounds
from linprobe.data.sources import Source
from linprobe.native import LIBRARY, KernelPeople
from linprobe.parallel.array_api import Array, double, namespace
from linprobe.parallel.process_group import Group

BLOCK_UNITS = 128  # people in a block of all rows
SAMPLED_UNITS = 1024  # people whose sampled rows are one block
PAIRED_ROWS = 16  # people with more rows have no inner products of pairs; PAIRED in native/clipped_sum.c
PAIRS_AT_ONCE = 1024


class UnitRows(Rows):
    """The rows of people.

    Args:
        rows: the rows of one person next to each other.
        bounds: rows of person u are bounds[u] to bounds[u + 1], shape (n_people + 1,).
    """

    units = True

    def __init__(self, rows: ArrayRows | StreamedRows, bounds: Bounds) -> None:
        self.rows, self.bounds = rows, bounds
        self.n_rows, self.n_features = len(bounds) - 1, rows.n_features
        self.unit_rows = rows.n_rows / max(1, self.n_rows)
        self._kept: dict[tuple[int, int], Block] = {}

    def _block(self, load: LazyBlock, start: int, bounds: Bounds) -> Block:
        """A block of people; blocks of rows in memory are kept, with the inner products of their rows."""
        if not isinstance(self.rows, ArrayRows):
            return _of_units(load, start, bounds)
        kept, key = self._kept, (start, len(bounds))
        if key not in kept:
            block = _of_units(load, start, bounds)
            kept[key] = replace(block, pairs=paired(block))
        return replace(kept[key])  # a copy, as a block keeps its widened rows

    def _sampled_block(self, load: LazyBlock, start: int, bounds: Bounds, sampled: NDArray[np.bool_]) -> Block:
        return replace(self._block(load, start, bounds), sampled=sampled)

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """All people in order, `BLOCK_UNITS` in a block."""
        starts = range(0, self.n_rows, BLOCK_UNITS)
        parts = [self.bounds[start : start + BLOCK_UNITS + 1] for start in starts]
        loads = self.rows.cut([int(part[-1] - part[0]) for part in parts])
        for start, part, load in zip(starts, parts, loads, strict=False):
            yield partial(self._block, load, start, part - part[0])

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """`SAMPLED_UNITS` people in a block, with their part of the mask.

        Rows in memory are not copied. Of streamed people outside the sample, there are no rows.
        """
        stream = not isinstance(self.rows, ArrayRows)
        starts = range(0, self.n_rows, SAMPLED_UNITS)
        parts = [self.bounds[start : start + SAMPLED_UNITS + 1] for start in starts]
        keep = np.repeat(sampled, np.diff(self.bounds)) if stream else None
        loads = self.rows.cut([int(part[-1] - part[0]) for part in parts], keep)
        for start, part, load in zip(starts, parts, loads, strict=False):
            here = sampled[start : start + SAMPLED_UNITS]
            bounds = np.concatenate([[0], np.cumsum(np.diff(part) * here)]) if stream else part - part[0]
            yield partial(self._sampled_block, load, start, bounds, here)


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
        return _by_kernel(LIBRARY, StoredRows(np.ascontiguousarray(stored), pairs.places), pairs)
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


def _by_kernel(library: ctypes.CDLL, rows: StoredRows, pairs: Pairs) -> NDArray[np.float64]:
    """`inner_products` by the kernel."""
    bounds = np.concatenate([[0], np.cumsum(pairs.counts)])
    found = np.empty(len(pairs.first))
    wide = np.empty((PAIRED_ROWS, rows.shape[1]), np.float32)
    people = KernelPeople(bounds=bounds.ctypes.data, n=len(pairs.counts))
    library.linprobe_inner_products(
        ctypes.byref(rows.for_kernel()), wide.ctypes.data, ctypes.byref(people), found.ctypes.data
    )
    return found


def _of_units(load: LazyBlock, start: int, bounds: Bounds) -> Block:
    return replace(load(), start=start, bounds=bounds)


def prepare_units(
    source: Source,
    bounds: Bounds | None,
    preprocessing: Preprocessing,
    precision: Precision,
    group: Group,
    weights: RowWeights | None = None,
) -> Rows:
    """`prepare_shard` of the rows of people; of rows if `bounds` is None. A person is in one shard.

    Raises:
        UsageError: as in `prepare_shard`; there is one process at most for every `SHARD_ROWS` people.
    """
    if bounds is None:
        return prepare_shard(source, preprocessing, precision, group, weights)
    if group.size == 1:
        return UnitRows(prepare(source, preprocessing, precision, weights=weights), bounds)
    first, stop = shard_bounds(len(bounds) - 1, group)
    mine = bounds[first : stop + 1]
    first_row, stop_row = int(mine[0]), int(mine[-1])
    shard = prepare_part(source, first_row, stop_row, preprocessing, precision, group, weights)
    return ShardRows(UnitRows(shard, mine - mine[0]), first, len(bounds) - 1)
