"""One process's shard of the rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import LazyBlock, Rows
from linprobe.data.precision import Precision
from linprobe.data.preprocessing import Preprocessing
from linprobe.data.row_weights import RowWeights
from linprobe.data.rows import ArrayRows, StreamedRows, prepare
from linprobe.data.sources import SHARD_ROWS, Source
from linprobe.errors import UsageError
from linprobe.parallel.process_group import Group


class ShardRows(Rows):
    """One process's shard of the rows.

    Args:
        shard: the rows of this process.
        first: index of its first row among the rows of all processes.
        n_rows: number of rows in all processes.
    """

    def __init__(self, shard: Rows, first: int, n_rows: int) -> None:
        self._shard, self._first = shard, first
        self.n_rows, self.n_features = n_rows, shard.n_features
        self.in_memory, self.units, self.unit_rows = shard.in_memory, shard.units, shard.unit_rows

    @property
    def n_local(self) -> int:
        """Number of rows in the shard."""
        return self._shard.n_rows

    @property
    def first(self) -> int:
        """Index of the first row of this shard among the rows of all processes."""
        return self._first

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """The rows of the shard in order."""
        return self._shard.lazy_blocks()

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """The blocks of the shard with their part of the mask `sampled` (n_local,)."""
        return self._shard.sampled_blocks(sampled)


def shard_bounds(n_rows: int, group: Group) -> tuple[int, int]:
    """The first row of this process's shard of `n_rows` rows, and the first of the next.

    Raises:
        UsageError: more processes than blocks of `SHARD_ROWS` rows.
    """
    n_parts = -(-n_rows // SHARD_ROWS)
    if n_parts < group.size:
        raise UsageError(
            f"{group.size} processes were started for {n_rows} private rows; allowed: one for every "
            f"{SHARD_ROWS} of them; use --nproc-per-node {n_parts}"
        )
    first, stop = (min(n_rows, (group.rank + end) * n_parts // group.size * SHARD_ROWS) for end in (0, 1))
    return first, stop


def prepare_shard(
    source: Source,
    preprocessing: Preprocessing,
    precision: Precision,
    group: Group,
    weights: RowWeights | None = None,
) -> Rows:
    """`prepare` for the shard of `source` of this process. Shard sizes differ by `SHARD_ROWS` rows at most.

    Raises:
        UsageError: more processes than blocks of `SHARD_ROWS` rows.
    """
    if group.size == 1:
        return prepare(source, preprocessing, precision, weights=weights)
    first, stop = shard_bounds(source.n_rows, group)
    return ShardRows(prepare_part(source, first, stop, preprocessing, precision, group, weights), first, source.n_rows)


def prepare_part(
    source: Source,
    first: int,
    stop: int,
    preprocessing: Preprocessing,
    precision: Precision,
    group: Group,
    weights: RowWeights | None,
) -> ArrayRows | StreamedRows:
    """`prepare` for rows `first` to `stop` of `source`, those of this process; `weights` are those of all rows."""
    mine = None if weights is None else weights.shard(first, stop)
    return prepare(source.shard(first, stop), preprocessing, precision, group.local_size, mine)
