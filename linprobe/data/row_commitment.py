"""A keyed commitment to a set of rows: the same rows give the same value, and without the key it reveals nothing.

It is MSet-Add-Hash of Clarke et al. 2003, "Incremental multiset hash functions": the sum of keyed digests of the rows.
It does not depend on the order of the rows, and labels, ids and class names are left out: the same rows with other
labels are the same people's rows. Every row counts, repeated ones too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

LANES = 4  # 64-bit words of a digest
HASHED_ROWS = 64  # at a time: they fit in the cache
NEGATIVE_ZERO = 0x8000  # its bits in half precision
SMALLEST, LARGEST = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)


def row_commitment(key: bytes, blocks: Iterable[NDArray[np.floating]]) -> str:
    """The commitment to the rows of `blocks`, each of shape (b, n_features), as 32 hexadecimal digits.

    Rows are compared in half precision if it holds them, so that float16 and float32 files of the same rows agree.
    Other sets of rows give another value, except with a probability that is negligible for whoever lacks the key.

    Args:
        key: 32 random bytes.
    """
    total, n_rows = np.zeros(LANES, dtype=np.uint64), 0
    for rows in blocks:
        digests = b"".join(hashlib.blake2b(row, key=key, digest_size=8 * LANES).digest() for row in _bytes(rows))
        total += np.frombuffer(digests, dtype=np.uint64).reshape(-1, LANES).sum(axis=0, dtype=np.uint64)
        n_rows += len(rows)
    return hashlib.blake2b(total.tobytes() + str(n_rows).encode(), key=key, digest_size=16).hexdigest()


class RowHashes:
    """64-bit hashes of rows: equal for rows that are equal as float32, whatever their labels.

    The words of a row are multiplied by random odd factors and added, so two different rows collide with a
    probability of at most 2^-31 (Dietzfelbinger 1996). The factors never leave the process.
    """

    def __init__(self) -> None:
        self._factors: dict[int, NDArray[np.uint64]] = {}

    def __call__(self, rows: NDArray[np.floating]) -> NDArray[np.uint64]:
        """The hashes of `rows` (n, n_features), shape (n,)."""
        width = rows.shape[1]
        if width not in self._factors:
            self._factors[width] = np.frombuffer(os.urandom(8 * width), dtype=np.uint64) | np.uint64(1)
        hashes = np.empty(len(rows), dtype=np.uint64)
        for start in range(0, len(rows), HASHED_ROWS):
            part = slice(start, start + HASHED_ROWS)
            words = (rows[part].astype(np.float32) + np.float32(0)).view(np.uint32)
            hashes[part] = words.astype(np.uint64) @ self._factors[width]
        return hashes


def _bytes(rows: NDArray[np.floating]) -> Iterable[bytes]:
    """The bytes of each row: half precision if it holds the row, else float32. Zeros have no sign."""
    size = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    held = (size >= SMALLEST) & (size <= LARGEST)
    with np.errstate(over="ignore", under="ignore"):
        half = rows.astype(np.float16).view(np.uint16)
    half[half == NEGATIVE_ZERO] = 0
    whole = None if held.all() else rows.astype(np.float32) + np.float32(0)
    for place, fits in enumerate(held.tolist()):
        yield (half if fits or whole is None else whole)[place].tobytes()
