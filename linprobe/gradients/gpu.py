"""Products on a GPU, by torch. Rows and weights stay on the GPU, and a step does not synchronise with the host.

With few classes, one kernel scores, clips and sums the rows in one read (`clipped_sum.cu`). torch compiles it at its
first use; where it does not compile, torch computes each product. Importing this module imports torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linprobe.data.blocks import Block, LazyBlock, Pairs, inner_products, pairs_of
from linprobe.data.labels import Bounds
from linprobe.data.rows import ArrayRows, Rows, rows_in_memory
from linprobe.errors import ParameterError
from linprobe.gradients.backend import Backend, ClippedBlock, Part, Products, whole_multiple
from linprobe.gradients.rounding import SUM_ROWS, ExactSum
from linprobe.mechanisms.gpu_noise import DeviceNoise, check_ndtri
from linprobe.parallel.array_api import Mask

DEVICE_ROWS = 1 << 18  # rows of a block
DEVICE_UNITS = 1 << 13  # people of a block
SUMS_BYTES = 1 << 28  # for float32 sums of one batched product
ROUNDED_ROWS = 1 << 16  # in a float64 sum that is rounded as a whole, at most: lemma 2 of docs/proofs/clipped-sum.md
GROUP = 4  # features that a thread of the kernel takes together; rows are padded to whole groups
KINDS = (torch.float32, torch.bfloat16, torch.float16)  # storage types of rows, as the kernel numbers them
KERNEL_ENTRIES = 24  # groups of a thread times classes, which are in registers; a warp has a lane for each class
TILE_ROWS, STAGES = 8, 3  # as in clipped_sum.cu
THREADS, FEWER_THREADS = 256, 128  # of a block of the kernel, for many and few features
MOST_LEFT = 2  # groups left over after each thread has its own, as in clipped_sum.cu
STATIC_BYTES = 10 << 10  # of shared memory beside the tiles, at most
CHECKED_ROWS, CHECKED_BOUND, AGREED = 300, 0.5, 1e-4  # of the kernel's check against torch


def check_device(name: str) -> torch.device:
    """The torch device `name`: cpu, cuda (the current GPU) or cuda:N. ParameterError: another, or not found here."""
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
        f"device is {name!r}, but torch finds {gpus} here; {allowed}; give one, or run where torch.cuda.is_available()"
    )


@dataclass(frozen=True)
class DeviceBlock(Block):
    """Rows in the memory of a GPU, in their storage type, padded with zeros."""

    width: int = 0  # number of features without the padding

    @cached_property
    def x(self) -> Any:
        """The rows as float32, without the padding."""
        stored: Any = self.stored
        return stored[:, : self.width].float()


class DeviceRows(Rows):
    """Rows, or those of people, copied to the `device` in their storage type; blocks are float32."""

    def __init__(self, rows: ArrayRows, device: torch.device) -> None:
        # the proof in rounding.py is for sums in float32, not in TF32 with its 11 bits
        torch.backends.cuda.matmul.allow_tf32 = False
        x = torch.from_numpy(rows.x)
        x = x.view(torch.bfloat16) if rows.x.dtype == np.uint16 else x
        padded = torch.zeros((len(x), whole_multiple(x.shape[1], GROUP)), dtype=x.dtype, device=device)
        padded[:, : x.shape[1]].copy_(x)
        others = (
            None if each is None else torch.from_numpy(each).to(device) for each in (rows.y, rows.norms, rows.weights)
        )
        self._parts: tuple[Tensor | None, ...] = (padded, *others)
        self.n_rows, self.n_features, self.device = rows.n_rows, rows.n_features, device
        self.bounds, self.units, self._pairs = rows.bounds, rows.units, dict[int, Pairs]()

    def sample(self, mask: Mask, rate: float, *, observed: bool) -> Self:
        """As of all rows, but all rows are read, and charged, whether `observed` or not. Not for people."""
        there = torch.from_numpy(mask)
        there = there.pin_memory() if self.device.type == "cuda" else there
        return super().sample(there.to(self.device, non_blocking=True), rate, observed=True)  # type: ignore[arg-type]

    def _block(self, start: int, here: slice) -> DeviceBlock:
        x, y, norms, weights = (None if each is None else each[here] for each in self._parts)
        return DeviceBlock(start, x, y, norms, weights=weights, width=self.n_features)  # type: ignore[arg-type]

    def _block_of_people(self, start: int, bounds: Bounds) -> Block:
        stored = self._block(start, slice(int(bounds[0]), int(bounds[-1])))
        block = Block(start, stored.x, stored.y, stored.norms, weights=stored.weights)
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
        for start in range(0, self.n_rows, DEVICE_ROWS):
            yield partial(self._block, start, slice(start, start + DEVICE_ROWS))

    def _people(self, bounds: Bounds, size: int, sampled: Mask | None) -> Iterator[LazyBlock]:
        for start in range(0, self.n_rows, DEVICE_UNITS):
            yield partial(self._block_of_people, start, bounds[start : start + DEVICE_UNITS + 1])


class Kernel(NamedTuple):
    """The compiled kernel for one shape and one GPU, and how to start it."""

    start: Callable[..., None]  # the function of torch
    n_blocks: int  # of threads
    threads: int  # in each
    shared: int  # bytes of dynamic shared memory of a block

    def __call__(
        self,
        x: Tensor,
        weights: Tensor,
        y: Tensor,
        norms: Tensor,
        joined: Tensor | None,
        total: Tensor,
        bound: float,
        shift: float,
    ) -> tuple[Tensor, Tensor]:
        """Add the clipped gradients of rows x (n, width) to `total` (n_classes, width), rounded to the grid of `shift`.

        `weights`: (n_classes, width), float32; y, norms, and the mask `joined` of rows to add: (n,).
        Returns: norms of the residuals, and clip factors of all rows, (n,), float32.
        """
        device = x.device
        r_norms, factors = torch.empty((2, len(x)), dtype=torch.float32, device=device)
        joined = torch.empty(0, dtype=torch.bool, device=device) if joined is None else joined  # its address is null
        most = float(np.nextafter(np.float32(bound), np.float32(0)))
        with torch.cuda.device(device):
            self.start(
                grid=(self.n_blocks, 1, 1),
                block=(self.threads, 1, 1),
                args=[x, weights, y, norms, joined, total, r_norms, factors, len(x), most, shift],
                shared_mem=self.shared,
            )
        return r_norms, factors

    @classmethod
    def of(cls, n_features: int, n_classes: int, kind: torch.dtype, device: torch.device) -> Kernel | None:
        """The kernel for weights (n_classes, n_features); None without a GPU, or for shapes that it does not fit."""
        shape = shape_of(n_features, n_classes)
        if shape is None or device.type != "cuda" or not torch.cuda.is_available():
            return None
        index = torch.cuda.current_device() if device.index is None else device.index
        return _compiled(shape, KINDS.index(kind), index)


class Shape(NamedTuple):
    """What the kernel is compiled for: features with padding (`width`), classes, and threads of a block."""

    width: int
    n_classes: int
    threads: int


def shape_of(n_features: int, n_classes: int) -> Shape | None:
    """The shape of the kernel for weights (n_classes, n_features); None if they do not fit into registers."""
    groups = -(-n_features // GROUP)
    threads = FEWER_THREADS if groups <= FEWER_THREADS + MOST_LEFT else THREADS
    whole, left = divmod(groups, threads)
    of_a_thread = whole if whole and left <= MOST_LEFT else whole + 1
    fits = 1 <= of_a_thread * n_classes <= KERNEL_ENTRIES
    return Shape(GROUP * groups, n_classes, threads) if fits else None


def source(shape: Shape, kind: int) -> str:
    """The source of the kernel for rows of storage type `KINDS[kind]`."""
    given = {"D": shape.width, "C": shape.n_classes, "KIND": kind, "THREADS": shape.threads}
    defined = "".join(f"#define {name} {value}\n" for name, value in given.items())
    return defined + Path(__file__).with_name("clipped_sum.cu").read_text(encoding="utf-8")


@contextmanager
def toolkit_not_needed() -> Iterator[None]:
    """Let torch compile where it finds no CUDA toolkit. It refuses without a folder of headers; the source has none."""
    from torch.utils import cpp_extension

    found = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = found or os.devnull
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = found


@cache
def _compiled(shape: Shape, kind: int, index: int) -> Kernel | None:
    """The kernel on GPU number `index`; None if it does not compile, or needs more shared memory than the GPU has."""
    gpu = torch.cuda.get_device_properties(index)
    most = getattr(gpu, "shared_memory_per_block_optin", 0)  # no attribute in old versions of torch
    shared = STAGES * TILE_ROWS * shape.width * KINDS[kind].itemsize
    if shared + STATIC_BYTES > most:
        return None
    n_blocks = gpu.multi_processor_count * max(1, most // (shared + STATIC_BYTES))
    try:
        with toolkit_not_needed(), torch.cuda.device(index):
            start = torch.cuda._compile_kernel(source(shape, kind), "clipped_sum")
            start.set_shared_memory_config(shared)
        kernel = Kernel(start, n_blocks, shape.threads, shared)
        return kernel if _agrees(kernel, shape, kind, torch.device("cuda", index)) else None
    except torch.OutOfMemoryError:  # a run that is resumed must find the kernel again
        raise
    except (AttributeError, ImportError, OSError, RuntimeError):  # another torch, or a machine without its compiler
        return None


def _agrees(kernel: Kernel, shape: Shape, kind: int, device: torch.device) -> bool:
    """Whether the kernel clips and sums some random rows as torch does in float64."""
    g = torch.Generator(device).manual_seed(0)
    width, n_classes = shape.width, shape.n_classes
    x = torch.randn((CHECKED_ROWS, width), generator=g, device=device).div_(width**0.5).to(KINDS[kind])
    weights = torch.randn((n_classes, width), generator=g, device=device).mul_(3)
    y = torch.randint(n_classes, (CHECKED_ROWS,), generator=g, device=device)
    joined = torch.rand(CHECKED_ROWS, generator=g, device=device) < 0.7
    wide = x.double()
    norms, r = torch.linalg.vector_norm(wide, dim=1), torch.softmax(wide @ weights.double().T, 1)
    r -= torch.nn.functional.one_hot(y, n_classes)
    r_norms = torch.linalg.vector_norm(r, dim=1)
    factors = (CHECKED_BOUND / (norms * r_norms)).clip(None, 1)
    expected = (r * (factors * joined)[:, None]).T @ wide
    total = torch.zeros((n_classes, width), dtype=torch.float64, device=device)
    shift = ExactSum(total, np.array(CHECKED_BOUND), CHECKED_ROWS).shift
    found = kernel(x, weights, y, norms, joined, total, CHECKED_BOUND, float(shift))
    pairs = ((total, expected), (found[0], r_norms), (found[1], factors))
    return all(bool(torch.linalg.vector_norm(a - b) <= AGREED * (1 + torch.linalg.vector_norm(b))) for a, b in pairs)


class DeviceProducts(Products):
    """Products on a GPU: a batched product sums many runs of `SUM_ROWS` rows."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self.n_classes, self.n_features = weights.shape
        self._group = min(ROUNDED_ROWS, SUM_ROWS * max(1, SUMS_BYTES // (4 * weights.numel())))

    def for_thread(self) -> DeviceProducts:
        return self

    def sample(self, mask: Any, rate: float) -> Any:
        """The mask: sums are over all places, and rows outside the sample add zeros."""
        return mask

    def scores(self, x: Tensor) -> Any:
        return x @ self._weights.T

    def zeros(self) -> Tensor:
        """The empty sum, a part of padded memory, as the kernel needs."""
        shape = (self.n_classes, whole_multiple(self.n_features, GROUP))
        return torch.zeros(shape, dtype=torch.float64, device=self._weights.device)[:, : self.n_features]

    def add(self, total: ExactSum, r: Tensor, x: Tensor, sample: Any = None) -> None:
        """Add sum_i r_i x_i^T over all rows to `total`, for r (b, n_classes); float32 sums of `SUM_ROWS` rows each.

        The residuals of rows outside the `sample` are zero.
        """
        whole = len(x) // SUM_ROWS * SUM_ROWS
        for start in range(0, whole, self._group):
            here = slice(start, min(start + self._group, whole))
            runs_of_r = r[here].reshape(-1, SUM_ROWS, r.shape[1]).transpose(1, 2)
            sums = torch.bmm(runs_of_r, x[here].reshape(-1, SUM_ROWS, x.shape[1]))
            total.add(sums.sum(dim=0, dtype=torch.float64))
        total.add((r[whole:].T @ x[whole:]).double())

    @cached_property
    def _padded_weights(self) -> Tensor:
        return torch.nn.functional.pad(self._weights, (0, -self.n_features % GROUP)).contiguous()

    def clip_block(
        self, total: ExactSum, block: Block, bound: float, parts: Sequence[Part] = (), *, sample: Any = None
    ) -> ClippedBlock | None:
        """As of the kernel's products on the host, for rows of one class each, with one `shift` for all entries.

        Factors are float32, at most a few roundings from the float64 factors. No scores of `parts` are computed.
        """
        if not isinstance(block, DeviceBlock) or block.y.ndim != 1:
            return None
        stored, y, norms, made = (cast("Tensor", each) for each in (block.stored, block.y, block.norms, total.total))
        kernel = Kernel.of(self.n_features, self.n_classes, stored.dtype, self._weights.device)
        if kernel is None:
            return None
        if made.stride() != (stored.shape[1], 1) or not isinstance(total.shift, float):
            raise ValueError("a sum or rows that do not fit the kernel")
        taken: Any = kernel(stored, self._padded_weights, y, norms, sample, made, bound, total.shift)
        r_norms, factors = taken
        return ClippedBlock(block.y, block.norms, bound, r_norms, factors, (), [])


class GpuBackend(Backend):
    """A GPU; tests also use torch's CPU device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def put(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    @property
    def arithmetic(self) -> str:
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return f"torch {torch.__version__} on {kind}"

    def place(self, rows: Rows) -> DeviceRows:
        return DeviceRows(rows_in_memory(rows, str(self.device)), self.device)

    def noise(self, insecure_seed: int | None = None) -> DeviceNoise:
        return DeviceNoise(self.device, insecure_seed)

    def products(self, weights: Tensor) -> DeviceProducts:
        return DeviceProducts(weights)

    def n_threads(self, rows: Rows, weights: Tensor) -> int:
        return 1  # launches the work of the device
