"""The kernel takes rows, residuals and strides that lie beyond 2^31 numbers, in memory that is mostly never touched."""

from __future__ import annotations

import ctypes
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from linprobe.gradients.backend import GROUP, SPARE_ROWS
from linprobe.gradients.rounding import SUM_ROWS
from linprobe.native import LIBRARY, KernelRows

FAR, N_FEATURES, N_CLASSES, APART = (1 << 31) + 5, 16, 2, 32  # row FAR: byte 2^37 of float32 rows
ROWS = np.random.default_rng(0).normal(size=(3, N_FEATURES)).astype(np.float32)
PLACES = np.array([0, 1 << 28, FAR], np.int64)
pytestmark = pytest.mark.skipif(
    LIBRARY is None or sys.platform != "linux", reason="needs the kernel, and files without blocks"
)


def sparse(folder: Path, n: int, width: int) -> np.ndarray:
    """Zeros (n, width), float32, mapped from a file with no blocks: they take memory once they are written."""
    return np.memmap(folder / "sparse", np.float32, "w+", shape=(n, width))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Rows with `ROWS` at `PLACES`."""
    x = sparse(tmp_path_factory.mktemp("rows"), FAR + 1, N_FEATURES)
    x[PLACES] = ROWS
    return x


def kernel_rows(x: np.ndarray, places: np.ndarray | None) -> KernelRows:
    return KernelRows(x.ctypes.data, None if places is None else places.ctypes.data, None, N_FEATURES, 0.0, 0)


def clipped_sum(x: np.ndarray, places: np.ndarray | None) -> tuple[bytes, bytes]:
    """Sum of the clipped gradients of three rows, and their clip factors."""
    room = np.zeros(GROUP * N_FEATURES + APART * N_CLASSES, np.float32)
    weights, total = np.zeros(16 * N_CLASSES, np.float32), np.zeros(APART * N_CLASSES)
    y, lengths = np.array([0, 1, 0]), np.linalg.norm(ROWS.astype(np.float64), axis=1)
    r_norms, factors = np.zeros(3), np.zeros(3)
    pointers = (array.ctypes.data for array in (room, weights, y, lengths))
    outputs = (array.ctypes.data for array in (r_norms, factors, total))
    shape = N_CLASSES, APART, math.ldexp(1.5, 52 - 30)
    given = ctypes.byref(kernel_rows(x, places))
    LIBRARY.linprobe_clipped_sum(given, *pointers, 1.0, *outputs, 3, None, 0, None, *shape, None, 0)
    assert total.any()
    return total.tobytes(), factors.tobytes()


def test_far_rows_are_loaded(rows: np.ndarray) -> None:
    out = np.empty_like(ROWS)
    LIBRARY.linprobe_load(ctypes.byref(kernel_rows(rows, PLACES)), out.ctypes.data, 3)
    np.testing.assert_array_equal(out, ROWS)


def test_far_rows_have_the_clipped_sum_of_near_rows(rows: np.ndarray) -> None:
    assert clipped_sum(rows, PLACES) == clipped_sum(ROWS, None)


def test_far_rows_and_residuals_have_the_sum_of_near_ones(rows: np.ndarray, tmp_path: Path) -> None:
    residuals = np.random.default_rng(1).normal(size=(3, N_CLASSES)).astype(np.float32)
    far = sparse(tmp_path, FAR + 1, N_CLASSES)
    far[PLACES] = residuals
    sums = []
    for x, r, places in ((rows, far, PLACES), (ROWS, residuals, np.arange(3))):
        total, room = (
            np.zeros((N_CLASSES, APART)),
            np.zeros((SUM_ROWS + SPARE_ROWS) * APART + SUM_ROWS * N_CLASSES, np.float32),
        )
        pointers = [array.ctypes.data for array in (x, r, places)]
        shape = 3, N_FEATURES, N_CLASSES, N_CLASSES, APART, math.ldexp(1.5, 52 - 30)
        LIBRARY.linprobe_sum(*pointers, None, total.ctypes.data, room.ctypes.data, *shape)
        sums.append(total[:, :N_FEATURES])
    np.testing.assert_array_equal(*sums)
    np.testing.assert_allclose(sums[0], residuals.T.astype(np.float64) @ ROWS, atol=1e-5)


def test_a_stride_of_more_than_two_to_the_31_gives_the_scores_of_near_rows(tmp_path: Path) -> None:
    stride = (1 << 31) + 7
    x = sparse(tmp_path, 2 * stride + N_FEATURES, 1).ravel()
    for place, row in enumerate(ROWS):
        x[place * stride : place * stride + N_FEATURES] = row
    weights = np.random.default_rng(2).normal(size=16 * N_CLASSES).astype(np.float32)
    found = []
    for rows, apart in ((x, stride), (ROWS, N_FEATURES)):
        out = np.zeros((3, N_CLASSES), np.float32)
        pointers = (array.ctypes.data for array in (rows, weights, out))
        LIBRARY.linprobe_scores(*pointers, 3, N_FEATURES, N_CLASSES, apart)
        found.append(out)
    np.testing.assert_array_equal(*found)
    assert found[0].any()
