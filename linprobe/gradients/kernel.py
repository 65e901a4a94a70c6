"""Products by the C kernel, `linprobe/native/clipped_sum.c`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.data.precision import STORED, aligned_empty, widened
from linprobe.gradients.backend import ClippedBlock, Part
from linprobe.gradients.blas import NumpyProducts, strided_rows
from linprobe.gradients.rounding import SUM_ROWS, ExactSum
from linprobe.native import KernelPart

SCORED_ROWS = 8 * SUM_ROWS  # rows per BLAS call; with fewer, BLAS copies the weights too often
PANEL = 6  # classes in a panel of packed weights, as in clipped_sum.c
CHUNK = 16  # features in a chunk of packed weights, as in clipped_sum.c
TILE = 32  # features; sums are padded to a multiple, which every vector width of the kernel divides
LANES = 16  # floats in the widest vector of the kernel
GROUP = 32  # rows that the kernel widens together, as in clipped_sum.c
PADDING = 8  # doubles in a cache line
PLACES = SUM_ROWS  # rows of a BLAS call whose scores must not depend on the place of a row


class _Clipped(NamedTuple):
    """Arrays that clipping reads and writes, of shape (b,), and the further parts with their scores."""

    y: NDArray[np.int64]
    lengths: NDArray[np.float64]
    bound: float
    r_norms: NDArray[np.float64]
    factors: NDArray[np.float64]
    parts: Sequence[Part]
    scores: list[NDArray[np.float32]]

    def arguments(self, rows: slice = slice(None)) -> tuple[int | float, ...]:
        """The kernel's arguments for `rows`."""
        addresses = (array[rows].ctypes.data for array in (self.y, self.lengths, self.r_norms, self.factors))
        y, lengths, r_norms, factors = addresses
        return y, lengths, self.bound, r_norms, factors


