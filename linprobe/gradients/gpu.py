"""Training where a GPU is: rows, their products, and the noise, the same ChaCha20 stream as on the host, in torch.

`mechanisms/entropy.py` takes its words from OpenSSL. Here the same come from torch integer arithmetic, all blocks of a
draw at once, so that noise does not pass through the host, which never waits for the device in a step. Importing this
module imports torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linprobe.data.rows import ArrayRows, Block, Piece, Rows
from linprobe.errors import ParameterError, UsageError
from linprobe.gradients.host import SUM_ROWS
from linprobe.gradients.rounding import ExactSum
from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource

DEVICE_ROWS = 1 << 16  # rows of a block
SUMS_BYTES = 1 << 28  # of float32 sums at once

NO_SAMPLES = "samples cannot be taken of rows on a device; use device cpu"
CHUNK_BLOCKS = 1 << 18
STREAM_WORDS = WORDS_PER_BLOCK << 32
CONSTANTS = b"expand 32-byte k"


def check_device(name: str) -> torch.device:
    """The torch device of that name: cpu, cuda (the current GPU) or cuda:N.

    Raises:
        ParameterError: any other name, or a GPU that torch does not find.
    """
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = ["cpu", *(["cuda"] if n_gpus else []), *(f"cuda:{number}" for number in range(n_gpus))]
    if name in found:
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
    """Rows that lie on a device, with the products of a step there.

    Args:
        rows: on the host; x may be float16 or the bits of bfloat16, and stays so on the device: blocks are float32.
        device: where they are copied to.
    """

    def __init__(self, rows: ArrayRows, device: torch.device) -> None:
        # sums of 128 rows are proven for float32, not for the 11 bits of TF32
        torch.backends.cuda.matmul.allow_tf32 = False
        x = torch.from_numpy(rows.x)
        self._x = (x.view(torch.bfloat16) if rows.x.dtype == np.uint16 else x).to(device)
        self._y, self._norms = torch.from_numpy(rows.y).to(device), torch.from_numpy(rows.norms).to(device)
        self.device = device
        self.n_rows, self.n_features = rows.n_rows, rows.n_features

    def _block(self, start: int) -> Block:
        part = slice(start, start + DEVICE_ROWS)
        return Block(start, self._x[part].float(), self._y[part], self._norms[part])  # type: ignore[arg-type]

    def pieces(self) -> Iterator[Piece]:
        """All rows in order."""
        return (partial(self._block, start) for start in range(0, self.n_rows, DEVICE_ROWS))

    def selected_pieces(self, joined: NDArray[np.bool_]) -> Iterator[Piece]:
        """Not on a device: samples are taken on the host.

        Raises:
            UsageError: always.
        """
        raise UsageError(NO_SAMPLES)

    def put(self, array: NDArray[Any]) -> Tensor:
        """A copy on the device."""
        return torch.from_numpy(np.array(array)).to(self.device)

    def zeros(self, *shape: int) -> Tensor:
        """Zeros on the device, float64."""
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def products(self, weights: Tensor) -> DeviceProducts:  # type: ignore[override]
        """The products of a step with weights (n_classes, n_features) float32."""
        return DeviceProducts(weights)


class DeviceProducts:
    """`linprobe.gradients.host.Products` on a device, many runs of `SUM_ROWS` rows at once."""

    clips = False

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._group = SUM_ROWS * max(1, SUMS_BYTES // (4 * weights.numel()))

    def scores(self, x: Tensor) -> Tensor:
        """x W^T, shape (b, n_classes), float32."""
        return x @ self._weights.T

    def zeros(self) -> Tensor:
        """The sum of no rows (n_classes, n_features)."""
        return torch.zeros(self._weights.shape, dtype=torch.float64, device=self._weights.device)

    def add(self, total: ExactSum, r: Tensor, x: Tensor, joined: NDArray[np.bool_] | None = None) -> None:
        """Adds sum_i r_i x_i^T, for r (b, n_classes), to a `total` that began with `zeros`: float32 in `SUM_ROWS` rows.

        All rows join.

        Raises:
            UsageError: a sample, which is taken on the host.
        """
        if joined is not None:
            raise UsageError(NO_SAMPLES)
        block_sum = self.zeros()
        whole = len(x) // SUM_ROWS * SUM_ROWS
        for start in range(0, whole, self._group):
            part = slice(start, min(start + self._group, whole))
            runs_of_r = r[part].reshape(-1, SUM_ROWS, r.shape[1]).transpose(1, 2)
            sums = torch.bmm(runs_of_r, x[part].reshape(-1, SUM_ROWS, x.shape[1]))
            block_sum += sums.sum(dim=0, dtype=torch.float64)
        total.add(block_sum + r[whole:].T @ x[whole:])


class Stream:
    """The words of one draw. Whoever uses a word twice makes noise that can be subtracted.

    `start` is the place in the stream of the first word used: a draw made in parts is the draw made at once.

    Args:
        key: 32 bytes.
        draw: number of the draw, the 12-byte little-endian nonce.
        device: where tensors are made.
    """

    def __init__(self, key: bytes, draw: int, device: torch.device) -> None:
        state = CONSTANTS + key + bytes(4) + draw.to_bytes(12, "little")
        self.device = device
        # filled by kernel arguments: a copy from the host would make it wait
        self._initial = torch.empty((4, 4, 1), dtype=torch.int32, device=device)
        for place in range(16):
            value = int.from_bytes(state[4 * place : 4 * place + 4], "little", signed=True)
            self._initial[place // 4, place % 4].fill_(value)

    def words(self, n: int, start: int = 0) -> Tensor:
        """Words `start` to `start + n`, shape (n,), int64 with the bits of the unsigned ones.

        Raises:
            ValueError: words beyond the 2^32 blocks of a stream.
        """
        result = torch.empty(n, dtype=torch.int64, device=self.device)
        for place, words in self._chunks(n, start):
            result[place : place + len(words)] = words
        return result

    def standard_normal(self, shape: tuple[int, ...]) -> Tensor:
        """Independent N(0, 1) variates, float64, those of `NoiseSource.standard_normal` but for rounding.

        Raises:
            ValueError: as `words`.
        """
        result = torch.empty(math.prod(shape), dtype=torch.float64, device=self.device)
        for place, words in self._chunks(len(result)):
            part = result[place : place + len(words)]
            # a shift of signed words drags the sign along
            part.copy_((words >> 11).bitwise_and_((1 << 53) - 1)).add_(0.5).mul_(2.0**-54)
            torch.special.ndtri(part, out=part)
            part.mul_(words.bitwise_and_(1).mul_(2).sub_(1))
        return result.reshape(shape)

    def _chunks(self, n: int, start: int = 0) -> Iterator[tuple[int, Tensor]]:
        """Words `start` to `start + n` in pieces, each with its place among them, so that memory stays bounded."""
        if not 0 <= start <= start + n <= STREAM_WORDS:
            raise ValueError(f"words {start} to {start + n} of a draw; allowed: 0 to {STREAM_WORDS}")
        last = -(-(start + n) // WORDS_PER_BLOCK)
        for block in range(start // WORDS_PER_BLOCK, last, CHUNK_BLOCKS):
            words = self._blocks(block, min(block + CHUNK_BLOCKS, last))
            place = WORDS_PER_BLOCK * block - start
            yield max(0, place), words[max(0, -place) : n - place]

    def _blocks(self, first: int, last: int) -> Tensor:
        """The words of blocks `first` to `last`: the block function of RFC 8439, section 2.3.

        Rows a, b, c, d of the state are (4, blocks) each, so that a quarter round takes all four columns at once.
        """
        counter = torch.arange(first, last, device=self.device).to(torch.int32)
        a, b, c, d = (row.repeat(1, last - first) for row in self._initial)
        d[0] += counter
        for _ in range(10):
            a, b, c, d = _quarter_round(a, b, c, d)
            b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
            a, b, c, d = _quarter_round(a, b, c, d)
            b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
        for row, initial in zip((a, b, c, d), self._initial, strict=True):
            row += initial
        d[0] += counter
        return torch.stack((a.T, b.T, c.T, d.T), dim=1).view(torch.int64).flatten()


class DeviceNoise:
    """`NoiseSource` for tensors: the same draws in the same order, made on a device.

    Args:
        source: shares its key and its count of draws, so that no draw is ever made twice, here or there.
        device: where tensors are made.
    """

    def __init__(self, source: NoiseSource, device: torch.device) -> None:
        self._source = source
        self.device = device
        self.kind = source.kind

    @property
    def draws(self) -> int:
        """How many draws the source has made, here and there."""
        return self._source.draws

    @draws.setter
    def draws(self, count: int) -> None:
        self._source.draws = count

    def standard_normal(self, shape: tuple[int, ...]) -> Tensor:
        """Independent N(0, 1) variates of the given shape, float64."""
        return self.stream().standard_normal(shape)

    def stream(self) -> Stream:
        """A stream that no other draw uses, for a draw that is made in parts."""
        return Stream(self._source.key, self._source.next_draw(), self.device)


def _quarter_round(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RFC 8439, section 2.1, on int32, whose sums wrap."""
    a += b
    d = _rotated(d.bitwise_xor_(a), 16)
    c += d
    b = _rotated(b.bitwise_xor_(c), 12)
    a += b
    d = _rotated(d.bitwise_xor_(a), 8)
    c += d
    b = _rotated(b.bitwise_xor_(c), 7)
    return a, b, c, d


def _rotated(x: Tensor, bits: int) -> Tensor:
    """`x` rotated left: its high bits, without the copies of the sign, plus `x` times 2^bits."""
    return (x >> (32 - bits)).bitwise_and_((1 << bits) - 1).add_(x, alpha=1 << bits)
