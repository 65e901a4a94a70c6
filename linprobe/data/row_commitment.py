"""A keyed commitment to a set of rows: the same rows give the same value, and without the key it reveals nothing.

It is MSet-Add-Hash of Clarke et al. 2003, "Incremental multiset hash functions": the sum of keyed digests of the rows.
It does not depend on the order of the rows, and labels, ids and class names are left out: the same rows with other
labels are the same people's rows. Every row counts, repeated ones too.

Training divides each row by its norm, so a row times a factor is the same row. Here the factor is a power of 2: no
rounding depends on it. Norms would depend on the order in which a NumPy version adds squares, and a book must be found
after an update.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

LANES = 4  # 64-bit words of a digest
HASHED_ROWS = 64  # at a time: they fit in the cache
SIGNIFICANT = 2**11  # half precision has 11 significant bits
LEAST = np.float16(2**-10).view(np.uint16)  # bits of the least entry of a scaled row that counts
MAGNITUDE, NEGATIVE_ZERO = 0x7FFF, 0x8000  # bits of half precision
MOST_EXPONENT = 126  # of a scale in float32
SMALLEST, LARGEST = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)


def row_commitment(key: bytes, blocks: Iterable[NDArray[np.floating]]) -> str:
    """The commitment to the rows of `blocks`, each of shape (b, n_features), as 32 hexadecimal digits.

    Rows are the same if they agree in half precision after each is scaled by a power of 2 that brings its largest entry
    into [1/2, 1). Entries below 2^-10 are then zeros, as float16 files hold small numbers less exactly than float32
    files: the two agree if the largest entry of each row is at least 2^-4. Other sets of rows give another value,
    except with a probability that is negligible for whoever lacks the key.

    Args:
        key: 32 random bytes.
    """
    return _committed(key, blocks, _scaled_bytes, b"scaled rows")


def raw_row_commitment(key: bytes, blocks: Iterable[NDArray[np.floating]]) -> str:
    """As `row_commitment`, of rows that are not scaled: the name of a budget book of format 1."""
    return _committed(key, blocks, _raw_bytes, b"")


class RowHashes:
    """64-bit hashes of rows: equal for rows that are equal as float32 up to a power of 2, whatever their labels.

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
            single = rows[part].astype(np.float32)
            _, exponents = np.frexp(_sizes(single))
            words = (_scaled(single, exponents).astype(np.float32) + np.float32(0)).view(np.uint32)
            hashes[part] = words.astype(np.uint64) @ self._factors[width]
        return hashes


def _committed(
    key: bytes,
    blocks: Iterable[NDArray[np.floating]],
    to_bytes: Callable[[NDArray[np.floating]], Iterable[bytes]],
    kind: bytes,
) -> str:
    """The commitment to the rows in the form that `to_bytes` gives them; `kind` keeps forms apart."""
    total, n_rows = np.zeros(LANES, dtype=np.uint64), 0
    for rows in blocks:
        digests = b"".join(hashlib.blake2b(row, key=key, digest_size=8 * LANES).digest() for row in to_bytes(rows))
        total += np.frombuffer(digests, dtype=np.uint64).reshape(-1, LANES).sum(axis=0, dtype=np.uint64)
        n_rows += len(rows)
    return hashlib.blake2b(total.tobytes() + str(n_rows).encode(), key=key, digest_size=16, person=kind).hexdigest()


def _sizes(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """The largest absolute entry of each row, shape (n,)."""
    sizes: NDArray[np.floating] = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return sizes


def _scaled(rows: NDArray[np.floating], exponents: NDArray[np.integer]) -> NDArray[np.floating]:
    """Each row times 2 to the power of minus its exponent. It is exact down to the least normal float32."""
    fits = np.abs(exponents).max(initial=0) <= MOST_EXPONENT
    scaled: NDArray[np.floating] = rows * np.ldexp(np.float32(1) if fits else 1.0, -exponents)[:, None]
    return scaled


def _scaled_bytes(rows: NDArray[np.floating]) -> Iterable[bytes]:
    """The bytes of each scaled row in half precision, with zeros for small entries."""
    fractions, exponents = np.frexp(_sizes(rows).astype(np.float64))
    exponents = exponents + (np.rint(fractions * SIGNIFICANT) == SIGNIFICANT)  # half precision rounds it to 1
    half = _scaled(rows, exponents).astype(np.float16).view(np.uint16)
    half *= half & MAGNITUDE >= LEAST
    return (row.tobytes() for row in half)


def _raw_bytes(rows: NDArray[np.floating]) -> Iterable[bytes]:
    """The bytes of each row: half precision if it holds the row, else float32. Zeros have no sign."""
    size = _sizes(rows)
    held = (size >= SMALLEST) & (size <= LARGEST)
    with np.errstate(over="ignore", under="ignore"):
        half = rows.astype(np.float16).view(np.uint16)
    half[half == NEGATIVE_ZERO] = 0
    whole = None if held.all() else rows.astype(np.float32) + np.float32(0)
    for place, fits in enumerate(held.tolist()):
        yield (half if fits or whole is None else whole)[place].tobytes()
