"""The two matrix products of a step: scores of a block of rows, and the sum of its outer products.

With few classes BLAS copies every row for a product that uses it a few times. A kernel of our own (`_products.c`, built
on installation where there is a C compiler) reads them as they lie; without it, or with LINPROBE_NATIVE=0 in the
environment, both products are BLAS's. Results are the same but for rounding.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SUM_ROWS = 128  # rows that are summed in float32
NATIVE_CLASSES = 16  # with more of them, or fewer features, BLAS is as fast
NATIVE_FEATURES = 128
TILE_CLASSES = 128  # classes that BLAS sums at a time, so that the sum stays in cache
PANEL = 6  # classes whose weights lie together, and CHUNK, features: as in _products.c
CHUNK = 16


def _library() -> ctypes.CDLL | None:
    """The kernel, or None where it was not built or is turned off."""
    path = Path(__file__).with_name("_products" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))
    if os.environ.get("LINPROBE_NATIVE") == "0" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # built for another machine
        return None
    address, size = ctypes.c_void_p, ctypes.c_size_t
    library.linprobe_scores.argtypes = [address, address, address, size, size, ctypes.c_int]
    library.linprobe_sum.argtypes = [address, address, address, size, size, ctypes.c_int, size]
    library.linprobe_scores.restype = library.linprobe_sum.restype = None
    return library


LIBRARY = _library()


class Products:
    """Products of rows x (b, n_features) float32 with weights (n_classes, n_features) float32.

    Buffers are reused from call to call: each thread needs its own.
    """

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self._weights = np.ascontiguousarray(weights, dtype=np.float32)
        self._total = np.empty(self._weights.shape)
        n_classes, n_features = self._weights.shape
        native = n_classes <= NATIVE_CLASSES and n_features >= NATIVE_FEATURES
        self._library = LIBRARY if native else None
        if self._library is not None:
            self._packed = _packed(self._weights)
        else:
            self._part = np.empty((min(TILE_CLASSES, len(self._weights)), self._weights.shape[1]), np.float32)

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """x W^T, shape (b, n_classes), float32, the caller's to write to."""
        x = np.ascontiguousarray(x, np.float32)
        if self._library is None:
            return np.asarray(x @ self._weights.T)
        scores = np.empty((len(x), len(self._weights)), np.float32)
        self._library.linprobe_scores(
            x.ctypes.data, self._packed.ctypes.data, scores.ctypes.data, *x.shape, len(self._weights)
        )
        return scores

    def sum(self, r: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float64]:
        """sum_i r_i x_i^T for r (b, n_classes) float32, shape (n_classes, n_features), overwritten by the next call.

        At most `SUM_ROWS` rows are summed in float32, and those sums in float64, in the order of the rows.
        """
        r, x = np.asarray(r, np.float32), np.ascontiguousarray(x, np.float32)
        self._total[:] = 0
        if self._library is None:
            self._add_by_blas(r, x)
            return self._total
        if r.strides[1] != r.itemsize or r.strides[0] < 0 or r.strides[0] % r.itemsize:
            r = np.ascontiguousarray(r)
        stride = r.strides[0] // r.itemsize
        self._library.linprobe_sum(
            x.ctypes.data, r.ctypes.data, self._total.ctypes.data, *x.shape, len(self._weights), stride
        )
        return self._total

    def _add_by_blas(self, r: NDArray[np.float32], x: NDArray[np.float32]) -> None:
        for first in range(0, len(self._weights), TILE_CLASSES):
            total = self._total[first : first + TILE_CLASSES]
            part = self._part[: len(total)]
            for start in range(0, len(x), SUM_ROWS):
                rows = slice(start, start + SUM_ROWS)
                np.matmul(r[rows, first : first + TILE_CLASSES].T, x[rows], out=part)
                total += part


def _packed(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights in the order in which the kernel reads them: by panel, chunk, class and feature, padded with zeros."""
    n_classes, n_features = weights.shape
    padded = np.zeros((n_classes, -(-n_features // CHUNK), CHUNK), np.float32)
    padded.reshape(n_classes, -1)[:, :n_features] = weights
    panels = np.array_split(padded, -(-n_classes // PANEL))
    return np.concatenate([panel.swapaxes(0, 1).ravel() for panel in panels])
