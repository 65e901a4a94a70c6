"""The noise stream of `linprobe.mechanisms.noise` on a GPU: the same ChaCha20 words, computed by torch.

The host uses OpenSSL. Here, integer arithmetic of torch computes many blocks of a stream at once. So a step neither
copies noise from the host nor synchronises with it. Importing this module imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource

CHUNK_BLOCKS = 1 << 18
STREAM_WORDS = WORDS_PER_BLOCK << 32
CONSTANTS = b"expand 32-byte k"


class Stream:
    """The words of one draw. Never use a word twice: the difference of two releases would cancel its noise.

    Args:
        key: 32 bytes.
        draw: number of the draw, which is the 12-byte little-endian nonce.
        device: device of all tensors.
    """

    def __init__(self, key: bytes, draw: int, device: torch.device) -> None:
        state = CONSTANTS + key + bytes(4) + draw.to_bytes(12, "little")
        self.device = device
        # fill_ passes values as kernel arguments; a copy from the host would synchronise
        self._initial = torch.empty((4, 4, 1), dtype=torch.int32, device=device)
        for index in range(16):
            value = int.from_bytes(state[4 * index : 4 * index + 4], "little", signed=True)
            self._initial[index // 4, index % 4].fill_(value)

    def words(self, n: int, start: int = 0) -> Tensor:
        """Words `start` to `start + n` of the stream, shape (n,), int64 with the bits of the unsigned words.

        Raises:
            ValueError: a range that leaves the 2^32 blocks of the stream.
        """
        result = torch.empty(n, dtype=torch.int64, device=self.device)
        for offset, words in self._chunks(n, start):
            result[offset : offset + len(words)] = words
        return result

    def standard_normal(self, shape: tuple[int, ...]) -> Tensor:
        """Independent N(0, 1) variates, float64, equal to those of `NoiseSource.standard_normal` up to rounding.

        Raises:
            ValueError: as `words`.
        """
        result = torch.empty(math.prod(shape), dtype=torch.float64, device=self.device)
        for offset, words in self._chunks(len(result)):
            chunk = result[offset : offset + len(words)]
            # the shift is arithmetic: clear the copies of the sign
            chunk.copy_((words >> 11).bitwise_and_((1 << 53) - 1)).add_(0.5).mul_(2.0**-54)
            torch.special.ndtri(chunk, out=chunk)
            chunk.mul_(words.bitwise_and_(1).mul_(2).sub_(1))
        return result.reshape(shape)

    def _chunks(self, n: int, start: int = 0) -> Iterator[tuple[int, Tensor]]:
        """Words `start` to `start + n` in chunks of bounded size, each with its offset from `start`."""
        if not 0 <= start <= start + n <= STREAM_WORDS:
            raise ValueError(f"words {start} to {start + n} of a draw; allowed: 0 to {STREAM_WORDS}")
        last = -(-(start + n) // WORDS_PER_BLOCK)
        for block in range(start // WORDS_PER_BLOCK, last, CHUNK_BLOCKS):
            words = self._blocks(block, min(block + CHUNK_BLOCKS, last))
            offset = WORDS_PER_BLOCK * block - start
            yield max(0, offset), words[max(0, -offset) : n - offset]

    def _blocks(self, first: int, last: int) -> Tensor:
        """The words of blocks `first` to `last`: the block function of RFC 8439, section 2.3.

        Rows a, b, c, d of the state have shape (4, blocks), so one call computes the quarter rounds of four columns.
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
    """`NoiseSource` for tensors: the same draws in the same order, generated on a device.

    Args:
        source: its key and its count of draws are shared, so that no draw is used twice.
        device: device of all tensors.
    """

    def __init__(self, source: NoiseSource, device: torch.device) -> None:
        self._source = source
        self.device = device
        self.kind = source.kind

    @property
    def draws(self) -> int:
        """Number of draws that the source has made, on the host and the device."""
        return self._source.draws

    @draws.setter
    def draws(self, count: int) -> None:
        self._source.draws = count

    def standard_normal(self, shape: tuple[int, ...]) -> Tensor:
        """Independent N(0, 1) variates of the given shape, float64."""
        return self.stream().standard_normal(shape)

    def stream(self) -> Stream:
        """The stream of the next draw."""
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
    """`x` rotated left: its high bits, by a shift without sign extension, plus `x` times 2^bits."""
    return (x >> (32 - bits)).bitwise_and_((1 << bits) - 1).add_(x, alpha=1 << bits)
