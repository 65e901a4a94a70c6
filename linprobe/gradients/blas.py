"""Products by BLAS, through NumPy."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import StoredRows, widened
from linprobe.gradients.rounding import SUM_ROWS, ExactSum, Sample

SUM_CLASSES = 128  # classes per BLAS call, so that the sum stays in cache


class NumpyProducts:
    """`linprobe.gradients.backend.Products` by BLAS."""

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self._weights = np.asarray(weights, np.float32)
        self.n_classes, self.n_features = self._weights.shape

    def for_thread(self) -> NumpyProducts:
        """The same products with their own buffers."""
        return NumpyProducts(self._weights)

    def zeros(self) -> NDArray[np.float64]:
        """The empty sum, shape (n_classes, n_features)."""
        return np.zeros(self._weights.shape)

    @cached_property
    def _block_sum(self) -> NDArray[np.float64]:
        """Buffer for the sum of a block, which is then rounded as a whole."""
        return self.zeros()

    def scores(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """x W^T, shape (b, n_classes), float32. Does not copy x if it is a range of columns."""
        self.check(x)
        return np.asarray(strided_rows(widened(x))[0] @ self._weights.T)

    def add(self, total: ExactSum, r: NDArray[np.float32], x: NDArray[Any], sample: Sample | None = None) -> None:
        """Add sum_i r_i x_i^T to `total`, which `zeros` made; r (b, n_classes) float32.

        Each run of `SUM_ROWS` rows, or each run of `sample`, is summed in float32. The sum of the runs is rounded to
        the grid of `total`.

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
