"""Rows in training space, read block by block: in memory or streamed from a file, all of them or one shard.

With people as units, the rest of the code treats a person as it treats a row: `n_rows`, places, samples and
shards are of people, and a block holds whole people. Blocks begin at fixed places among the people. So a person whose
place is empty changes only one block, for any number of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linprobe.data.blocks import (
    BLOCK_ROWS,
    SHARD_ROWS,
    STORAGE,
    Block,
    LazyBlock,
    Precision,
    Preprocessing,
    RawBlocks,
    Source,
    Translation,
    aligned_empty,
    narrowed,
    paired,
    row_norms,
    whole_blocks,
    widened,
)
from linprobe.data.labels import Bounds
from linprobe.data.row_weights import RowWeights, weights_in_people
from linprobe.errors import UsageError
from linprobe.parallel import available_memory
from linprobe.parallel.array_api import Floats, Indices, Mask, Reals, Singles
from linprobe.parallel.process_group import Group
from linprobe.parallel.threads import in_slices, n_threads, prefetched, share

EVEN_ROWS = 2 * BLOCK_ROWS  # rows of two blocks: the last rows of a pass are divided into pairs of blocks
STEP_ROWS = BLOCK_ROWS // 8  # rows of a float32 sum, of which sizes of blocks are multiples
SAMPLED_ROWS = 1024  # in a block of a sample, about; it reads more places where few of them are in the sample
BLOCK_UNITS = 128  # people in a block of all rows
SAMPLED_UNITS = 1024  # people whose sampled rows are one block
PREFETCHED_BLOCKS = 8
PREFETCHED_BYTES = 64 << 20
FAR = 1e100  # norm of an empty place: a clip factor that is 0 in float32; its square is finite


def block_sizes(n_rows: int) -> list[int]:
    """Rows in each block of a pass, the last ones in an even number of blocks, which two threads end at the same time.

    Sizes depend on places from the last multiple of SHARD_ROWS on, so that shards change none.
    """
    last = n_rows % SHARD_ROWS
    whole = [min(BLOCK_ROWS, n_rows - last - start) for start in range(0, n_rows - last, BLOCK_ROWS)]
    n_blocks = 2 * -(-last // EVEN_ROWS) if last > BLOCK_ROWS else 1
    size = -(-last // (n_blocks * STEP_ROWS)) * STEP_ROWS
    return whole + [min(size, last - start) for start in range(0, last, size or 1)]


class Rows(ABC):
    """Rows that can be read block by block, any number of times. Each process has its shard of them.

    Numbers and places are of units. A view has the same rows with other attributes; views can be combined.
    """

    n_rows: int  # units in all processes, outside the sample included; public
    n_features: int  # in training space
    first = 0  # index of the first unit of this process among all units
    bounds: Bounds | None = None  # rows of person u are bounds[u] to bounds[u + 1]; None if each row is a unit
    units = False  # whether blocks may hold people with several rows
    unit_rows = 1.0  # mean number of rows of a unit; private, for the number of threads only
    sampling_rate = 1.0  # probability with which Poisson sampling selected each unit
    observed = True  # whether the blocks contain all units, outside the sample included
    in_memory = False  # whether loading a block takes no time
    n_tracked: int | None = None  # first units of this process whose contributions are recorded; None for all
    even = False  # whether rows have `weights_in_people`
    _n_local: int | None = None
    _changes: tuple[Callable[[Block], Block], ...] = ()
    _mask: Mask | None = None
    _present: Mask | None = None

    @abstractmethod
    def _whole(self) -> Iterator[LazyBlock]:
        """All units of this process in order."""

    def _sampled(self, sampled: Mask) -> Iterator[LazyBlock]:
        """Blocks from multiples of `SHARD_ROWS` with their part of `sampled` (n_local,); others may hold anything."""
        raise NotImplementedError(f"{type(self).__name__} reads all rows of a block")

    def _people(self, bounds: Bounds, size: int, sampled: Mask | None) -> Iterator[LazyBlock]:
        """Blocks of `size` people each: all of them, or the people `sampled`, with the mask."""
        raise NotImplementedError(f"{type(self).__name__} has no people")

    @property
    def n_local(self) -> int:
        return self.n_rows if self._n_local is None else self._n_local

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """All units in order, with the sample's mask, or the sample, unobserved; call each once, from any thread."""
        mask, present = self._mask, self._present
        sampled = None if mask is None or self.observed else mask if present is None else mask & present
        if self.bounds is not None:
            loads = self._people(self.bounds, BLOCK_UNITS if sampled is None else SAMPLED_UNITS, sampled)
        else:
            loads = self._whole() if sampled is None else self._sampled(sampled)
        if not self._changes and present is None and (mask is None or not self.observed):
            return loads
        return (partial(self._finished, load) for load in loads)

    def blocks(self) -> Iterator[Block]:
        return (load() for load in self.lazy_blocks())

    def _finished(self, load: LazyBlock) -> Block:
        block = load()
        if self._changes:
            block = block.compact() if block.sampled is not None and block.bounds is not None else block
            block = replace(block, pairs=None)
        for change in self._changes:
            block = change(block)
        here = slice(block.start, block.start + block.n_units)
        if self._mask is not None and self.observed:
            block = replace(block, sampled=self._mask[here])
        return block if self._present is None else _without(block, self._present[here])

    def _view(self, **changed: Any) -> Self:
        view = copy(self)
        vars(view).update(changed)
        return view

    def of_people(self, bounds: Bounds, *, even: bool = False) -> Self:
        n = len(bounds) - 1
        mean = self.n_local / max(1, n)
        view = self._view(bounds=bounds, even=even, units=True, unit_rows=mean, n_rows=n, _n_local=n, in_memory=False)
        return view._view(_kept={})  # of blocks of these people

    def as_shard(self, first: int, n_rows: int) -> Self:
        return self._view(first=first, n_rows=n_rows, _n_local=self.n_local)

    def sample(self, mask: Mask, rate: float, *, observed: bool) -> Self:
        """One Poisson sample at `rate`, as `mask` (n_local,); `n_rows` stays the number of all units, which is public.

        Blocks that are `observed` contain all units, so that those outside the sample are charged too.
        """
        return self._view(_mask=mask, sampling_rate=rate, observed=observed)

    def changed(self, change: Callable[[Block], Block], n_features: int | None = None, in_memory: bool = False) -> Self:
        """The rows with each block changed when loaded; rows outside `block.sampled` may hold anything."""
        n_features = self.n_features if n_features is None else n_features
        return self._view(_changes=(*self._changes, change), n_features=n_features, in_memory=in_memory)

    def translated(self, shift: Reals, column: float) -> Self:
        """The rows minus a public `shift` (n_features,), and a constant `column`, at each use; people's when loaded."""
        translation = Translation(shift.astype(np.float32), float(np.float32(column)))
        norms = None
        if not self.units:
            norms = np.empty(self.n_local)
            for block in self.blocks():
                x = replace(block, translation=translation).x
                norms[block.start : block.start + len(x)] = row_norms(x)
        change = partial(_translated, translation=translation, norms=norms)
        return self.changed(change, self.n_features + 1, in_memory=self.in_memory and not self.units)

    def emptied(self, present: Mask) -> Self:
        """The rows with empty places where not `present` (n_local,): a neighbour under zero-out, for audits and tests.

        Places are emptied after all other changes, and whatever the mask of a sample is: code that changes rows, or
        forgets the mask, still adds nothing of an absent unit. The place of a row holds zeros, with a norm so large
        that its clip factor is zero in every geometry and around an origin. A person who is absent has no rows.
        """
        return self._view(_present=present, in_memory=False)


