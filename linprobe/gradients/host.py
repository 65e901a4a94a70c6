"""The two matrix products of a step: scores of a block of rows, and the sum of its outer products.

With few classes BLAS copies every row for a product that uses it a few times. A kernel of our own (`linprobe.native`)
reads them as they lie, and takes both products and what is between them while a row is in cache. With many, BLAS scores
and the kernel clips and sums; without it, products are BLAS's. Results are the same but for rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.precision import STORED, aligned_empty, widened
from linprobe.gradients.rounding import ExactSum
from linprobe.native import LIBRARY, KernelPart

SUM_ROWS = 128  # rows that are summed in float32
SCORED_ROWS = 8 * SUM_ROWS  # rows that BLAS scores at a time; of fewer it copies the weights too often
NATIVE_CLASSES = 48  # with more of them BLAS scores as fast; MOST in native/clipped_sum.c is the most there can be
SUM_CLASSES = 128  # that BLAS sums at a time, so that the sum stays in cache
PANEL = 6  # classes whose weights lie together, and CHUNK, features: as in native/clipped_sum.c
CHUNK = 16
TILE = 32  # features: a multiple of those that the kernel sums at a time
LANES = 16  # of the widest vectors of the kernel
GROUP = 32  # rows that the kernel widens at a time
PADDING = 8  # doubles of a cache line


@dataclass(frozen=True)
class Part:
    """Products with features from the `first` on, as many as they have weights for."""

    first: int
    products: Products

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of rows with all features."""
        return self.products.scores(x[:, self.first : self.first + self.products.n_features])


class ClippedBlock(NamedTuple):
    """Of a block that was clipped and summed: norms of residuals and factors (b,); scores of parts."""

    r_norms: NDArray[np.float64]
    factors: NDArray[np.float64]
    scores: list[NDArray[np.float32]]


class _Clipped(NamedTuple):
    """What rows are clipped by, and what becomes of them, all (b,); further parts, and their scores."""

    y: NDArray[np.int64]
    lengths: NDArray[np.float64]
    bound: float
    r_norms: NDArray[np.float64]
    factors: NDArray[np.float64]
    parts: Sequence[Part]
    scores: list[NDArray[np.float32]]

    def pointers(self, rows: slice = slice(None)) -> tuple[int | float, ...]:
        """What the kernel is told to clip some of the rows."""
        addresses = (array[rows].ctypes.data for array in (self.y, self.lengths, self.r_norms, self.factors))
        y, lengths, r_norms, factors = addresses
        return y, lengths, self.bound, r_norms, factors


