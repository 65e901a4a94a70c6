"""The noise source: normals and coin tosses from a cryptographic stream keyed by the operating system.

Key: 256 bits of `os.urandom`. Stream: ChaCha20 (RFC 8439) from the `cryptography` library, one fresh nonce per
draw. A seed given by the user makes the noise predictable, so such a source calls itself insecure.
"""

from __future__ import annotations

import hashlib
import math
import os
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from scipy.special import ndtri

from linprobe.parallel.threads import n_threads, share

SECURE = "operating system, ChaCha20"
INSECURE = "user seed, not private"
PART = 1 << 14  # normals that one thread makes at a time: whole blocks of words
WORDS_PER_BLOCK = 8  # 64-bit words of a ChaCha20 block


class NoiseSource:
    """Independent standard normals and coin tosses, never the same draw twice.

    Args:
        insecure_seed: None keys the stream from the operating system. An integer makes every draw reproducible
            by whoever knows it, which voids the guarantee; `kind` then says so.
        key: 32 secret bytes of an earlier source, to go on with its stream at its `draws`.

    Attributes:
        key: as secret as the private rows: with it, noise can be taken off a release.
        draws: how many streams were used.
    """

    def __init__(self, insecure_seed: int | None = None, *, key: bytes | None = None) -> None:
        self.kind = SECURE if insecure_seed is None else INSECURE
        if key is not None:
            self.key = key
        elif insecure_seed is None:
            self.key = os.urandom(32)
        else:
            self.key = hashlib.sha256(f"linprobe insecure seed {insecure_seed}".encode()).digest()
        self.draws = 0

    def standard_normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Independent N(0, 1) variates of the given shape, float64.

        Inverse-CDF method on 53 uniform bits plus a sign bit, so both tails reach beyond 8 standard deviations.
        """
        _check_place(0, math.prod(shape))
        normals, draw = np.empty(math.prod(shape)), self.next_draw()

        def fill(start: int) -> None:
            part = normals[start : start + PART]
            words = self._words(draw, len(part), start)
            half_uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54
            ndtri(half_uniform, out=part)
            part *= np.where(words & np.uint64(1), 1.0, -1.0)

        starts = range(0, len(normals), PART)
        if len(starts) < 2:
            fill(0)
        else:
            share((partial(int, start) for start in starts), [fill] * min(n_threads(), len(starts)))
        return normals.reshape(shape)

    def bernoulli(self, probability: float, n: int, start: int = 0) -> NDArray[np.bool_]:
        """Independent events, shape (n,): a 64-bit word below `probability` of the range, rounded down.

        With `start`, those from there on of a longer draw; a multiple of `WORDS_PER_BLOCK`.
        """
        _check_place(start, n)
        return np.asarray(self._words(self.next_draw(), n, start) < np.uint64(int(probability * 2.0**64)))

    def next_draw(self) -> int:
        """The number of a stream that no other draw uses."""
        self.draws += 1
        return self.draws - 1

    def _words(self, draw: int, n: int, start: int) -> NDArray[np.uint64]:
        """`n` words of the stream of a draw, from `start` on."""
        # ChaCha20 takes a 4-byte block counter followed by the nonce; the nonce is the draw's own number
        nonce = (start // WORDS_PER_BLOCK).to_bytes(4, "little") + draw.to_bytes(12, "little")
        stream = Cipher(ChaCha20(self.key, nonce), mode=None).encryptor()
        return np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8")


def _check_place(start: int, n: int) -> None:
    """ValueError of `n` words from `start` on that no stream has, or that do not begin with a block."""
    if start % WORDS_PER_BLOCK or start // WORDS_PER_BLOCK + n // WORDS_PER_BLOCK >= 2**32:
        raise ValueError(
            f"a draw of {n} words from {start} on; allowed: from multiples of {WORDS_PER_BLOCK}, below 2^35 in all"
        )
