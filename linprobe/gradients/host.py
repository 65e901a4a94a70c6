"""Products on the host, by BLAS or by the C kernel if it was built, and the choice of a back end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.rows import BLOCK_UNITS, Rows
from linprobe.data.sources import BLOCK_ROWS
from linprobe.errors import require
from linprobe.gradients.backend import Backend, NumpyProducts, Products
from linprobe.gradients.kernel import FusedProducts, KernelProducts, PackedWeights
from linprobe.mechanisms.noise import NoiseSource
from linprobe.native import LIBRARY
from linprobe.parallel.threads import n_threads

FEW_CLASSES = 32  # with more classes, runs are as fast as groups; at most MOST of clipped_sum.c
WORK_PER_THREAD = 1 << 23  # least number of multiplications
ARITHMETIC = "numpy" if LIBRARY is None else "kernel"


def products(weights: NDArray[np.float32]) -> Products:
    """Products with `weights` (n_classes, n_features).

    The kernel scores, clips and sums in one pass over the rows. Without it, BLAS computes all products. The results
    differ by rounding only.
    """
    if LIBRARY is None or not len(weights):
        return NumpyProducts(weights)
    kernel = FusedProducts if len(weights) <= FEW_CLASSES else KernelProducts
    return kernel(PackedWeights(weights), LIBRARY)


class HostBackend:
    """`linprobe.gradients.backend.Backend` in this process's memory."""

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def zeros(self, *shape: int) -> NDArray[np.float64]:
        return np.zeros(shape)

    def place(self, rows: Rows) -> Rows:
        return rows

    def noise(self, source: NoiseSource) -> NoiseSource:
        return source

    def products(self, weights: NDArray[np.float32]) -> Products:
        return products(weights)

    def n_threads(self, rows: Rows, weights: NDArray[Any]) -> int:
        """One thread per block or per `WORK_PER_THREAD` multiplications, whichever gives fewer; at least one."""
        n_rows = round(rows.n_local * rows.unit_rows)
        n_blocks = -(-rows.n_local // BLOCK_UNITS) if rows.units else -(-n_rows // BLOCK_ROWS)
        return max(1, min(n_threads(), n_blocks, n_rows * math.prod(weights.shape) // WORK_PER_THREAD))


HOST = HostBackend()


def choose_backend(device: str) -> Backend:
    """The backend of a run: the host for `cpu`, else a GPU.

    `products` chooses between the kernel and BLAS on the host.

    Raises:
        ParameterError: an unknown device, or a GPU that torch does not find. UsageError: torch is not installed.
    """
    if device == "cpu":
        return HOST
    require("torch", f"device {device}")
    from linprobe.gradients.gpu import GpuBackend, check_device  # imports torch

    return GpuBackend(check_device(device))