class Products:
    """Products of rows x (b, n_features), float32 or as they are stored, with weights (n_classes, n_features) float32.

    Buffers are reused from call to call: each thread needs its own to take sums.

    Attributes:
        clips: whether `add_clipped` can be called.
    """

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self._weights = np.ascontiguousarray(weights, dtype=np.float32)
        self.n_classes, self.n_features = self._weights.shape
        self.clips = LIBRARY is not None and self.n_classes > 0
        self._library = LIBRARY if 0 < self.n_classes <= NATIVE_CLASSES else None
        self._packed = self._weights if self._library is None else _packed(self._weights)

    @property
    def _whole_tiles(self) -> int:
        """Number of features, rounded up to whole tiles."""
        return int(-(-self.n_features // TILE) * TILE)

    def zeros(self) -> NDArray[np.float64]:
        """The sum of no rows (n_classes, n_features), in memory as `add` and `add_clipped` want it.

        Its rows go on to whole tiles, so that the kernel needs no end of a row, and are an odd number of cache lines
        apart, so that the sums of a few features of all classes do not share places in cache.
        """
        total: NDArray[np.float64] = aligned_empty((self.n_classes, self._apart), np.float64)
        total[:] = 0
        return total[:, : self.n_features]

    @property
    def _apart(self) -> int:
        """Doubles between two rows of a sum."""
        return self._whole_tiles + PADDING

    @cached_property
    def _block_sum(self) -> NDArray[np.float64]:
        """For the sum of a block that is rounded as a whole."""
        return self.zeros()

    @cached_property
    def _sums(self) -> NDArray[np.float32]:
        """For sums of a few rows in one pass: zeros between calls."""
        return np.zeros((self.n_classes, self._whole_tiles), np.float32)

    @cached_property
    def _room(self) -> NDArray[np.float32]:
        """For a few rows in the kernel's order, with their factors."""
        return aligned_empty(((SUM_ROWS + 1) * self._whole_tiles + SUM_ROWS * self.n_classes,), np.float32)

    @cached_property
    def _wide(self) -> NDArray[np.float32]:
        """For rows that are widened."""
        return aligned_empty((SCORED_ROWS if self._library is None else GROUP, self.n_features), np.float32)

    @cached_property
    def _scored(self) -> NDArray[np.float32]:
        """For scores of a piece; its rows go on to whole vectors of the kernel."""
        return aligned_empty((SCORED_ROWS, -(-self.n_classes // LANES) * LANES), np.float32)

    def scores(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """x W^T, shape (b, n_classes), float32, the caller's to write to. Some columns of rows are not copied."""
        self._check(x)
        x, stride = _rows_apart(widened(x))
        if self._library is None:
            return np.asarray(x @ self._weights.T)
        scores = np.empty((len(x), self.n_classes), np.float32)
        buffers = (self._packed.ctypes.data, scores.ctypes.data)
        self._library.linprobe_scores(x.ctypes.data, *buffers, *x.shape, self.n_classes, stride)
        return scores

    def add(
        self, total: ExactSum, r: NDArray[np.float32], x: NDArray[Any], joined: NDArray[np.bool_] | None = None
    ) -> None:
        """Adds sum_i r_i x_i^T, for r (b, n_classes) float32, to a `total` that began with `zeros`.

        Of `SUM_ROWS` rows at a time, those who `joined` (b,), or all, are summed in float32, and those sums exactly:
        one by one, or in another geometry and without the kernel as the float64 sum of them all.
        """
        self._check(x, r.shape == (len(x), self.n_classes) and (joined is None or joined.shape == (len(x),)))
        self._add(total, r, np.ascontiguousarray(widened(x), np.float32), joined)

    def _add(
        self,
        total: ExactSum,
        r: NDArray[np.float32],
        x: NDArray[np.float32],
        joined: NDArray[np.bool_] | None = None,
    ) -> None:
        """`add`, of what fits together."""
        if LIBRARY is not None and isinstance(total.shift, float) and self.n_classes:
            self._add_by_kernel(LIBRARY, total.total, total.shift, r, x, joined)
            return
        self._block_sum[:] = 0
        if LIBRARY is not None and self.n_classes:
            self._add_by_kernel(LIBRARY, self._block_sum, 0.0, r, x, joined)
        else:
            for first in range(0, self.n_classes, SUM_CLASSES):
                classes = slice(first, first + SUM_CLASSES)
                for start in range(0, len(x), SUM_ROWS):
                    run = slice(start, start + SUM_ROWS)
                    rows = run if joined is None else start + np.flatnonzero(joined[run])
                    self._block_sum[classes] += r[rows, classes].T @ x[rows]
        total.add(self._block_sum)

    def _add_by_kernel(
        self,
        library: ctypes.CDLL,
        total: NDArray[np.float64],
        shift: float,
        r: NDArray[np.float32],
        x: NDArray[np.float32],
        joined: NDArray[np.bool_] | None,
    ) -> None:
        r, stride = _rows_apart(r)
        chosen = None if joined is None else np.ascontiguousarray(joined, np.bool_)
        given = (x.ctypes.data, r.ctypes.data, None if chosen is None else chosen.ctypes.data)
        buffers = (self._address(total), self._room.ctypes.data)
        library.linprobe_sum(*given, *buffers, *x.shape, self.n_classes, stride, self._apart, shift)

    def add_clipped(
        self,
        total: ExactSum,
        x: NDArray[Any],
        y: NDArray[np.int64],
        lengths: NDArray[np.float64],
        bound: float,
        parts: Sequence[Part] = (),
    ) -> ClippedBlock:
        """`add` of softmax residuals r_i for classes y (b,), times c_i = min(1, bound / (length_i ||r_i||)).

        `lengths` (b,) are norms of the rows; the total has one `shift` for all entries. With few classes it is one
        pass: a row is scored, with `parts` too, clipped and summed while it is in cache.
        """
        if LIBRARY is None or not self.clips:
            raise RuntimeError("the kernel was not built, or there are no classes; ask `clips` first")
        y, lengths = np.asarray(y), np.ascontiguousarray(lengths, np.float64)
        inside = all(0 <= part.first <= self.n_features - part.products.n_features for part in parts)
        fit = y.shape == lengths.shape == (len(x),) and y.dtype.kind in "iu" and isinstance(total.shift, float)
        self._check(x, fit and inside)
        if len(y) and not 0 <= y.min() <= y.max() < self.n_classes:
            raise IndexError(f"classes are from {y.min()} to {y.max()}; allowed: 0 to {self.n_classes - 1}")
        x = np.ascontiguousarray(x, None if x.dtype in STORED else np.float32)
        scores = [np.empty((len(x), part.products.n_classes), np.float32) for part in parts]
        y = np.ascontiguousarray(y, np.int64)
        rows = _Clipped(y, lengths, bound, np.empty(len(x)), np.empty(len(x)), parts, scores)
        if self._library is None:
            self._take_by_pieces(LIBRARY, total, x, rows)
        else:
            self._take_at_once(self._library, total, x, rows)
        return ClippedBlock(rows.r_norms, rows.factors, scores)

    def _take_at_once(self, library: ctypes.CDLL, total: ExactSum, x: NDArray[Any], rows: _Clipped) -> None:
        """`add_clipped` of few classes."""
        told = []
        for part, out in zip(rows.parts, rows.scores, strict=True):
            if part.products._library is None:
                out[:] = part.scores(x)
            else:
                told.append(part.products._part(part.first, out))
        library.linprobe_clipped_sum(
            x.ctypes.data,
            STORED.index(x.dtype),
            self._wide.ctypes.data,
            self._packed.ctypes.data,
            *rows.pointers(),
            self._address(total.total),
            self._sums.ctypes.data,
            *x.shape,
            self.n_classes,
            self._apart,
            total.shift,
            (KernelPart * len(told))(*told),
            len(told),
        )

    def _take_by_pieces(self, library: ctypes.CDLL, total: ExactSum, x: NDArray[Any], rows: _Clipped) -> None:
        """`add_clipped` of many classes: BLAS scores a piece, the kernel clips and sums it."""
        for start in range(0, len(x), SCORED_ROWS):
            here = slice(start, start + SCORED_ROWS)
            piece = widened(x[here], self._wide[: len(x[here])])
            r = np.matmul(piece, self._weights.T, out=self._scored[: len(piece), : self.n_classes])
            room = self._scored.shape[1]
            library.linprobe_clip(r.ctypes.data, room, *rows.pointers(here), *r.shape)
            self._add(total, r, piece)
            for part, out in zip(rows.parts, rows.scores, strict=True):
                out[here] = part.scores(piece)

    def _address(self, total: NDArray[np.float64]) -> int:
        """Of a sum that began with `zeros`; ValueError of another, where the kernel would write beside it."""
        whole = self._apart * total.itemsize
        begun = total.shape == self._weights.shape and total.dtype == np.float64 and total.strides == (whole, 8)
        memory = total if total.base is None else total.base
        left = memory.ctypes.data + memory.nbytes - total.ctypes.data
        if not begun or left < whole * self.n_classes:
            raise ValueError("a sum that does not begin with zeros() of these products")
        return int(total.ctypes.data)

    def _part(self, first: int, scores: NDArray[np.float32]) -> KernelPart:
        """What the kernel is told to score features from the `first` on, on the way."""
        return KernelPart(self._packed.ctypes.data, scores.ctypes.data, first, self.n_features, self.n_classes)

    def _check(self, x: NDArray[np.float32], others: bool = True) -> None:
        """ValueError unless rows are as wide as the weights and all else is as long as they: no kernel would see."""
        if x.ndim != 2 or x.shape[1] != self.n_features or not others:
            raise ValueError(
                f"rows of shape {x.shape} with weights of shape {self._weights.shape}, or what goes with the rows, do "
                "not fit"
            )


def _rows_apart(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Rows each of which lies in one piece, float32, and how many numbers they are apart; a copy where need be."""
    rows = np.asarray(rows, np.float32)
    if rows.strides[1] != rows.itemsize or rows.strides[0] < 0 or rows.strides[0] % rows.itemsize:
        rows = np.ascontiguousarray(rows)
    return rows, rows.strides[0] // rows.itemsize


def _packed(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights in the order in which the kernel reads them: by panel, chunk, class and feature, padded with zeros."""
    n_classes, n_features = weights.shape
    padded = np.zeros((n_classes, -(-n_features // CHUNK), CHUNK), np.float32)
    padded.reshape(n_classes, -1)[:, :n_features] = weights
    panels = np.array_split(padded, -(-n_classes // PANEL))
    return np.concatenate([panel.swapaxes(0, 1).ravel() for panel in panels])