def _without(block: Block, present: Mask) -> Block:
    if present.all():
        return block
    if block.bounds is not None:
        return replace(replace(block, sampled=present).compact(), sampled=block.sampled)
    stored = np.array(block.stored if block.translation is None else block.x)
    stored[~present] = 0
    return replace(block, stored=stored, norms=np.where(present, block.norms, FAR), translation=None)


def _translated(block: Block, translation: Translation, norms: Reals | None) -> Block:
    """The same rows with their translation, one column wider; `norms` are norms of all rows, not of people."""
    if norms is None:
        x = replace(block, translation=translation).x
        return replace(block, stored=x, norms=row_norms(x))
    return replace(block, translation=translation, norms=norms[block.start : block.start + len(block.y)])


class ArrayRows(Rows):
    """Rows in memory, (n_rows, n_features) in training space, as they are stored, with labels as in `Block`."""

    in_memory = True
    memory: tuple[NDArray[Any], NDArray[Any]] | None = None  # of loaded rows: storage with room left, and labels

    def __init__(self, x: NDArray[Any], y: ArrayLike, weights: Reals | None = None, norms: Reals | None = None) -> None:
        self.x, self.weights = x, weights
        y = np.asarray(y)
        plain = np.float32 if y.dtype.kind == "f" else np.int64 if y.ndim == 1 else np.uint8
        self.y = y.astype(plain, copy=False)
        self.n_rows, self.n_features = x.shape
        self._kept: dict[tuple[int, int], Block] = {}
        if norms is None:
            norms = np.empty(self.n_rows)
            for start in range(0, self.n_rows, BLOCK_ROWS):
                here = slice(start, start + BLOCK_ROWS)
                norms[here] = row_norms(widened(x[here]))
        self.norms = norms

    def of_people(self, bounds: Bounds, *, even: bool = False) -> Self:
        view = super().of_people(bounds, even=even)
        return view._view(weights=weights_in_people(bounds, self.y, self.weights)) if even else view

    def emptied(self, present: Mask) -> Self:
        """As for all rows. Places are empty in memory too, so that a copy on a device has them."""
        view = super().emptied(present)
        if self.bounds is None:
            view.x, view.norms = self.x.copy(), np.where(present, self.norms, FAR)
            view.x[~present] = 0
            return view
        sizes = np.diff(self.bounds)
        keep = np.repeat(present, sizes)
        view.x, view.y, view.norms = self.x[keep], self.y[keep], self.norms[keep]
        view.weights = None if self.weights is None else self.weights[keep]
        view.bounds, view._kept = np.concatenate([[0], np.cumsum(sizes * present)]), {}
        return view

    def _block(self, start: int, stop: int, sampled: Mask | None = None) -> Block:
        here = slice(start, stop)
        weights = None if self.weights is None else self.weights[here]
        mask = None if sampled is None else sampled[here]
        return Block(start, self.x[here], self.y[here], self.norms[here], mask, weights=weights)

    def _whole(self) -> Iterator[LazyBlock]:
        start = 0
        for size in block_sizes(len(self.y)):
            yield partial(self._block, start, start + size)
            start += size

    def _sampled(self, sampled: Mask) -> Iterator[LazyBlock]:
        """All rows with their mask; no row is copied. The fewer rows are in the sample, the larger are the blocks."""
        threads, n_sampled, n_rows = n_threads(), int(np.count_nonzero(sampled)), len(self.y)
        # equal shares for all threads; a last block, of less than a shard, may be added
        n_blocks = threads * max(1, round(n_sampled / (SAMPLED_ROWS * threads)))
        n = max(1, round(n_rows / (SHARD_ROWS * n_blocks))) * SHARD_ROWS
        for start in range(0, n_rows, n):
            yield partial(self._block, start, start + n, sampled)

    def _people(self, bounds: Bounds, size: int, sampled: Mask | None) -> Iterator[LazyBlock]:
        for start in range(0, len(bounds) - 1, size):
            mask = None if sampled is None else sampled[start : start + size]
            yield partial(self._block_of_people, start, bounds[start : start + size + 1], mask)

    def _block_of_people(self, start: int, bounds: Bounds, sampled: Mask | None) -> Block:
        key = start, len(bounds)
        if key not in self._kept:
            rows = self._block(int(bounds[0]), int(bounds[-1]))
            block = replace(rows, start=start, bounds=bounds - bounds[0])
            self._kept[key] = replace(block, pairs=paired(block))
        return replace(self._kept[key], sampled=sampled)  # a copy, as a block keeps its widened rows


