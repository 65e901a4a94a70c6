"""The noise stream of `linprobe.mechanisms.noise` on a GPU: the same ChaCha20 words.

Integer arithmetic of torch computes many blocks of a stream at once, in some 500 operations. A few blocks take less
time on the host, by OpenSSL, and are copied. A draw synchronises to find the numbers that need a second look.
Importing this module imports torch.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from linprobe.errors import LinprobeError
from linprobe.mechanisms.noise import DEEP, UNSURE, WORDS_PER_BLOCK, NoiseSource, grid_step, normals, stream

CHUNK_BLOCKS = 1 << 18
HOST_BLOCKS = 1 << 14  # fewer blocks come from the host
STREAM_WORDS = WORDS_PER_BLOCK << 32
CONSTANTS = b"expand 32-byte k"
DEEP_BITS = -(DEEP << 1)  # bits of a word that are all zero where the magnitude is below DEEP
NDTRI_TOLERANCE = 2.0**-45  # between the host and a device; lemma 3 of docs/proofs/gaussian.md allows 2^-44


class Stream:
    """The words of one draw. Never use a word twice: the difference of two releases would cancel its noise.

    Args:
        key: 32 bytes.
        draw: number of the draw, which is the 12-byte little-endian nonce.
        device: device of all tensors.
    """

    def __init__(self, key: bytes, draw: int, device: torch.device) -> None:
        state = CONSTANTS + key + bytes(4) + draw.to_bytes(12, "little")
        self.device, self._key, self._draw = device, key, draw
        # fill_ passes values as kernel arguments; a copy from the host would synchronise
        self._initial = torch.empty((4, 4, 1), dtype=torch.int32, device=device)
        for index in range(16):
            value = int.from_bytes(state[4 * index : 4 * index + 4], "little", signed=True)
            self._initial[index // 4, index % 4].fill_(value)

    def chunks(self, n: int, start: int = 0) -> Iterator[tuple[int, Tensor]]:
        """Words `start` to `start + n` of the stream, int64 with the bits of the unsigned words.

        They come in chunks of bounded size, each with its offset from `start`.

        Raises ValueError: a range that leaves the 2^32 blocks of the stream.
        """
        if not 0 <= start <= start + n <= STREAM_WORDS:
            raise ValueError(f"words {start} to {start + n} of a draw; allowed: 0 to {STREAM_WORDS}")
        last = -(-(start + n) // WORDS_PER_BLOCK)
        for block in range(start // WORDS_PER_BLOCK, last, CHUNK_BLOCKS):
            words = self._blocks(block, min(block + CHUNK_BLOCKS, last))
            offset = WORDS_PER_BLOCK * block - start
            yield max(0, offset), words[max(0, -offset) : n - offset]

    def _blocks(self, first: int, last: int) -> Tensor:
        """The words of blocks `first` to `last` (RFC 8439, section 2.3); rows of the state have shape (4, blocks)."""
        if last - first < HOST_BLOCKS:
            return self._blocks_of_host(first, last)
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

    def _blocks_of_host(self, first: int, last: int) -> Tensor:
        """The same words, from OpenSSL."""
        content = bytearray(stream(self._key, first, self._draw, 64 * (last - first)))
        words = torch.frombuffer(content, dtype=torch.int64)
        words = words.pin_memory() if self.device.type == "cuda" else words  # so that the copy does not synchronise
        return words.to(self.device, non_blocking=True)


class DeviceNoise(NoiseSource):
    """A source of noise for tensors on a `device`: the same draws and released numbers as of a `NoiseSource`."""

    def __init__(self, device: torch.device, insecure_seed: int | None = None) -> None:
        super().__init__(insecure_seed)
        self.device = device

    def add_noise(self, value: Tensor, std: float) -> Tensor:
        """The numbers of `NoiseSource.add_noise`; the host looks again. Raises ValueError: too many numbers."""
        flat, grid, draw = value.reshape(-1), grid_step(std), self.next_draw()
        noised = torch.empty_like(flat)
        for start, words in Stream(self.key, draw, self.device).chunks(len(flat)):
            part = flat[start : start + len(words)]
            whole, cells, unsure = look_on_device(part, words, std, grid)
            for place in places(unsure):
                word = int(words[place]) % (1 << 64)
                exact = self.cell(draw, start + place, word, float(part[place]), std, grid)
                cells[place] = exact - whole[place]
            noised[start : start + len(words)] = (whole + cells + 0.0) * grid  # zero has no sign
        return noised.reshape(value.shape)


def look_on_device(value: Tensor, words: Tensor, std: float, grid: float) -> tuple[Tensor, Tensor, Tensor]:
    """Grid steps of `value`, grid steps that the noise adds, and a mask of uncertain ones. Does not synchronise."""
    steps = value / grid
    whole = steps.round()
    steps -= whole
    steps += _normals(words) * (std / grid)
    cells = steps.round()
    steps -= cells
    return whole, cells, (steps.abs_() > 0.5 - UNSURE) | (words.bitwise_and(DEEP_BITS) == 0)


def places(unsure: Tensor) -> list[int]:
    """Indices where the mask holds. Synchronises with the device."""
    found: list[int] = unsure.nonzero()[:, 0].tolist()
    return found


def check_ndtri(device: torch.device) -> None:
    """LinprobeError for a device whose inverse normal distribution is not the host's within `NDTRI_TOLERANCE`."""
    words = np.arange(1, 1 << 12, dtype=np.uint64) << np.uint64(52) | np.uint64(1 << 46)
    found = _normals(torch.from_numpy(words.view(np.int64)).to(device)).cpu().numpy()
    if not np.abs(found - normals(words >> np.uint64(1), words)).max() <= NDTRI_TOLERANCE:
        raise LinprobeError(
            f"torch.special.ndtri on {device} differs too much from the host for the noise; use device cpu"
        )


def _normals(words: Tensor) -> Tensor:
    """`linprobe.mechanisms.noise.normals` of words as signed integers."""
    # the shift is arithmetic: clear the copies of the sign
    z = (words >> 1).bitwise_and_((1 << 63) - 1).double().add_(0.5).mul_(2.0**-64)
    torch.special.ndtri(z, out=z)
    return z.mul_(1 - 2 * words.bitwise_and(1))


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
