"""What a back end does: protocols, which `host.py`, `kernel.py` and `gpu.py` implement; and products by BLAS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import StoredRows, widened
from linprobe.data.rows import Rows
from linprobe.gradients.rounding import SUM_ROWS, ExactSum, Sample
from linprobe.mechanisms.gaussian import NoiseGenerator
from linprobe.mechanisms.noise import NoiseSource
from linprobe.parallel.array_api import Array

SUM_CLASSES = 128  # classes per BLAS call, so that the sum stays in cache


class Products(Protocol):
    """Products of rows (b, n_features) with one matrix of float32 weights (n_classes, n_features).

    Buffers are reused between calls, so each thread needs its own.
    """

    n_classes: int
    n_features: int

    def for_thread(self) -> Products:
        """The same products with their own buffers."""

    def zeros(self) -> Array:
        """The empty sum, shape (n_classes, n_features), float64, in the memory layout that `add` needs."""

    def scores(self, x: Array) -> Array:
        """x W^T, shape (b, n_classes), float32. The caller may overwrite it."""

    def add(self, total: ExactSum, r: Array, x: Array, sample: Sample | None = None) -> None:
        """Add sum_i r_i x_i^T to `total`, for r (b, n_classes), over the rows of `sample`, or all."""


@dataclass(frozen=True)
class Part:
    """Products with a range of features.

    Attributes:
        first: the first feature of the range.
        products: weights of the features in the range.
    """

    first: int
    products: Products

    def scores(self, x: Array) -> Array:
        """Scores of rows x (b, all features), shape (b, n_classes of `products`)."""
        return self.products.scores(x[:, self.first : self.first + self.products.n_features])


class Backend(Protocol):
    """Where training keeps rows, weights and noise, and computes with them."""

    def put(self, array: NDArray[Any]) -> Array:
        """`array` on this backend: itself on the host, a copy on a GPU."""

    def zeros(self, *shape: int) -> Array:
        """Zeros, float64."""

    def place(self, rows: Rows) -> Rows:
        """`rows` on this backend.

        Raises:
            UsageError: rows that this backend does not support.
        """

    def noise(self, source: NoiseSource) -> NoiseGenerator:
        """Noise from the stream of `source`, generated on this backend."""

    def products(self, weights: Array) -> Products:
        """Products with `weights` (n_classes, n_features), float32, for one thread."""

    def n_threads(self, rows: Rows, weights: Array) -> int:
        """Number of threads for a pass over `rows`."""


class NumpyProducts:
    """Products by BLAS, through NumPy."""

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self._weights = np.asarray(weights, np.float32)
        self.n_classes, self.n_features = self._weights.shape

    def for_thread(self) -> NumpyProducts:
        return NumpyProducts(self._weights)

    def zeros(self) -> NDArray[np.float64]:
        return np.zeros(self._weights.shape)

    @cached_property
    def _block_sum(self) -> NDArray[np.float64]:
        """Buffer for the sum of a block, which is then rounded as a whole."""
        return self.zeros()

    def scores(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """As of all products. Does not copy x if it is a range of columns."""
        self.check(x)
        return np.asarray(strided_rows(widened(x))[0] @ self._weights.T)

    def add(self, total: ExactSum, r: NDArray[np.float32], x: NDArray[Any], sample: Sample | None = None) -> None:
        """Each run of `SUM_ROWS` rows, or each run of `sample`, is summed in float32.

        The sum of the runs is rounded to the grid of `total`.

        Raises:
            ValueError: shapes that do not fit.
        """
        self.check(x, r.shape == (len(x), self.n_classes) and (sample is None or sample.fits(len(x))))
        self._add(total, r, np.ascontiguousarray(widened(x), np.float32), sample)

    def _add(self, total: ExactSum, r: NDArray[np.float32], x: NDArray[np.float32], sample: Sample | None) -> None:
        """`add`, after the shapes have been checked."""
        self._block_sum[:] = 0
        if sample is None:
            runs: list[slice | NDArray[np.int64]] = [slice(i, i + SUM_ROWS) for i in range(0, len(x), SUM_ROWS)]
        else:
            runs = [sample.places[run] for run in sample.runs()]
        for first in range(0, self.n_classes, SUM_CLASSES):
            classes = slice(first, first + SUM_CLASSES)
            for run in runs:
                self._block_sum[classes] += r[run, classes].T @ x[run]
        total.add(self._block_sum)

    def check(self, x: NDArray[np.float32] | StoredRows, others_fit: bool = True) -> None:
        """Raise ValueError unless rows `x` fit the weights, and `others_fit`; the kernel does not check shapes."""
        if len(x.shape) != 2 or x.shape[1] != self.n_features or not others_fit:
            raise ValueError(
                f"rows of shape {x.shape} do not fit weights of shape {self._weights.shape}, or another array has "
                "another length"
            )


def strided_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Rows as float32, each contiguous, and the stride between rows in elements; copied only if needed."""
    rows = np.asarray(rows, np.float32)
    if rows.strides[1] != rows.itemsize or rows.strides[0] < 0 or rows.strides[0] % rows.itemsize:
        rows = np.ascontiguousarray(rows)
    return rows, rows.strides[0] // rows.itemsize