def _prefetch(blocks: RawBlocks, n_features: int) -> RawBlocks:
    return prefetched(blocks, max(1, min(PREFETCHED_BLOCKS, PREFETCHED_BYTES // (4 * BLOCK_ROWS * n_features))))


class StreamedRows(Rows):
    """Rows that `read` gives again in every pass, rounded to `precision`, equal to rows in memory bit for bit."""

    def __init__(
        self,
        read: Callable[[], RawBlocks],
        n_rows: int,
        n_features: int,
        preprocessing: Preprocessing,
        precision: Precision = "float32",
        weights: RowWeights | None = None,
    ) -> None:
        self._read, self._weights, self._rows_read = read, weights, n_rows
        self.n_rows, self.n_features, self._width = n_rows, n_features, n_features
        self._preprocessing, self._precision = preprocessing, precision

    def _raw(self, sizes: Iterable[int] | None = None) -> RawBlocks:
        return _prefetch(whole_blocks(self._read(), sizes), self._width)

    def _block(
        self,
        start: int,
        raw: NDArray[Any],
        y: NDArray[Any],
        weights: Reals | None = None,
        bounds: Bounds | None = None,
        sampled: Mask | None = None,
    ) -> Block:
        x = widened(narrowed(self._preprocessing.apply(raw), self._precision))
        return Block(start, x, y, row_norms(x), sampled, bounds, weights=weights)

    def _weights_of(self, start: int, y: Indices) -> Reals | None:
        return None if self._weights is None else self._weights.of(start, y)

    def _whole(self) -> Iterator[LazyBlock]:
        """All rows in order. The iterator reads them; a lazy block preprocesses its own."""
        start = 0
        for raw, y in self._raw(block_sizes(self._rows_read)):
            yield partial(self._block, start, raw, y, self._weights_of(start, y))
            start += len(y)

    def _sampled(self, sampled: Mask) -> Iterator[LazyBlock]:
        """The blocks of `ArrayRows` with zeros outside the sample. Reads all rows, preprocesses the sampled rows."""
        start, taken = 0, []
        for raw, y in self._raw():
            taken.append((raw[sampled[start : start + len(y)]], y))
            start += len(y)
            if start % SHARD_ROWS == 0 or start == self._rows_read:
                first = start - sum(len(labels) for _, labels in taken)
                yield partial(self._sampled_block, first, taken, sampled[first:start])
                taken = []

    def _sampled_block(self, start: int, taken: list[tuple[NDArray[Any], NDArray[Any]]], sampled: Mask) -> Block:
        x = np.zeros((len(sampled), self._width), np.float32)  # memory of rows never written is never used
        norms = np.zeros(len(sampled))
        places, done = np.flatnonzero(sampled), 0
        for raw, _ in taken:
            here = places[done : done + len(raw)]
            block = self._block(start, raw, here)
            x[here], norms[here] = block.x, block.norms
            done += len(raw)
        y = np.concatenate([labels for _, labels in taken])
        return Block(start, x, y, norms, sampled, weights=self._weights_of(start, y))

    def _people(self, bounds: Bounds, size: int, sampled: Mask | None) -> Iterator[LazyBlock]:
        parts = [bounds[start : start + size + 1] for start in range(0, len(bounds) - 1, size)]
        blocks = self._raw([int(part[-1] - part[0]) for part in parts])
        for number, (part, (raw, y)) in enumerate(zip(parts, blocks, strict=False)):
            sizes, mask = np.diff(part), None
            weights = self._weights_of(int(part[0]), y)
            weights = weights_in_people(part - part[0], y, weights) if self.even else weights
            if sampled is not None:
                mask = sampled[number * size : (number + 1) * size]
                keep, sizes = np.repeat(mask, sizes), sizes * mask
                raw, y, weights = raw[keep], y[keep], None if weights is None else weights[keep]
            ends = np.concatenate([[0], np.cumsum(sizes)])
            yield partial(self._block, number * size, raw, y, weights, ends, mask)


class ChainedRows(Rows):
    """Private rows, and after them public rows that are sampled and clipped alike."""

    def __init__(self, *sets: Rows) -> None:
        self._sets, self.n_tracked = sets, sets[0].n_local
        self.n_rows = sum(rows.n_rows for rows in sets)
        self.n_features = sets[0].n_features
        self.units = any(rows.units for rows in sets)
        self.unit_rows = sum(rows.n_rows * rows.unit_rows for rows in sets) / max(1, self.n_rows)

    def _whole(self) -> Iterator[LazyBlock]:
        first = 0
        for rows in self._sets:
            yield from (partial(_moved, load, first) for load in rows.lazy_blocks())
            first += rows.n_rows

    def _sampled(self, sampled: Mask) -> Iterator[LazyBlock]:
        first = 0
        for rows in self._sets:
            part = rows.sample(sampled[first : first + rows.n_rows], self.sampling_rate, observed=False)
            yield from (partial(_moved, load, first) for load in part.lazy_blocks())
            first += rows.n_rows


def _moved(load: LazyBlock, first: int) -> Block:
    block = load()
    return replace(block, start=first + block.start)


def join(*sets: Rows) -> ArrayRows:
    blocks = [block for rows in sets for block in rows.blocks()]
    x, y = np.concatenate([block.x for block in blocks]), np.concatenate([block.y for block in blocks])
    if all(block.weights is None for block in blocks):
        return ArrayRows(x, y)
    weights = [np.ones(len(block.y)) if block.weights is None else block.weights for block in blocks]
    return ArrayRows(x, y, weights=np.concatenate(weights))


def rows_in_memory(rows: Rows, device: str) -> ArrayRows:
    """The same rows. Raises UsageError for streamed rows, which do not fit into the memory of this machine."""
    if not isinstance(rows, ArrayRows):
        raise UsageError(f"the rows do not fit into this machine's memory, as device {device!r} needs; use cpu")
    return rows


def check_column(intercept: float, precision: Precision) -> None:
    """UsageError for an unknown precision, or one that cannot hold the bias column exactly."""
    column = np.full((1, 1), intercept, dtype=np.float32)
    rounded = widened(narrowed(column, precision))
    if not np.array_equal(rounded, column):
        raise UsageError(
            f"intercept is {intercept:g}, which {precision} cannot hold; nearest allowed: {float(rounded[0, 0])!r}; "
            "give that, or precision float32"
        )


def prepare(
    source: Source,
    preprocessing: Preprocessing,
    precision: Precision = "float32",
    processes: int = 1,
    weights: RowWeights | None = None,
    *,
    streamed: bool = False,
    room: bool = False,
    spent: Rows | None = None,
) -> Rows:
    """Rows of `source` in training space, rounded to `precision`: in memory if they fit in it, else streamed.

    With `room` for a column, a later call can take over the memory of the unit rows, which are then `spent`.
    `processes` of this machine have a source of this size each.
    """
    check_column(preprocessing.intercept, precision)
    shape, storage = (source.n_rows, source.n_features + bool(preprocessing.intercept)), np.dtype(STORAGE[precision])
    memory = spent.memory if isinstance(spent, ArrayRows) and not streamed else None
    if memory is not None and memory[0].shape == shape:
        held, y = memory
        if precision == "float32":
            return _mapped(held, y, source.n_features, preprocessing, weights)
        return _loaded(source, preprocessing, precision, held, weights)
    if streamed or not available_memory.suffices(processes * storage.itemsize * shape[0] * (shape[1] + room)):
        return StreamedRows(source.blocks, *shape, preprocessing, precision, weights)
    held = aligned_empty((shape[0], shape[1] + room), storage)
    rows = _loaded(source, preprocessing, precision, held[:, : shape[1]], weights)
    rows.memory = held, rows.y
    return rows


def _mapped(
    x: Singles, y: NDArray[Any], width: int, preprocessing: Preprocessing, weights: RowWeights | None
) -> ArrayRows:
    """Rows in training space, in place of the unit rows in the first `width` columns of `x`."""
    norms = np.empty(len(x))

    def map_block(here: slice) -> None:
        preprocessing.apply(x[here, :width], out=x[here], unit=True)
        norms[here] = row_norms(x[here])

    in_slices(len(x), BLOCK_ROWS, map_block)
    return ArrayRows(x, y, weights=None if weights is None else weights.of(0, y), norms=norms)


def _loaded(
    source: Source, preprocessing: Preprocessing, precision: Precision, x: NDArray[Any], weights: RowWeights | None
) -> ArrayRows:
    """The rows of `source` in memory, in the storage `x`. Raises ValueError if the source gives another number."""
    norms, labels = np.empty(len(x)), list[NDArray[Any]]()

    def read() -> Iterator[Callable[[], Any]]:
        start = 0
        for raw, y in _prefetch(source.blocks(), source.n_features):
            labels.append(y)
            yield partial(tuple, (start, raw))
            start += len(y)

    def keep(raw: tuple[int, Floats]) -> None:
        start, rows = raw
        here = slice(start, start + len(rows))
        stored = x[here]
        if precision == "float32":
            preprocessing.apply(rows, out=stored)
        else:
            stored[...] = narrowed(preprocessing.apply(rows), precision)
        norms[here] = row_norms(widened(stored))

    share(read(), [keep] * n_threads())
    y = np.concatenate(labels)
    if len(y) != len(x):
        raise ValueError(f"the source gave {len(y)} rows; allowed: {len(x)}, as it states")
    return ArrayRows(x, y, weights=None if weights is None else weights.of(0, y), norms=norms)


def row_parts(n_units: int, group: Group, shard_units: int | None = None) -> int:
    """The number of parts that processes divide among them. Raises UsageError: more processes than parts."""
    shard_units = shard_units or SHARD_ROWS
    n_parts = -(-n_units // shard_units)
    if n_parts < group.size:
        raise UsageError(
            f"{group.size} processes were started for {n_units} private rows or people; allowed: one for every "
            f"{shard_units} of them; use --nproc-per-node {n_parts}"
        )
    return n_parts


def prepare_shard(
    source: Source,
    bounds: Bounds | None,
    preprocessing: Preprocessing,
    precision: Precision,
    group: Group,
    weights: RowWeights | None = None,
    *,
    even: bool = False,
    streamed: bool = False,
    shard_units: int | None = None,
    room: bool = False,
    spent: Rows | None = None,
) -> Rows:
    """`prepare` for the shard of this process: of rows, or of people if there are `bounds`.

    A shard begins at a multiple of `shard_units` units; the sizes of two shards differ by `shard_units` at most. With
    None, for `SHARD_ROWS`, the number of processes changes no bit of a sum. UsageError: more processes than parts.
    """
    if group.size == 1:
        whole = prepare(source, preprocessing, precision, weights=weights, streamed=streamed, room=room, spent=spent)
        return whole if bounds is None else whole.of_people(bounds, even=even)
    shard_units = shard_units or SHARD_ROWS
    n_units = source.n_rows if bounds is None else len(bounds) - 1
    n_parts = row_parts(n_units, group, shard_units)
    first, stop = (min(n_units, (group.rank + end) * n_parts // group.size * shard_units) for end in (0, 1))
    here = (first, stop) if bounds is None else (int(bounds[first]), int(bounds[stop]))
    own = None if weights is None else weights.shard(*here)
    shard = source.shard(*here)
    rows = prepare(shard, preprocessing, precision, group.local_size, own, streamed=streamed, room=room, spent=spent)
    if bounds is not None:
        rows = rows.of_people(bounds[first : stop + 1] - here[0], even=even)
    return rows.as_shard(first, n_units)
