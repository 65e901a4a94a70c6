"""The two matrix products of a step: scores of a block of rows, and the sum of its outer products.

With few classes BLAS copies every row for a product that uses it a few times. A kernel of our own (`_products.c`, built
on installation where there is a C compiler) reads them as they lie, and takes both products and what is between them
while a row is in cache; without it, or with LINPROBE_NATIVE=0 in the environment, products are BLAS's. Results are the
same but for rounding.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linprobe.storage import STORAGE, aligned_empty, widened

SUM_ROWS = 128  # rows that are summed in float32
NATIVE_CLASSES = 48  # with more of them BLAS is as fast; MOST in _products.c is the most there can be
SUM_CLASSES = 128  # that BLAS sums at a time, so that the sum stays in cache
PANEL = 6  # classes whose weights lie together, and CHUNK, features: as in _products.c
CHUNK = 16
TILE = 32  # features: a multiple of those that the kernel sums at a time
GROUP = 32  # rows that the kernel widens at a time
STORED = tuple(np.dtype(stored) for stored in STORAGE.values())  # as `enum stored` in _products.c
INTERFACE = 5  # of the functions in _products.c


class _Part(ctypes.Structure):
    """Further scores of a clipped sum: `struct part` in _products.c."""

    _fields_ = (
        ("w", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("first", ctypes.c_size_t),
        ("d", ctypes.c_size_t),
        ("n_classes", ctypes.c_int),
    )


def _library() -> ctypes.CDLL | None:
    """The kernel, or None where it was not built, not for this, or is turned off."""
    path = Path(__file__).with_name("_products" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))
    if os.environ.get("LINPROBE_NATIVE") == "0" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        interface = library.linprobe_interface()
    except (OSError, AttributeError):  # built for another machine, or long ago
        interface = None
    if interface != INTERFACE:
        warnings.warn(f"{path.name} was built for another machine or version; install linprobe again", stacklevel=2)
        return None
    address, shape = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    library.linprobe_scores.argtypes = [*[address] * 3, *shape, ctypes.c_size_t]
    library.linprobe_sum.argtypes = [*[address] * 4, *shape, ctypes.c_size_t]
    library.linprobe_clipped_sum.argtypes = [
        address,
        ctypes.c_int,
        *[address] * 4,
        ctypes.c_double,
        *[address] * 4,
        *shape,
        address,
        ctypes.c_int,
    ]
    library.linprobe_clip.argtypes = [*[address] * 3, ctypes.c_double, *[address] * 2, *shape[1:]]
    library.linprobe_widen.argtypes = [address, ctypes.c_int, address, ctypes.c_size_t]
    for name in ("scores", "sum", "clip", "clipped_sum", "widen"):
        getattr(library, f"linprobe_{name}").restype = None
    return library


LIBRARY = _library()


@dataclass(frozen=True)
class Part:
    """Products with features from the `first` on, as many as they have weights for."""

    first: int
    products: Products

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of rows with all features."""
        return self.products.scores(x[:, self.first : self.first + self.products.n_features])


class ClippedBlock(NamedTuple):
    """A clipped sum of a block, as `Products.sum` has it; norms of residuals and factors (b,); scores of parts."""

    total: NDArray[np.float64]
    r_norms: NDArray[np.float64]
    factors: NDArray[np.float64]
    scores: list[NDArray[np.float32]]


