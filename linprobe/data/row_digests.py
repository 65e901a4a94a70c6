"""Digests of rows, to tell whether two sets have rows in common, or are the same set.

`RowSet` finds rows that are equal, or positive multiples of each other, in half precision.

`Commitment` is keyed: the same set of rows gives the same value, and without the key it reveals nothing. It is
MSet-Add-Hash of Clarke et al. 2003, "Incremental multiset hash functions": the sum of keyed digests of the rows. It
does not depend on the order of the rows. Labels, ids and class names are left out: the same rows with other labels
belong to the same people. Every row counts, repeated rows too. Training divides each row by its norm, so a row times a
factor is the same row. Here the factor is a power of 2: no rounding depends on it. Norms would depend on the order in
which a NumPy version adds squares, and a book must be found after an update.

`Commitment.row_keys` and `name_keys` tell which sets have rows, images or people in common.

`RowHashes` are for one process: fast, and with a secret that never leaves it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import halved, widened
from linprobe.data.preprocessing import normalise_rows, row_norms

RawRows = NDArray[np.floating]
Numbers = NDArray[np.uint64]
SMALLEST, LARGEST = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)
MAGNITUDE, NEGATIVE_ZERO = 0x7FFF, 0x8000  # bits of half precision

SAMPLED = 16  # columns compared before whole rows are
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], dtype=np.uint64)
NONE = np.uint64(0)  # in place of a digest

LANES = 4  # 64-bit words of a commitment's digest
HASHED_ROWS = 64  # at a time: they fit in the cache
SIGNIFICANT = 2**11  # half precision has 11 significant bits
LEAST = np.float16(2**-10).view(np.uint16)  # bits of the least entry of a scaled row that counts
MOST_EXPONENT = 126  # of a scale in float32


class RowSet:
    """Rows to be found among other rows: equal rows, or positive multiples, in half precision.

    Rows that half precision does not hold are compared as float32. Labels do not matter. 48 bytes a row are held.

    Args:
        blocks: raw rows (b, n_features).
        fewest: a row with fewer entries other than zero is compared with equal rows only, not with its multiples, which
            may be other records by chance; above 0, rows of zeros equal nothing.
    """

    def __init__(self, blocks: Iterable[RawRows], fewest: int = 0) -> None:
        self._fewest = fewest
        samples, digests = [np.empty((0, 2), dtype=np.uint64)], [np.empty((0, 2), dtype=np.uint64)]
        for x in blocks:
            samples.append(sampled(x, norms_of(x)))
            digests.append(self._digests(x))
        self._digests_of_rows = np.concatenate(digests)
        self._samples, self._known = np.unique(np.concatenate(samples)), np.unique(self._digests_of_rows)
        self._found: list[Numbers] = []

    def find(self, x: RawRows, samples: Numbers | None = None) -> bool:
        """Whether one of the rows `x` (b, n_features) is in the set; `samples` (b, 2) are `sampled(x)`, if at hand."""
        samples = sampled(x, norms_of(x)) if samples is None else samples
        likely = x[_among(samples, self._samples).any(axis=1)]
        if not len(likely):
            return False
        digests = self._digests(likely)
        self._found.append(digests[_among(digests, self._known) & (digests != NONE)])
        return bool(self._found[-1].size)

    def found(self) -> NDArray[np.intp]:
        """Indices in the set of the rows that `find` met, in order."""
        met = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *self._found]))
        return np.flatnonzero(_among(self._digests_of_rows, met).any(axis=1))

    def _digests(self, x: RawRows) -> Numbers:
        """Digests of each row and of each row divided by its norm, shape (b, 2). NONE equals nothing."""
        wide = _float32(x)
        size = _sizes(wide)
        held = (size >= SMALLEST) & (size <= LARGEST)
        entries = np.count_nonzero(wide, axis=1)
        as_given, unit = _half(x), _half(normalise_rows(wide))
        digests = np.zeros((len(x), 2), dtype=np.uint64)
        for row in range(len(x)):
            if entries[row]:
                digests[row, 0] = _digest(as_given[row] if held[row] else wide[row] + np.float32(0))
            if entries[row] >= self._fewest:
                digests[row, 1] = _digest(unit[row])
        return digests


def share_a_row(private: Iterable[RawRows], public: Iterable[RawRows]) -> bool:
    """Whether a private row equals a public row, or is a positive multiple of one, in half precision.

    Args:
        private, public: blocks of raw rows (b, n_features). Digests of the public rows are held in memory.
    """
    known = RowSet(public)
    return any(known.find(x) for x in private)


class Commitment:
    """A keyed commitment to rows that are added block by block, in any order.

    Rows are the same if they agree in half precision after each is scaled by a power of 2 that brings its largest entry
    into [1/2, 1). Entries below 2^-10 are then zeros, as float16 files hold small numbers less exactly than float32
    files: the two agree if the largest entry of each row is at least 2^-4. Other sets of rows give another value,
    except with a probability that is negligible for whoever lacks the key.

    Args:
        key: 32 random bytes.
        scaled: whether rows are scaled. Books of format 1 have the name of rows that are not.
    """

    def __init__(self, key: bytes, *, scaled: bool = True) -> None:
        self._key, self._scaled = key, scaled
        self._total, self._n_rows = np.zeros(LANES, dtype=np.uint64), 0
        self._keys = [np.empty(0, dtype=np.uint64)]

    def add(self, rows: RawRows) -> None:
        """Add the rows (b, n_features)."""
        of_part = _scaled_bytes if self._scaled else _raw_bytes
        for start in range(0, len(rows), HASHED_ROWS):
            part = of_part(rows[start : start + HASHED_ROWS])
            digests = b"".join(hashlib.blake2b(row, key=self._key, digest_size=8 * LANES).digest() for row in part)
            lanes = np.frombuffer(digests, dtype=np.uint64).reshape(-1, LANES)
            self._total += lanes.sum(axis=0, dtype=np.uint64)
            self._keys.append(lanes[:, 0].copy())
        self._n_rows += len(rows)

    def row_keys(self) -> Numbers:
        """8 bytes of the digest of each row so far, shape (n,): equal for rows that are the same."""
        return np.concatenate(self._keys)

    def value(self) -> str:
        """The commitment to all rows so far, as 32 hexadecimal digits."""
        content, form = self._total.tobytes() + str(self._n_rows).encode(), b"scaled rows" if self._scaled else b""
        return hashlib.blake2b(content, key=self._key, digest_size=16, person=form).hexdigest()


def name_keys(names: Iterable[bytes], key: bytes, kind: str) -> Numbers:
    """8 keyed bytes for each of the `names`, shape (n,). Equal names of another `kind` have other keys."""
    form = kind.encode()
    digests = b"".join(hashlib.blake2b(name, key=key, digest_size=8, person=form).digest() for name in names)
    return np.frombuffer(digests, dtype=np.uint64)


class RowHashes:
    """64-bit hashes of rows: equal for rows that are equal as float32 up to a power of 2, whatever their labels.

    The words of a row are multiplied by random odd factors and added, so two different rows collide with a
    probability of at most 2^-31 (Dietzfelbinger 1996). The factors never leave the process.
    """

    def __init__(self) -> None:
        self._factors: dict[int, Numbers] = {}

    def __call__(self, rows: RawRows) -> Numbers:
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


def norms_of(x: RawRows) -> NDArray[np.float64]:
    """`row_norms` of raw rows of any type, shape (n,): finite where a row is finite as float32, else not."""
    return row_norms(_float32(x))


def sampled(x: RawRows, norms: NDArray[np.float64]) -> Numbers:
    """As `RowSet._digests`, but from `SAMPLED` columns: cheap, equal for equal rows, and equal for some others."""
    columns = np.linspace(0, x.shape[1] - 1, SAMPLED).astype(np.int64)
    few = np.ascontiguousarray(_float32(x[:, columns]))
    words = [_half(part).view(np.uint64) for part in (few, normalise_rows(few, norms))]
    return np.stack([(part * FACTORS).sum(axis=1, dtype=np.uint64) for part in words], axis=1)


def _float32(x: RawRows) -> NDArray[np.float32]:
    return widened(x) if x.dtype == np.float16 else np.asarray(x, dtype=np.float32)


def _half(x: RawRows) -> NDArray[np.uint16]:
    """The bits of rows in half precision. Zeros have no sign."""
    bits = halved(x).view(np.uint16)
    bits[bits == NEGATIVE_ZERO] = 0
    return bits


def _digest(row: NDArray[np.generic]) -> int:
    return int.from_bytes(hashlib.blake2b(row.data, digest_size=8).digest(), "little")


def _among(values: Numbers, known: Numbers) -> NDArray[np.bool_]:
    """Mask of the `values` that are in `known`, which is sorted."""
    if not known.size:
        return np.zeros(values.shape, dtype=bool)
    found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, values), known.size - 1)] == values
    return found


def _sizes(rows: RawRows) -> RawRows:
    """The largest absolute entry of each row, shape (n,)."""
    sizes: RawRows = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return sizes


def _scaled(rows: RawRows, exponents: NDArray[np.integer]) -> RawRows:
    """Each row times 2 to the power of minus its exponent. It is exact down to the least normal float32."""
    fits = np.abs(exponents).max(initial=0) <= MOST_EXPONENT
    scaled: RawRows = rows * np.ldexp(np.float32(1) if fits else 1.0, -exponents)[:, None]
    return scaled


def _scaled_bytes(rows: RawRows) -> Iterable[bytes]:
    """The bytes of each scaled row in half precision, with zeros for small entries."""
    fractions, exponents = np.frexp(_sizes(rows).astype(np.float64))
    exponents = exponents + (np.rint(fractions * SIGNIFICANT) == SIGNIFICANT)  # half precision rounds it to 1
    half = halved(_scaled(rows, exponents)).view(np.uint16)
    half *= half & MAGNITUDE >= LEAST
    return (row.tobytes() for row in half)


def _raw_bytes(rows: RawRows) -> Iterable[bytes]:
    """The bytes of each row: half precision if it holds the row, else float32. Zeros have no sign."""
    size = _sizes(rows)
    held, half = (size >= SMALLEST) & (size <= LARGEST), _half(rows)
    whole = None if held.all() else rows.astype(np.float32) + np.float32(0)
    for index, fits in enumerate(held.tolist()):
        yield (half if fits or whole is None else whole)[index].tobytes()
