"""The noise source: normals and coin tosses from a cryptographic stream keyed by the operating system.

Key: 256 bits of `os.urandom`. Stream: ChaCha20 (RFC 8439) from the `cryptography` library, one fresh nonce per
draw. A seed given by the user makes the noise predictable, so such a source calls itself insecure.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from scipy.special import ndtri

SECURE = "operating system, ChaCha20"
INSECURE = "user seed, not private"


class NoiseSource:
    """Independent standard normals and coin tosses, never the same draw twice.

    Args:
        insecure_seed: None keys the stream from the operating system. An integer makes every draw reproducible
            by whoever knows it, which voids the guarantee; `kind` then says so.
    """

    def __init__(self, insecure_seed: int | None = None) -> None:
        if insecure_seed is None:
            self._key = os.urandom(32)
            self.kind = SECURE
        else:
            self._key = hashlib.sha256(f"linprobe insecure seed {insecure_seed}".encode()).digest()
            self.kind = INSECURE
        self._draws = 0

    def standard_normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Independent N(0, 1) variates of the given shape, float64.

        Inverse-CDF method on 53 uniform bits plus a sign bit, so both tails reach beyond 8 standard deviations.
        """
        words = self._words(int(np.prod(shape)))
        half_uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54
        sign = np.where(words & np.uint64(1), 1.0, -1.0)
        return np.asarray(sign * ndtri(half_uniform), dtype=np.float64).reshape(shape)

    def bernoulli(self, probability: float, n: int) -> NDArray[np.bool_]:
        """Independent events, shape (n,): a 64-bit word below `probability` of the range, rounded down."""
        return np.asarray(self._words(n) < np.uint64(int(probability * 2.0**64)))

    def _words(self, n: int) -> NDArray[np.uint64]:
        """The first `n` words of a stream that no other draw uses."""
        # ChaCha20 takes a 4-byte block counter followed by the nonce; the nonce is the draw's own number
        nonce = bytes(4) + self._draws.to_bytes(12, "little")
        self._draws += 1
        stream = Cipher(ChaCha20(self._key, nonce), mode=None).encryptor()
        return np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8")