class Products:
    """Products of rows x (b, n_features), float32 or as they are stored, with weights (n_classes, n_features) float32.

    Numbers stored in less than 32 bits must be finite. Buffers are reused from call to call: each thread needs its own
    to take sums.

    Attributes:
        clips: whether `clipped_sum` can be called.
    """

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self._weights = np.ascontiguousarray(weights, dtype=np.float32)
        self.n_classes, self.n_features = self._weights.shape
        self.clips = LIBRARY is not None and self.n_classes > 0
        self._library = LIBRARY if 0 < self.n_classes <= NATIVE_CLASSES else None
        self._packed = self._weights if self._library is None else _packed(self._weights)
        self._room: NDArray[np.float32] = np.empty((0, self.n_features), np.float32)

    @cached_property
    def _total(self) -> NDArray[np.float64]:
        return np.empty(self._weights.shape)

    @cached_property
    def _sums(self) -> NDArray[np.float32]:
        """For sums of a few rows; zeros between calls of the kernel."""
        if self._library is not None:
            return np.zeros((self.n_classes, -(-self.n_features // TILE) * TILE), np.float32)
        return np.empty((min(self.n_classes, SUM_CLASSES), self.n_features), np.float32)

    def _wide(self, n_rows: int) -> NDArray[np.float32]:
        """Room for so many rows, the same in every call."""
        if len(self._room) < n_rows:
            self._room = aligned_empty((n_rows, self.n_features), np.float32)
        return self._room[:n_rows]

    def _widened(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """`widened`, in memory that the next call takes again."""
        if LIBRARY is None or x.dtype not in STORED[1:]:
            return widened(x)
        wide, x = self._wide(len(x)), np.ascontiguousarray(x)
        LIBRARY.linprobe_widen(x.ctypes.data, STORED.index(x.dtype), wide.ctypes.data, x.size)
        return wide

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

    def sum(
        self, r: NDArray[np.float32], x: NDArray[Any], joined: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float64]:
        """sum_i r_i x_i^T for r (b, n_classes) float32, shape (n_classes, n_features), overwritten by the next call.

        Of `SUM_ROWS` rows at a time, those who `joined` (b,), or all, are summed in float32, and those sums in float64,
        in the order of the rows.
        """
        self._check(x, r.shape == (len(x), self.n_classes) and (joined is None or joined.shape == (len(x),)))
        x = np.ascontiguousarray(widened(x))
        self._total[:] = 0
        if joined is None:
            self._add(r, x)
        else:
            for start in range(0, len(x), SUM_ROWS):
                run: slice | NDArray[np.intp] = slice(start, start + SUM_ROWS)
                if not joined[run].all():
                    run = start + np.flatnonzero(joined[run])
                self._add(r[run], x[run])
        return self._total

    def _add(self, r: NDArray[np.float32], x: NDArray[np.float32]) -> None:
        r, stride = _rows_apart(r)
        if self._library is not None:
            buffers = (self._total.ctypes.data, self._sums.ctypes.data)
            self._library.linprobe_sum(x.ctypes.data, r.ctypes.data, *buffers, *x.shape, self.n_classes, stride)
            return
        for first in range(0, self.n_classes, SUM_CLASSES):
            classes = slice(first, first + SUM_CLASSES)
            total = self._total[classes]
            part = self._sums[: len(total)]
            for start in range(0, len(x), SUM_ROWS):
                rows = slice(start, start + SUM_ROWS)
                np.matmul(r[rows, classes].T, x[rows], out=part)
                total += part

    def clipped_sum(
        self,
        x: NDArray[Any],
        y: NDArray[np.int64],
        lengths: NDArray[np.float64],
        bound: float,
        parts: Sequence[Part] = (),
    ) -> ClippedBlock:
        """`sum` of softmax residuals r_i for classes y (b,), times c_i = min(1, bound / (length_i ||r_i||)).

        `lengths` (b,) are norms of the rows. With few classes it is one pass: a row is scored, with `parts` too,
        clipped and summed while it is in cache.
        """
        if LIBRARY is None or not self.clips:
            raise RuntimeError("the kernel was not built, or there are no classes; ask `clips` first")
        y, lengths = np.asarray(y), np.ascontiguousarray(lengths, np.float64)
        inside = all(0 <= part.first <= self.n_features - part.products.n_features for part in parts)
        self._check(x, y.shape == lengths.shape == (len(x),) and y.dtype.kind in "iu" and inside)
        if len(y) and not 0 <= y.min() <= y.max() < self.n_classes:
            raise IndexError(f"classes are from {y.min()} to {y.max()}; allowed: 0 to {self.n_classes - 1}")
        y = np.ascontiguousarray(y, np.int64)
        r_norms, factors = np.empty(len(x)), np.empty(len(x))
        given = (y.ctypes.data, lengths.ctypes.data, bound, r_norms.ctypes.data, factors.ctypes.data)
        if self._library is None:
            x = self._widened(x)
            r = self.scores(x)
            LIBRARY.linprobe_clip(r.ctypes.data, *given, *r.shape)
            return ClippedBlock(self.sum(r, x), r_norms, factors, [part.scores(x) for part in parts])
        x = np.ascontiguousarray(x, None if x.dtype in STORED else np.float32)
        told, scores = [], []
        for part in parts:
            if part.products._library is None:
                scores.append(part.scores(x))
            else:
                scores.append(np.empty((len(x), part.products.n_classes), np.float32))
                told.append(part.products._part(part.first, scores[-1]))
        self._total[:] = 0
        rows = (x.ctypes.data, STORED.index(x.dtype), self._wide(GROUP).ctypes.data, self._packed.ctypes.data)
        sums = (self._total.ctypes.data, self._sums.ctypes.data, *x.shape, self.n_classes)
        self._library.linprobe_clipped_sum(*rows, *given, *sums, (_Part * len(told))(*told), len(told))
        return ClippedBlock(self._total, r_norms, factors, scores)

    def _part(self, first: int, scores: NDArray[np.float32]) -> _Part:
        """What the kernel is told to score features from the `first` on, on the way."""
        return _Part(self._packed.ctypes.data, scores.ctypes.data, first, self.n_features, self.n_classes)

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
