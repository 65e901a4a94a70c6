"""Rows that two sets have in common: equal rows, or positive multiples of each other, in half precision."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import widened
from linprobe.data.preprocessing import normalise_rows, row_norms

Rows = NDArray[np.floating]
Numbers = NDArray[np.uint64]
SAMPLED = 16  # columns compared before whole rows are
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], dtype=np.uint64)
SMALLEST, LARGEST = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)
NEGATIVE_ZERO = 0x8000  # its bits in half precision
NONE = np.uint64(0)  # in place of a digest


class RowSet:
    """Rows to be found among other rows: those that are equal, or positive multiples, in half precision.

    Rows that half precision does not hold are compared as float32. Labels do not matter. 48 bytes a row are held.

    Args:
        blocks: raw rows (b, n_features).
        fewest: a row with fewer entries other than zero is compared with equal rows only, not with its multiples, which
            may be other records by chance; above 0, rows of zeros equal nothing.
    """

    def __init__(self, blocks: Iterable[Rows], fewest: int = 0) -> None:
        self._fewest = fewest
        samples, digests = [np.empty((0, 2), dtype=np.uint64)], [np.empty((0, 2), dtype=np.uint64)]
        for x in blocks:
            samples.append(_samples(x))
            digests.append(self._digests(x))
        self._digests_of_rows = np.concatenate(digests)
        self._samples, self._known = np.unique(np.concatenate(samples)), np.unique(self._digests_of_rows)
        self._found: list[Numbers] = []

    def find(self, x: Rows) -> bool:
        """Whether one of the rows `x` (b, n_features) is in the set."""
        likely = x[_among(_samples(x), self._samples).any(axis=1)]
        if not len(likely):
            return False
        digests = self._digests(likely)
        self._found.append(digests[_among(digests, self._known) & (digests != NONE)])
        return bool(self._found[-1].size)

    def found(self) -> NDArray[np.intp]:
        """Places in the set of the rows that `find` met, in order."""
        met = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *self._found]))
        return np.flatnonzero(_among(self._digests_of_rows, met).any(axis=1))

    def _digests(self, x: Rows) -> Numbers:
        """Digests of each row and of each row divided by its norm, shape (b, 2). NONE equals nothing."""
        wide = _float32(x)
        size = np.maximum(wide.max(axis=1), -wide.min(axis=1))
        held = (size >= SMALLEST) & (size <= LARGEST)
        entries = np.count_nonzero(wide, axis=1)
        as_given, unit = _half(x), _half(normalise_rows(wide))
        digests = np.zeros((len(x), 2), dtype=np.uint64)
        for place in range(len(x)):
            if entries[place]:
                digests[place, 0] = _digest(as_given[place] if held[place] else wide[place] + np.float32(0))
            if entries[place] >= self._fewest:
                digests[place, 1] = _digest(unit[place])
        return digests


def share_a_row(private: Iterable[Rows], public: Iterable[Rows]) -> bool:
    """Whether a private row equals a public row, or is a positive multiple of one, in half precision.

    Args:
        private, public: blocks of raw rows (b, n_features). Digests of the public rows are held in memory.
    """
    known = RowSet(public)
    return any(known.find(x) for x in private)


def _float32(x: Rows) -> NDArray[np.float32]:
    return widened(x) if x.dtype == np.float16 else np.asarray(x, dtype=np.float32)


def _half(x: Rows) -> NDArray[np.uint16]:
    """The bits of rows in half precision. Zeros have no sign."""
    with np.errstate(over="ignore"):
        bits = x.astype(np.float16).view(np.uint16)  # a copy
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


def _samples(x: Rows) -> Numbers:
    """As `RowSet._digests`, but from `SAMPLED` columns: cheap, equal for equal rows, and equal for some others."""
    columns = np.linspace(0, x.shape[1] - 1, SAMPLED).astype(np.int64)
    wide = _float32(x)
    few = np.ascontiguousarray(wide[:, columns])
    words = [_half(part).view(np.uint64) for part in (few, normalise_rows(few, row_norms(wide)))]
    return np.stack([(part * FACTORS).sum(axis=1, dtype=np.uint64) for part in words], axis=1)
