"""Storage of rows in memory: storage types, rounding to them, alignment."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from linprobe.errors import UsageError
from linprobe.native import LIBRARY, KernelRows
from linprobe.options import Precision as Precision

CACHE_LINE = 64  # bytes
STORAGE: dict[Precision, type[np.generic]] = {
    "float32": np.float32,
    "bfloat16": np.uint16,  # its bits: NumPy has no bfloat16
    "float16": np.float16,
}
STORED = tuple(np.dtype(stored) for stored in STORAGE.values())  # in the order of `enum stored` in native/clipped_sum.c


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An uninitialised array aligned to a cache line, so that no SIMD vector crosses two lines."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def narrowed(x: NDArray[np.float32], precision: Precision) -> NDArray[Any]:
    """`x` rounded to `precision`, to nearest, ties to even; bfloat16 as its bits in uint16.

    Raises:
        UsageError: an unknown precision, or a number out of its range.
    """
    if precision not in STORAGE:
        raise UsageError(f"precision is {precision!r}; allowed: {', '.join(STORAGE)}")
    if precision == "float32":
        return x
    if precision == "float16":
        with np.errstate(over="ignore"):
            half = x.astype(np.float16)
        bits, infinity, largest = half.view(np.uint16), 0x7C00, 65504.0
    else:
        rounded = x.view(np.uint32) >> 16
        rounded &= 1
        rounded += x.view(np.uint32)
        rounded += 0x7FFF
        rounded >>= 16
        bits, infinity, largest = rounded.astype(np.uint16), 0x7F80, 3.38e38
    if (bits & 0x7FFF).max(initial=0) >= infinity:
        raise UsageError(
            f"a row holds a number of size {np.abs(x).max():.3g}, which {precision} does not; allowed: at most "
            f"{largest:g}; use precision float32"
        )
    return half if precision == "float16" else bits


def widened(x: NDArray[Any], out: NDArray[np.float32] | None = None) -> NDArray[Any]:
    """`x` converted from float16, or from the bits of bfloat16 in uint16, to float32, in `out` if given; else `x`."""
    if x.dtype not in STORED[1:]:
        return x
    wide: NDArray[np.float32] = aligned_empty(x.shape, np.float32) if out is None else out
    if LIBRARY is not None:
        x = np.ascontiguousarray(x)
        LIBRARY.linprobe_widen(x.ctypes.data, STORED.index(x.dtype), wide.ctypes.data, x.size)
    elif x.dtype == np.uint16:
        np.left_shift(x, 16, out=wide.view(np.uint32), dtype=np.uint32)
    else:
        wide[...] = x
    return wide


@dataclass(frozen=True)
class Translation:
    """A public vector subtracted from each row, and a constant column appended after it.

    Attributes:
        shift: the vector, shape (n_features,), float32.
        column: value of the constant column.
    """

    shift: NDArray[np.float32]
    column: float


@dataclass(frozen=True)
class StoredRows:
    """Rows as they are stored, to be widened and translated when they are used.

    Attributes:
        x: shape (n, n_features): float32, float16, the bits of bfloat16 in uint16, or float64.
        places: the rows meant, shape (m,), int64; None for all.
        translation: of each row; None for rows as they are.
    """

    x: NDArray[Any]
    places: NDArray[np.int64] | None = None
    translation: Translation | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of the rows meant, and their width after translation."""
        n = len(self.x) if self.places is None else len(self.places)
        return n, self.x.shape[1] + (self.translation is not None)

    def for_kernel(self) -> KernelRows:
        """The kernel's argument. It holds addresses, so `self` must outlive it.

        Raises:
            ValueError: rows that are not contiguous or have no storage type, or places outside the rows.
        """
        places, translation = self.places, self.translation
        if self.x.dtype not in STORED or not self.x.flags.c_contiguous:
            raise ValueError(f"rows of type {self.x.dtype} and strides {self.x.strides}; the kernel reads neither")
        if places is not None and len(places) and not 0 <= places.min() <= places.max() < len(self.x):
            raise ValueError(f"places are from {places.min()} to {places.max()}; allowed: 0 to {len(self.x) - 1}")
        return KernelRows(
            self.x.ctypes.data,
            None if places is None else places.ctypes.data,
            None if translation is None else translation.shift.ctypes.data,
            self.x.shape[1],
            0.0 if translation is None else translation.column,
            STORED.index(self.x.dtype),
        )

    def wide(self, out: NDArray[np.float32] | None = None) -> NDArray[Any]:
        """The rows meant, float32 (float64 rows stay so), in `out` if given; `x` itself if there is nothing to do."""
        if self.places is None and self.translation is None:
            return widened(self.x, out)
        if LIBRARY is not None and self.x.dtype in STORED and self.x.flags.c_contiguous:
            found: NDArray[np.float32] = aligned_empty(self.shape, np.float32) if out is None else out
            LIBRARY.linprobe_load(ctypes.byref(self.for_kernel()), found.ctypes.data, len(found))
            return found
        x = widened(self.x if self.places is None else self.x[self.places])
        if self.translation is None:
            return x
        found = np.empty(self.shape, np.float32)
        np.subtract(x, self.translation.shift, out=found[:, :-1])
        found[:, -1] = self.translation.column
        return found
