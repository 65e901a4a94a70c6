"""Rows in training space: normalised, centred, streamed in blocks, from memory or from a file.

Every transformation here acts on one row at a time with public constants only, so it costs no privacy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linprobe.errors import UsageError

BLOCK_ROWS = 1024
IN_MEMORY_BYTES = 4 << 30
SMALLEST_FLOAT32_NORM = 1e-30
BIAS_TOLERANCE = 1e-3


class Block(NamedTuple):
    """Some rows, in order.

    `start` is the place of the first among all rows (of no meaning in a block of selected rows), `x` (b, n_features)
    float32, `y` (b,) class indices int64 or (b, n_targets) float32 targets, `norms` (b,) float64, L2 norms of `x`, and
    `joined` (b,) says which of them a sample took, None for all.
    """

    start: int
    x: NDArray[np.float32]
    y: NDArray[Any]
    norms: NDArray[np.float64]
    joined: NDArray[np.bool_] | None = None


class Blocks(Protocol):
    """Rows that can be passed over, block by block, any number of times.

    `sampling_rate` is the Poisson probability with which each of the `n_rows` joined; `observed` whether blocks show
    all of them.
    """

    n_rows: int
    n_features: int
    sampling_rate: float
    observed: bool

    def blocks(self) -> Iterator[Block]:
        """All rows in order."""


class Rows(Blocks, Protocol):
    """Rows of which samples can be taken."""

    def selected(self, joined: NDArray[np.bool_]) -> Iterator[Block]:
        """The rows where `joined` (n_rows,) is true, at most a block of them in memory at a time."""


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
    """Digests of each row as it is and at unit norm, in half precision, by which equal rows of two files are found."""
    for x in blocks:
        unit = normalise_rows(np.asarray(x, dtype=np.float32))
        for version in (x, unit):
            with np.errstate(over="ignore"):
                half = np.ascontiguousarray(version, dtype=np.float16)
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

    def fold(
        self, weights: NDArray[np.float64], offset: NDArray[np.float64] | float = 0.0
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights in training space, and scores of a zero row there, to (weights, bias) on L2-normalised raw rows.

        A centred row is rescaled by its own norm, which changes no ranking of classes; the public mean of those
        norms stands in for it here, so that the size of a score is right on average.

        Returns: weights (n_features, n_classes) and bias (n_classes,), both float32; with one more axis in front where
            `weights` is a stack.
        """
        if self.intercept:
            folded, bias = weights[..., :-1, :], self.intercept * weights[..., -1, :]
        elif self.centre is None:
            folded, bias = weights, np.zeros_like(weights[..., 0, :])
        else:
            folded = weights / self.centred_norm
            bias = -np.einsum("d,...dc->...c", self.centre, folded)
        return folded.astype(np.float32), (bias + offset).astype(np.float32)

    def unfold(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> NDArray[np.float64]:
        """Inverse of `fold` for one set of weights.

        Raises:
            UsageError: a bias that rows in this training space cannot express.
        """
        wide, offset = weights.astype(np.float64), bias.astype(np.float64) - float(np.mean(bias))
        if self.intercept:
            return np.concatenate([wide, offset[None] / self.intercept])
        if self.centre is not None:
            offset = offset + self.centre @ wide
            offset -= offset.mean()
            wide = wide * self.centred_norm
        if np.abs(offset).max() > BIAS_TOLERANCE * max(1.0, float(np.abs(wide).max())):
            raise UsageError(
                f"the first model has a bias of up to {np.abs(offset).max():.3g}, which these rows cannot express; "
                "give --intercept 1 --centre none, or the public rows and --centre it was trained with"
            )
        return wide


class ArrayRows:
    """Rows held in memory, already in training space.

    Args:
        x: shape (n_rows, n_features), float32.
        y: class indices, shape (n_rows,), or float targets, shape (n_rows, n_targets).
        block_rows: rows per block, at most BLOCK_ROWS; changes no result beyond rounding.
    """

    sampling_rate = 1.0
    observed = True

    def __init__(self, x: NDArray[np.float32], y: ArrayLike, block_rows: int = BLOCK_ROWS) -> None:
        self.x = x
        y = np.asarray(y)
        self.y = y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64)
        self.norms = row_norms(x)
        self.n_rows, self.n_features = x.shape
        self._block_rows = min(block_rows, BLOCK_ROWS)

    def blocks(self) -> Iterator[Block]:
        """All rows in order, without copying."""
        for start in range(0, self.n_rows, self._block_rows):
            part = slice(start, start + self._block_rows)
            yield Block(start, self.x[part], self.y[part], self.norms[part])

    def selected(self, joined: NDArray[np.bool_]) -> Iterator[Block]:
        """The rows where `joined` is true, copied block by block into the same memory."""
        places = np.flatnonzero(joined)
        copy = np.empty((min(self._block_rows, len(places)), self.n_features), dtype=np.float32)
        for start in range(0, len(places), self._block_rows):
            part = places[start : start + self._block_rows]
            x = np.take(self.x, part, axis=0, out=copy[: len(part)], mode="clip")  # the other modes buffer
            yield Block(start, x, self.y[part], self.norms[part])