class KernelProducts(NumpyProducts):
    """Many classes: BLAS scores, the kernel clips and sums."""

    _scored_at_once = SCORED_ROWS

    def __init__(self, weights: NDArray[np.float32], library: ctypes.CDLL) -> None:
        super().__init__(weights)
        self._library = library
        self._whole_tiles = -(-self.n_features // TILE) * TILE
        self._stride = self._whole_tiles + PADDING  # doubles from one row of a sum to the next

    def zeros(self) -> NDArray[np.float64]:
        """The empty sum, shape (n_classes, n_features).

        Rows are padded to whole tiles, so that the kernel needs no code for the end of a row. The stride is an odd
        number of cache lines, so that the same columns of different rows map to different cache sets.
        """
        total: NDArray[np.float64] = aligned_empty((self.n_classes, self._stride), np.float64)
        total[:] = 0
        return total[:, : self.n_features]

    @cached_property
    def _packed_rows(self) -> NDArray[np.float32]:
        """Buffer for a run of rows and their residuals, in the kernel's order."""
        return aligned_empty(((SUM_ROWS + 1) * self._whole_tiles + SUM_ROWS * self.n_classes,), np.float32)

    @cached_property
    def _wide(self) -> NDArray[np.float32]:
        """Buffer for widened rows."""
        return aligned_empty((self._scored_at_once, self.n_features), np.float32)

    @cached_property
    def _scored(self) -> NDArray[np.float32]:
        """Buffer for scores; rows are padded to whole vectors of the kernel."""
        return aligned_empty((SCORED_ROWS, -(-self.n_classes // LANES) * LANES), np.float32)

    def _add(
        self,
        total: ExactSum,
        r: NDArray[np.float32],
        x: NDArray[np.float32],
        sampled: NDArray[np.bool_] | None,
    ) -> None:
        """Round each run of `SUM_ROWS` rows to the grid; with `Scale`, whose grid differs by entry, each block."""
        if isinstance(total.shift, float):
            self._sum(total.total, total.shift, r, x, sampled)
            return
        self._block_sum[:] = 0
        self._sum(self._block_sum, 0.0, r, x, sampled)
        total.add(self._block_sum)

    def _sum(
        self,
        total: NDArray[np.float64],
        shift: float,
        r: NDArray[np.float32],
        x: NDArray[np.float32],
        sampled: NDArray[np.bool_] | None,
    ) -> None:
        r, stride = strided_rows(r)
        mask = None if sampled is None else np.ascontiguousarray(sampled, np.bool_)
        given = (x.ctypes.data, r.ctypes.data, None if mask is None else mask.ctypes.data)
        buffers = (self._address(total), self._packed_rows.ctypes.data)
        self._library.linprobe_sum(*given, *buffers, *x.shape, self.n_classes, stride, self._stride, shift)

    def add_clipped(
        self,
        total: ExactSum,
        x: NDArray[Any],
        y: NDArray[np.int64],
        lengths: NDArray[np.float64],
        bound: float,
        parts: Sequence[Part] = (),
    ) -> ClippedBlock:
        """As in `linprobe.gradients.backend.ClippingProducts`."""
        y, lengths = np.asarray(y), np.ascontiguousarray(lengths, np.float64)
        inside = all(0 <= part.first <= self.n_features - part.products.n_features for part in parts)
        fit = y.shape == lengths.shape == (len(x),) and y.dtype.kind in "iu" and isinstance(total.shift, float)
        self.check(x, fit and inside)
        if len(y) and not 0 <= y.min() <= y.max() < self.n_classes:
            raise IndexError(f"classes are from {y.min()} to {y.max()}; allowed: 0 to {self.n_classes - 1}")
        x = np.ascontiguousarray(x, None if x.dtype in STORED else np.float32)
        scores = [np.empty((len(x), part.products.n_classes), np.float32) for part in parts]
        y = np.ascontiguousarray(y, np.int64)
        rows = _Clipped(y, lengths, bound, np.empty(len(x)), np.empty(len(x)), parts, scores)
        self._add_clipped(total, x, rows)
        return ClippedBlock(rows.r_norms, rows.factors, scores)

    def _add_clipped(self, total: ExactSum, x: NDArray[Any], rows: _Clipped) -> None:
        """`add_clipped`, after the shapes have been checked."""
        for start in range(0, len(x), SCORED_ROWS):
            here = slice(start, start + SCORED_ROWS)
            wide = widened(x[here], self._wide[: len(x[here])])
            r = np.matmul(wide, self._weights.T, out=self._scored[: len(wide), : self.n_classes])
            self._library.linprobe_clip(r.ctypes.data, self._scored.shape[1], *rows.arguments(here), *r.shape)
            self._add(total, r, wide, None)
            for part, out in zip(rows.parts, rows.scores, strict=True):
                out[here] = part.scores(wide)

    @cached_property
    def placeless(self) -> bool:
        """Whether BLAS gives a row the same scores at every place of a call of `PLACES` rows.

        The order of operations at a place depends on shapes, not on numbers. So a pair of calls decides, in which
        random rows move by one place: other orders would not agree in all of these sums.
        """
        rows = _random_rows(self.n_features)
        first, moved = (self._scores_in_place(rows[start : start + PLACES]) for start in (0, 1))
        return bool(np.array_equal(first[1:], moved[:-1]))

    def _scores_in_place(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores (b, n_classes) of rows x (b, n_features) from calls of `PLACES` rows each, the last filled up."""
        scores = np.empty((len(x), self.n_classes), np.float32)
        whole = len(x) // PLACES * PLACES
        for start in range(0, whole, PLACES):
            np.matmul(x[start : start + PLACES], self._weights.T, out=scores[start : start + PLACES])
        if whole < len(x):
            filled = np.zeros((PLACES, self.n_features), np.float32)
            filled[: len(x) - whole] = x[whole:]
            scores[whole:] = (filled @ self._weights.T)[: len(x) - whole]
        return scores

    def placeless_residuals(
        self, x: NDArray[np.float32], y: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """As in `linprobe.gradients.backend.PlacelessProducts`; the kernel takes each row by itself.

        Raises:
            ValueError: shapes that do not fit. IndexError: a class index out of range.
        """
        self.check(x, y.shape == (len(x),) and y.dtype.kind in "iu")
        if len(y) and not 0 <= y.min() <= y.max() < self.n_classes:
            raise IndexError(f"classes are from {y.min()} to {y.max()}; allowed: 0 to {self.n_classes - 1}")
        room = -(-self.n_classes // LANES) * LANES
        r: NDArray[np.float32] = aligned_empty((len(x), room), np.float32)
        r[:, : self.n_classes] = self._scores_in_place(np.ascontiguousarray(x, np.float32))
        labels, lengths = np.ascontiguousarray(y, np.int64), np.ones(len(x))
        rows = _Clipped(labels, lengths, math.inf, np.empty(len(x)), np.empty(len(x)), (), [])
        self._library.linprobe_clip(r.ctypes.data, room, *rows.arguments(), len(x), self.n_classes)
        return r[:, : self.n_classes], rows.r_norms

    def _address(self, total: NDArray[np.float64]) -> int:
        """Address of a sum that `zeros` made.

        Raises:
            ValueError: any other array; the kernel would write outside it.
        """
        row_bytes = self._stride * total.itemsize
        made_here = total.shape == self._weights.shape and total.dtype == np.float64 and total.strides == (row_bytes, 8)
        memory = total if total.base is None else total.base
        left = memory.ctypes.data + memory.nbytes - total.ctypes.data
        if not made_here or left < row_bytes * self.n_classes:
            raise ValueError("a sum that does not begin with zeros() of these products")
        return int(total.ctypes.data)


class FusedProducts(KernelProducts):
    """Few classes: the kernel scores, clips and sums in one pass over the rows."""

    _scored_at_once = GROUP

    def __init__(self, weights: NDArray[np.float32], library: ctypes.CDLL) -> None:
        super().__init__(weights, library)
        self._packed = _packed(self._weights)

    @cached_property
    def _sums(self) -> NDArray[np.float32]:
        """Buffer for sums of a run of rows; zero between calls."""
        return np.zeros((self.n_classes, self._whole_tiles), np.float32)

    def scores(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """x W^T, shape (b, n_classes), float32. Does not copy x if it is a range of columns."""
        self.check(x)
        x, stride = strided_rows(widened(x))
        scores = np.empty((len(x), self.n_classes), np.float32)
        buffers = (self._packed.ctypes.data, scores.ctypes.data)
        self._library.linprobe_scores(x.ctypes.data, *buffers, *x.shape, self.n_classes, stride)
        return scores

    @property
    def placeless(self) -> bool:
        """Always: the kernel sums the products of a row in one order, whatever the place of the row."""
        return True

    def _scores_in_place(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores (b, n_classes) by the kernel."""
        return self.scores(x)

    def kernel_part(self, first: int, scores: NDArray[np.float32]) -> KernelPart:
        """The kernel's argument for writing `scores` of the features from `first` on."""
        return KernelPart(self._packed.ctypes.data, scores.ctypes.data, first, self.n_features, self.n_classes)

    def _add_clipped(self, total: ExactSum, x: NDArray[Any], rows: _Clipped) -> None:
        """One pass of the kernel. Parts with many classes are scored by BLAS."""
        in_pass = []
        for part, out in zip(rows.parts, rows.scores, strict=True):
            if isinstance(part.products, FusedProducts):
                in_pass.append(part.products.kernel_part(part.first, out))
            else:
                out[:] = part.scores(x)
        self._library.linprobe_clipped_sum(
            x.ctypes.data,
            STORED.index(x.dtype),
            self._wide.ctypes.data,
            self._packed.ctypes.data,
            *rows.arguments(),
            self._address(total.total),
            self._sums.ctypes.data,
            *x.shape,
            self.n_classes,
            self._stride,
            total.shift,
            (KernelPart * len(in_pass))(*in_pass),
            len(in_pass),
        )


@lru_cache(maxsize=8)
def _random_rows(n_features: int) -> NDArray[np.float32]:
    """Rows of `KernelProducts.placeless`, shape (PLACES + 1, n_features)."""
    return np.random.default_rng(0).standard_normal((PLACES + 1, n_features), dtype=np.float32)


def _packed(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights in the kernel's order, by panel, chunk, class and feature, padded with zeros."""
    n_classes, n_features = weights.shape
    padded = np.zeros((n_classes, -(-n_features // CHUNK), CHUNK), np.float32)
    padded.reshape(n_classes, -1)[:, :n_features] = weights
    panels = np.array_split(padded, -(-n_classes // PANEL))
    return np.concatenate([panel.swapaxes(0, 1).ravel() for panel in panels])
