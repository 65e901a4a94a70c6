"""Rows in training space: normalised, centred, streamed in blocks, from memory or from a file.

Every transformation here acts on one row at a time with public constants only, so it costs no privacy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK_ROWS = 1024
IN_MEMORY_BYTES = 4 << 30
SMALLEST_FLOAT32_NORM = 1e-30


class Block(NamedTuple):
    """Consecutive rows: `x` (b, n_features) float32, `y` (b,) int64, `norms` (b,) float64, L2 norms of `x`."""

    start: int
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    norms: NDArray[np.float64]


class Rows(Protocol):
    """Anything that can be passed over, block by block, any number of times."""

    n_rows: int
    n_features: int

    def blocks(self) -> Iterator[Block]:
        """All rows in order."""


def row_norms(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """L2 norm of each row, accumulated in float64, shape (n,)."""
    squared: NDArray[np.float64] = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    return np.sqrt(squared)


def normalise_rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each row divided by its L2 norm; a zero row stays zero."""
    norms = row_norms(x)
    extreme = (norms > 0) & ((norms < SMALLEST_FLOAT32_NORM) | (norms > 1 / SMALLEST_FLOAT32_NORM))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=(norms > 0) & ~extreme)
    unit = x * inverse[:, None].astype(np.float32)
    # the inverse of such a norm is no float32
    unit[extreme] = (x[extreme].astype(np.float64) / norms[extreme, None]).astype(np.float32)
    return unit


def row_keys(blocks: Iterable[NDArray[np.floating]]) -> Iterator[bytes]:
    """A digest of each row in half precision, by which equal rows of two files are found."""
    for x in blocks:
        with np.errstate(over="ignore"):
            half = np.ascontiguousarray(x, dtype=np.float16)
        for row in half:
            yield hashlib.blake2b(row.data, digest_size=16).digest()


@dataclass(frozen=True)
class Preprocessing:
    """From raw feature rows to training space: L2-normalise, subtract a public centre and renormalise, add a bias.

    Attributes:
        centre: public mean of normalised rows, shape (n_features,), or None.
        centred_norm: public mean norm of centred rows before they are renormalised; 1 without a centre.
        intercept: value of the constant column appended last; 0 appends none. It counts in a row's norm.
    """

    centre: NDArray[np.float64] | None = None
    centred_norm: float = 1.0
    intercept: float = 0.0

    def apply(self, raw: ArrayLike) -> NDArray[np.float32]:
        """Raw rows, shape (n, n_features), to training space, float32, contiguous."""
        x = normalise_rows(np.asarray(raw, dtype=np.float32))
        if self.centre is not None:
            x = normalise_rows(x - self.centre.astype(np.float32))
        if self.intercept:
            column = np.full((len(x), 1), self.intercept, dtype=np.float32)
            x = np.concatenate([x, column], axis=1)
        return np.ascontiguousarray(x)

    @classmethod
    def centred_on(cls, public_raw: ArrayLike) -> Preprocessing:
        """Centre on the mean of public rows, shape (n_public, n_features)."""
        x = normalise_rows(np.asarray(public_raw, dtype=np.float32)).astype(np.float64)
        centre = x.mean(axis=0)
        return cls(centre, float(np.linalg.norm(x - centre, axis=1).mean()) or 1.0)

    def fold(self, weights: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights in training space to (weights, bias) that act on L2-normalised raw rows.

        A centred row is rescaled by its own norm, which changes no ranking of classes; the public mean of those
        norms stands in for it here, so that the size of a score is right on average.

        Returns: weights (n_features, n_classes) and bias (n_classes,), both float32.
        """
        if self.intercept:
            return weights[:-1].astype(np.float32), (self.intercept * weights[-1]).astype(np.float32)
        if self.centre is None:
            return weights.astype(np.float32), np.zeros(weights.shape[1], dtype=np.float32)
        scaled = weights / self.centred_norm
        return scaled.astype(np.float32), (-self.centre @ scaled).astype(np.float32)


class ArrayRows:
    """Rows held in memory, already in training space.

    Args:
        x: shape (n_rows, n_features), float32.
        y: class indices, shape (n_rows,).
        block_rows: rows per block; changes no result beyond rounding.
    """

    def __init__(self, x: NDArray[np.float32], y: ArrayLike, block_rows: int = BLOCK_ROWS) -> None:
        self.x = x
        self.y = np.asarray(y, dtype=np.int64)
        self.norms = row_norms(x)
        self.n_rows, self.n_features = x.shape
        self._block_rows = block_rows

    def blocks(self) -> Iterator[Block]:
        """All rows in order, without copying."""
        for start in range(0, self.n_rows, self._block_rows):
            part = slice(start, start + self._block_rows)
            yield Block(start, self.x[part], self.y[part], self.norms[part])


class StreamedRows:
    """Rows read and preprocessed anew at every pass, so that memory does not grow with their number.

    Args:
        read: a call that starts a pass over raw blocks `(x, y)`.
        n_rows: number of rows a pass yields.
        n_features: width in training space.
        preprocessing: applied to each block.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]],
        n_rows: int,
        n_features: int,
        preprocessing: Preprocessing,
    ) -> None:
        self._read = read
        self.n_rows = n_rows
        self.n_features = n_features
        self._preprocessing = preprocessing

    def blocks(self) -> Iterator[Block]:
        """All rows in order, one block in memory at a time."""
        start = 0
        for raw, y in self._read():
            x = self._preprocessing.apply(raw)
            yield Block(start, x, y, row_norms(x))
            start += len(x)


class Source(Protocol):
    """Raw rows with labels that can be passed over any number of times."""

    n_rows: int
    n_features: int

    def blocks(self) -> Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]:
        """Blocks of raw rows (b, n_features) and class indices (b,), in order."""


class ArraySource:
    """Raw rows in memory: `x` (n_rows, n_features), class indices `y` (n_rows,)."""

    def __init__(self, x: NDArray[np.floating], y: NDArray[np.int64]) -> None:
        self._x, self._y = x, y
        self.n_rows, self.n_features = x.shape

    def blocks(self) -> Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]:
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

    def blocks(self) -> Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]:
        """All rows in blocks."""
        for source in self._sources:
            yield from source.blocks()


def prepare(source: Source, preprocessing: Preprocessing) -> Rows:
    """Rows of `source` in training space: in memory up to `IN_MEMORY_BYTES`, streamed beyond."""
    n_features = source.n_features + bool(preprocessing.intercept)
    if 4 * source.n_rows * n_features > IN_MEMORY_BYTES:
        return StreamedRows(source.blocks, source.n_rows, n_features, preprocessing)
    x = np.empty((source.n_rows, n_features), dtype=np.float32)
    y = np.empty(source.n_rows, dtype=np.int64)
    start = 0
    for raw, labels in source.blocks():
        here = slice(start, start + len(raw))
        x[here], y[here] = preprocessing.apply(raw), labels
        start += len(raw)
    return ArrayRows(x, y)


def join(first: Rows, second: Rows) -> ArrayRows:
    """Both sets of rows, `first` before `second`, in memory."""
    blocks = [*first.blocks(), *second.blocks()]
    return ArrayRows(np.concatenate([block.x for block in blocks]), np.concatenate([block.y for block in blocks]))
