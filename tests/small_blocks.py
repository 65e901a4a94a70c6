"""Rows in memory in smaller blocks than those of the product, which change no result beyond rounding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from linprobe.data.blocks import BLOCK_ROWS, SHARD_ROWS, LazyBlock
from linprobe.data.rows import ArrayRows
from linprobe.parallel.array_api import Mask


class SmallBlocks(ArrayRows):
    """Blocks of `block_rows` rows; of a sample, of as many blocks as a shard has."""

    def __init__(self, x: Any, y: Any, block_rows: int) -> None:
        super().__init__(x, y)
        self.block_rows = block_rows

    def _whole(self) -> Iterator[LazyBlock]:
        for start in range(0, len(self.y), self.block_rows):
            yield partial(self._block, start, start + self.block_rows)

    def _sampled(self, sampled: Mask) -> Iterator[LazyBlock]:
        size = SHARD_ROWS // BLOCK_ROWS * self.block_rows
        for start in range(0, len(self.y), size):
            yield partial(self._block, start, start + size, sampled)
