"""Products on a GPU, by torch. Rows and weights stay on the GPU, and a step does not synchronise with the host.

Importing this module imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linprobe.data.blocks import Block, LazyBlock, Pairs, inner_products, pairs_of
from linprobe.data.owners import Bounds
from linprobe.data.rows import ArrayRows, Rows
from linprobe.errors import ParameterError, UsageError
from linprobe.gradients.rounding import SUM_ROWS, ExactSum, Sample
from linprobe.mechanisms.gpu_noise import DeviceNoise, check_ndtri
from linprobe.mechanisms.noise import NoiseSource

DEVICE_ROWS = 1 << 16  # rows of a block
DEVICE_UNITS = 1 << 13  # people of a block
SUMS_BYTES = 1 << 28  # for float32 sums of one batched product
NO_SAMPLES = "rows on a GPU cannot be sampled; use device cpu"


def check_device(name: str) -> torch.device:
    """The torch device `name`: cpu, cuda (the current GPU) or cuda:N.

    Raises ParameterError: any other name, or a GPU that torch does not find. LinprobeError: a GPU whose inverse normal
    distribution differs too much from the host.
    """
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = ["cpu", *(["cuda"] if n_gpus else []), *(f"cuda:{number}" for number in range(n_gpus))]
    if name in found:
        check_ndtri(torch.device(name))
        return torch.device(name)
    allowed = f"allowed here: {', '.join(found)}"
    if re.fullmatch(r"cuda(:\d+)?", name) is None:
        raise ParameterError(f"device is {name!r}; {allowed}")
    gpus = {0: "no GPU", 1: "1 GPU"}.get(n_gpus, f"{n_gpus} GPUs")
    raise ParameterError(
        f"device is {name!r}, but torch finds {gpus} here; {allowed}; "
        "give one of these, or run where torch.cuda.is_available() says True"
    )


class DeviceRows(Rows):
    """Rows in the memory of a GPU, or the rows of people.

    Args:
        rows: rows on the host; x keeps its storage type on the device. Blocks are float32.
        device: destination of the copy.
    """

    def __init__(self, rows: ArrayRows, device: torch.device) -> None:
        # the proof in rounding.py is for sums in float32, not in TF32 with its 11 bits
        torch.backends.cuda.matmul.allow_tf32 = False
        x = torch.from_numpy(rows.x)
        self._x = (x.view(torch.bfloat16) if rows.x.dtype == np.uint16 else x).to(device)
        self._y, self._norms = torch.from_numpy(rows.y).to(device), torch.from_numpy(rows.norms).to(device)
        self._weights = None if rows.weights is None else torch.from_numpy(rows.weights).to(device)
        self.n_rows, self.n_features, self.device = rows.n_rows, rows.n_features, device
        self.bounds, self.units, self._pairs = rows.bounds, rows.units, dict[int, Pairs]()

    def _block(self, start: int, here: slice) -> Block:
        weights = None if self._weights is None else self._weights[here]
        x, y, norms = self._x[here].float(), self._y[here], self._norms[here]
        return Block(start, x, y, norms, weights=weights)  # type: ignore[arg-type]

    def _people(self, start: int, bounds: Bounds) -> Block:
        block = self._block(start, slice(int(bounds[0]), int(bounds[-1])))
        bounds = bounds - bounds[0]
        if start not in self._pairs:
            pairs = pairs_of(bounds)
            placed: dict[str, Any] = {
                entry.name: torch.from_numpy(value).to(self.device)
                for entry in fields(pairs)
                if entry.name != "formed" and isinstance(value := getattr(pairs, entry.name), np.ndarray)
            }
            pairs = replace(pairs, **placed)
            self._pairs[start] = replace(pairs, inner=inner_products(block.stored, pairs))
        return replace(block, bounds=bounds, pairs=self._pairs[start])

    def _whole(self) -> Iterator[LazyBlock]:
        if self.bounds is None:
            for start in range(0, self.n_rows, DEVICE_ROWS):
                yield partial(self._block, start, slice(start, start + DEVICE_ROWS))
            return
        for start in range(0, self.n_rows, DEVICE_UNITS):
            yield partial(self._people, start, self.bounds[start : start + DEVICE_UNITS + 1])

    def _sampled(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        raise UsageError(NO_SAMPLES)


class DeviceProducts:
    """`linprobe.gradients.backend.Products` on a GPU: a batched product sums many runs of `SUM_ROWS` rows."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self.n_classes, self.n_features = weights.shape
        self._group = SUM_ROWS * max(1, SUMS_BYTES // (4 * weights.numel()))

    def for_thread(self) -> DeviceProducts:
        return self

    def scores(self, x: Tensor) -> Tensor:
        return x @ self._weights.T

    def zeros(self) -> Tensor:
        return torch.zeros(self._weights.shape, dtype=torch.float64, device=self._weights.device)

    def add(self, total: ExactSum, r: Tensor, x: Tensor, sample: Sample | None = None) -> None:
        """Add sum_i r_i x_i^T over all rows to `total`, for r (b, n_classes); float32 sums of `SUM_ROWS` rows each.

        Raises UsageError: `sample` is given; samples are taken on the host.
        """
        if sample is not None:
            raise UsageError(NO_SAMPLES)
        block_sum = self.zeros()
        whole = len(x) // SUM_ROWS * SUM_ROWS
        for start in range(0, whole, self._group):
            here = slice(start, min(start + self._group, whole))
            runs_of_r = r[here].reshape(-1, SUM_ROWS, r.shape[1]).transpose(1, 2)
            sums = torch.bmm(runs_of_r, x[here].reshape(-1, SUM_ROWS, x.shape[1]))
            block_sum += sums.sum(dim=0, dtype=torch.float64)
        total.add(block_sum + r[whole:].T @ x[whole:])


class GpuBackend:
    """`linprobe.gradients.backend.Backend` on a GPU; tests also use torch's CPU device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def put(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def place(self, rows: Rows) -> DeviceRows:
        """A copy. Raises UsageError for streamed rows, which do not fit into the memory of this machine."""
        if not isinstance(rows, ArrayRows):
            raise UsageError(
                f"the rows do not fit into this machine's memory, as device {str(self.device)!r} needs; use cpu"
            )
        return DeviceRows(rows, self.device)

    def noise(self, source: NoiseSource) -> DeviceNoise:
        return DeviceNoise(source, self.device)

    def products(self, weights: Tensor) -> DeviceProducts:
        return DeviceProducts(weights)

    def n_threads(self, rows: Rows, weights: Tensor) -> int:
        return 1  # launches the work of the device