class StreamedRows:
    """Rows read and preprocessed anew at every pass, so that memory does not grow with their number.

    Args:
        read: a call that starts a pass over raw blocks `(x, y)`.
        n_rows: number of rows a pass yields.
        n_features: width in training space.
        preprocessing: applied to each block.
    """

    sampling_rate = 1.0
    observed = True

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

    def selected(self, joined: NDArray[np.bool_]) -> Iterator[Block]:
        """The rows where `joined` is true; all are read, only those are preprocessed."""
        start = 0
        for raw, y in self._read():
            here = joined[start : start + len(raw)]
            start += len(raw)
            if here.any():
                x = self._preprocessing.apply(raw[here])
                yield Block(start, x, y[here], row_norms(x))


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


class ChainedRows:
    """The rows of several sets, one set after another."""

    sampling_rate = 1.0
    observed = True

    def __init__(self, *parts: Rows) -> None:
        self._parts = parts
        self.n_rows = sum(part.n_rows for part in parts)
        self.n_features = parts[0].n_features

    def blocks(self) -> Iterator[Block]:
        """All rows in order."""
        first = 0
        for part in self._parts:
            for block in part.blocks():
                yield block._replace(start=first + block.start)
            first += part.n_rows

    def selected(self, joined: NDArray[np.bool_]) -> Iterator[Block]:
        """The rows where `joined` is true."""
        first = 0
        for part in self._parts:
            yield from part.selected(joined[first : first + part.n_rows])
            first += part.n_rows


class TranslatedRows:
    """Rows minus a public vector with a constant column appended, computed block by block.

    Args:
        rows: the rows, n_features wide.
        shift: what is subtracted, shape (n_features,).
        column: value of the constant column.
    """

    def __init__(self, rows: Rows, shift: NDArray[np.float64], column: float) -> None:
        self._rows, self._shift, self._column = rows, shift.astype(np.float32), np.float32(column)
        self.n_rows, self.n_features = rows.n_rows, rows.n_features + 1
        self.sampling_rate, self.observed = rows.sampling_rate, rows.observed

    def _translate(self, block: Block) -> Block:
        x = np.empty((len(block.x), self.n_features), dtype=np.float32)
        np.subtract(block.x, self._shift, out=x[:, :-1])
        x[:, -1] = self._column
        return block._replace(x=x, norms=row_norms(x))

    def blocks(self) -> Iterator[Block]:
        """All rows in order."""
        return map(self._translate, self._rows.blocks())

    def selected(self, joined: NDArray[np.bool_]) -> Iterator[Block]:
        """The rows where `joined` is true."""
        return map(self._translate, self._rows.selected(joined))


def join(*parts: Rows) -> ArrayRows:
    """All rows of all parts, in order, in memory."""
    blocks = [block for part in parts for block in part.blocks()]
    return ArrayRows(np.concatenate([block.x for block in blocks]), np.concatenate([block.y for block in blocks]))
