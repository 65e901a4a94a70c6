"""Blocks of rows, and the interface of everything that is read block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.precision import StoredRows, Translation
from linprobe.parallel.array_api import Array


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


class Blocks(ABC):
    """Rows that can be read block by block, any number of times.

    Where the rows of a person are one unit (`linprobe.data.unit_rows`), all numbers and places below are of people:
    each stands for one row otherwise.

    Attributes:
        n_rows: number of rows in all processes, outside the sample included; public.
        sampling_rate: probability with which Poisson sampling selected each row; 1 without sampling.
        observed: whether the blocks contain all rows, outside the sample included.
        in_memory: whether its rows are at hand, so that loading a block takes no time.
        units: whether blocks may hold people with several rows.
        unit_rows: mean number of rows of a unit; private, for the number of threads only.
    """

    n_rows: int
    n_features: int
    sampling_rate: float = 1.0
    observed: bool = True
    in_memory: bool = False
    units: bool = False
    unit_rows: float = 1.0

    @abstractmethod
    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """The rows of this process in order.

        Lazy blocks are independent: call them in any order and from any thread, each at most once.
        """

    def blocks(self) -> Iterator[Block]:
        """The rows of this process in order."""
        return (load() for load in self.lazy_blocks())

    @property
    def n_local(self) -> int:
        """Number of rows in the shard of this process."""
        return self.n_rows

    @property
    def first(self) -> int:
        """Index of the first row of this shard among the rows of all processes."""
        return 0


class Rows(Blocks):
    """Rows that can be sampled."""

    @abstractmethod
    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """Blocks with their part of the mask `sampled` (n_local,), which begin at multiples of `SHARD_ROWS`.

        Rows outside the sample may hold anything.
        """
