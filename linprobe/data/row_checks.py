"""What `check_rows` finds in the rows of a feature file, reading the training rows once, and digests of rows.

`Commitment` is MSet-Add-Hash of Clarke et al. 2003, "Incremental multiset hash functions": the sum of keyed digests of
the rows, in any order; repeated rows count. Labels, ids and class names are left out: the same rows with other labels
belong to the same people. Training divides each row by its norm, so a row times a factor is the same row. Here the
factor is a power of 2, so that no rounding depends on it: a book must be found by every version of NumPy.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import halved, normalise_rows, row_norms, widened
from linprobe.data.feature_file import UNLABELLED
from linprobe.data.feature_reader import (
    BY_CHANCE,
    PIXELS,
    SOURCE,
    EqualRows,
    FeatureReader,
    GroupDigest,
    GroupRows,
    keys_among,
)
from linprobe.data.labels import people_in_both, refuse_both_sides
from linprobe.errors import DataError, PrivacyError, counted
from linprobe.parallel.array_api import Floats, Indices, Mask, Reals, Singles, among, distinct
from linprobe.parallel.threads import behind, blas_held_to_one_thread, in_slices

RawRows = Floats
Numbers = NDArray[np.uint64]
SMALLEST, LARGEST = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)
MAGNITUDE, NEGATIVE_ZERO = 0x7FFF, 0x8000  # bits of half precision

FEWEST = 8  # entries that are not zero; rows with fewer are multiples of each other by chance
SCALES = (1.0, 1.3, 1.7)  # of unit rows: a number between two of half precision is not so at every scale
SHORT, LAST_BITS = 4, np.uint32(8)  # fewer entries have few directions in half precision; float32 is rounded to these
SAMPLED = 16  # columns compared before whole rows are
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], dtype=np.uint64)
NONE = np.uint64(0)  # in place of a digest
NO_SAMPLES = np.empty((0, 2 + len(SCALES)), dtype=np.uint64)

NEAR = 1 / 256  # root mean square difference of most rounded copies, in spreads of the features
FLOAT32 = 2.0**-21  # of an entry, which multiplications in float32 may move it
LEAST_SPREAD = 1 / 8  # of a feature, as a share of its size
SMALL_SPREAD = 2.0**-17  # of a feature of unit rows: `NEAR` of it is below the least number of half precision
MOST_SAMPLED = 1024  # rows whose features say how much they spread
SUMS, IN_CELL = 16, 3  # sums of the features of a row with fixed signs, and those that name its cell
DIFFERENCE = 4 * NEAR  # of such sums of near rows, at most, but for one in 15,000
FINE_DIFFERENCE = 2.0**-12  # of those of multiples in float32
FARTHEST = np.float32(32)  # spreads that count in such a sum: rounding hardly moves the sum, however large an entry is
PAIRS = 2**18  # of rows whose sums are compared at a time
MOST_WAITING = 16  # times `HASHED` numbers of rows that wait to be compared as a whole

LANES = 4  # 64-bit words of a commitment's digest
HASHED = 2**18  # numbers at a time: they fit in the cache
SIGNIFICANT = 2**11  # half precision has 11 significant bits
LEAST = np.float16(2**-10).view(np.uint16)  # bits of the least entry of a scaled row that counts
MOST_EXPONENT = 126  # of a scale in float32
HALF = np.finfo(np.float16)


class RowSet:
    """Rows to be found among other rows: equal rows, or positive multiples, up to rounding, whatever their labels.

    They are found if they are equal in half precision, or as float32 where half precision does not hold them; if they
    are the same for a `Commitment`; and as `NearRows`. With `short`, multiples of rows with 2 to 7 entries other than
    zero are found too: as float32 with fewer than `SHORT`, since other records are such multiples by chance in half
    precision. One in 30 is missed. Without `short`, rows of zeros equal nothing.
    """

    def __init__(self, blocks: Callable[[], Iterable[RawRows]], *, short: bool = True) -> None:
        self._blocks, self._short, self._factors, self._near = blocks, short, Factors(), NearRows(blocks)
        samples = [NO_SAMPLES]
        for x in blocks():
            norms = norms_of(x)
            samples.append(sampled(x, norms))
            self._near.add(x, norms)
        self._samples = distinct(np.concatenate(samples))
        self._found = [np.empty(0, dtype=np.uint64)]

    @cached_property
    def _digests_of_rows(self) -> Numbers:
        """Digests of all rows, shape (n, 2 + n_scales). Most sets need none, as no sample is found among others."""
        return np.concatenate([self._digests(x, norms_of(x)) for x in self._blocks()])

    @cached_property
    def _known(self) -> Numbers:
        return distinct(self._digests_of_rows)

    def look_through(self, blocks: Iterable[RawRows]) -> None:
        for x in blocks:
            norms = norms_of(x)
            self.find(x, norms, sampled(x, norms))

    def find(self, x: RawRows, norms: Reals, samples: Numbers, which: Mask | None = None) -> None:
        """Look for the rows of `x` (b, n_features), or those in `which`; `norms_of(x)` and `sampled(x, norms)`."""
        self._near.find(x, norms, which)
        found = among(samples, self._samples).any(axis=1)
        likely = np.flatnonzero(found if which is None else found & which)
        if likely.size:
            digests = self._digests(x[likely], norms[likely])
            self._found.append(digests[among(digests, self._known) & (digests != NONE)])

    def found(self) -> NDArray[np.intp]:
        """The places of the rows of this set that were found among the others."""
        met = distinct(np.concatenate(self._found))
        near = self._near.found()
        return np.union1d(near, np.flatnonzero(among(self._digests_of_rows, met).any(axis=1))) if met.size else near

    def _digests(self, x: RawRows, norms: Reals) -> Numbers:
        """Digests of rows as given, of short unit rows at each scale, and without small entries, (b, 2 + n_scales)."""
        digests = np.full((len(x), 2 + len(SCALES)), NONE)

        def add_part(here: slice) -> None:
            wide, size, part = _float32(x[here]), _sizes(x[here]), digests[here]
            held, entries = (size >= SMALLEST) & (size <= LARGEST), np.count_nonzero(wide, axis=1)
            part[:, 0] = self._factors.hashes(_half(x[here]))
            if not held.all():
                part[~held, 0] = self._factors.hashes((wide[~held] + np.float32(0)).view(np.uint16))
            rough = _scaled_half(x[here])
            part[:, -1] = self._factors.hashes(rough)
            part[np.count_nonzero(rough, axis=1) < FEWEST, -1] = NONE
            if not self._short:
                part[entries == 0, 0] = NONE
                return
            some = np.flatnonzero((entries > 1) & (entries < FEWEST))
            fine = entries[some] < SHORT
            for place, unit in enumerate(_units(wide[some], norms[here][some], SCALES), start=1):
                part[some, place] = self._factors.hashes(_half(unit))
                part[some[fine], place] = self._factors.hashes(_fine(unit[fine]))

        in_slices(len(x), _at_a_time(x), add_part)
        return digests


class NearRows:
    """Rows to be found among other rows though both were scaled, and then rounded.

    Rows of at least `FEWEST` entries other than zero are near if one factor makes each entry of one differ from that of
    the other by no more than rounding may have moved the two (`_moved`). Rows that nothing rounded, or only to float32,
    must so be multiples in float32: people whose measures agree to 1/256 are no copies.

    Few rows are compared so. Sums of the features of near rows with fixed signs, in units of their spreads in this set,
    differ by at most `DIFFERENCE`: the first `IN_CELL` of them name a cell, and rows of one cell are compared by all
    `SUMS`, then as a whole.
    """

    def __init__(self, blocks: Callable[[], Iterable[RawRows]]) -> None:
        self._blocks, spread = blocks, _spreads(blocks())
        signs = np.random.default_rng(0).integers(0, 2, (len(spread), SUMS)) * 2 - 1
        small = spread < SMALL_SPREAD  # half precision may lose it
        ignored = small if np.count_nonzero(~small) >= FEWEST else spread == 0
        self._weights = np.divide(1, spread, out=np.zeros_like(spread), where=~ignored)
        self._signs = (signs / len(signs) ** 0.5).astype(np.float32)
        self._sums, self._long = [np.empty((0, SUMS), np.float32)], [np.empty(0, dtype=bool)]
        self._coarse = [np.empty(0, dtype=bool)]  # whether bfloat16 or half precision rounded a row
        self._waiting: list[tuple[RawRows, Reals, Indices]] = []  # rows, norms, the places of rows to compare them with

    def add(self, x: RawRows, norms: Reals) -> None:
        """Add the next rows of this set, (b, n_features), with their norms (b,). All come before the first `find`."""
        self._sums.append(self._sums_of(x, norms))
        self._long.append(np.count_nonzero(x, axis=1) >= FEWEST)
        self._coarse.append(_coarse(x))

    @cached_property
    def _known(self) -> Singles:
        return np.concatenate(self._sums)

    @cached_property
    def _known_coarse(self) -> Mask:
        return np.concatenate(self._coarse)

    @cached_property
    def _found(self) -> Mask:
        return np.zeros(len(self._known), dtype=bool)

    @cached_property
    def _cells(self) -> tuple[Numbers, Indices]:
        """Cells, sorted, and the place of the row that is near each."""
        places = np.flatnonzero(np.concatenate(self._long))
        corners = np.array(list(product((-DIFFERENCE, DIFFERENCE), repeat=IN_CELL)), np.float32)
        around = self._known[places, :IN_CELL] + corners[:, None]
        cells = _cells_of(around.reshape(-1, IN_CELL))
        order = np.argsort(cells)
        return cells[order], np.tile(places, len(corners))[order]

    def find(self, x: RawRows, norms: Reals, which: Mask | None) -> None:
        """Look for the rows of `x` (b, n_features), or those in `which`, by their norms (b,)."""
        cells, places = self._cells
        if not places.size:
            return
        sums = self._sums_of(x, norms)
        mine = _cells_of(sums[:, :IN_CELL])
        first = np.searchsorted(cells, mine)
        counts = np.searchsorted(cells, mine, "right") - first
        some = np.flatnonzero(counts if which is None else counts * which)
        for rows in np.split(some, np.flatnonzero(np.diff(np.cumsum(counts[some]) // PAIRS)) + 1):
            n_known = counts[rows]
            row = np.repeat(rows, n_known)
            known = places[np.arange(len(row)) + np.repeat(first[rows] + n_known - np.cumsum(n_known), n_known)]
            new = ~self._found[known]
            row, known = row[new], known[new]
            apart = np.abs(sums[row] - self._known[known]).max(axis=1)
            near = np.flatnonzero(apart <= DIFFERENCE)
            once = distinct(row[near])
            coarse = _coarse(x[once])[np.searchsorted(once, row[near])]
            near = near[coarse | self._known_coarse[known[near]] | (apart[near] <= FINE_DIFFERENCE)]
            for start in range(0, len(near), _at_a_time(x)):
                part = near[start : start + _at_a_time(x)]
                self._waiting.append((x[row[part]], norms[row[part]], known[part]))
                if len(self._waiting) > MOST_WAITING:
                    self._compare()

    def found(self) -> NDArray[np.intp]:
        self._compare()
        return np.flatnonzero(self._found)

    def _compare(self) -> None:
        """Compare the rows that wait with the rows of this set, which are read again."""
        if not self._waiting:
            return
        rows, norms, places = (np.concatenate(part) for part in zip(*self._waiting, strict=True))
        self._waiting, start = [], 0
        for x in self._blocks():
            pairs = np.flatnonzero((places >= start) & (places < start + len(x)))
            for part in np.split(pairs, range(_at_a_time(x), len(pairs), _at_a_time(x))):
                some = x[places[part] - start]
                near = _may_be_copies(some, norms_of(some), rows[part], norms[part])
                self._found[places[part[near]]] = True
            start += len(x)

    def _sums_of(self, x: RawRows, norms: Reals) -> Singles:
        """Sums of the features of each unit row with fixed signs, in spreads, each at most `FARTHEST`, (b, SUMS)."""
        sums = np.empty((len(x), SUMS), np.float32)

        def add_part(here: slice) -> None:
            spreads = _unit_rows(x[here], norms[here])
            spreads *= self._weights
            sums[here] = np.clip(spreads, -FARTHEST, FARTHEST, out=spreads) @ self._signs

        in_slices(len(x), _at_a_time(x), add_part)
        return sums


def share_a_row(private: Iterable[RawRows], public: Callable[[], Iterable[RawRows]]) -> bool:
    """Whether blocks of private rows share a row, or a positive multiple, with public ones, up to rounding."""
    known = RowSet(public)
    known.look_through(private)
    return bool(known.found().size)


class Commitment:
    """A keyed commitment to rows that are added block by block, in any order. Without the key it reveals nothing.

    Rows are the same if they agree in half precision after each is scaled by a power of 2 that brings its largest entry
    into [1/2, 1); entries below 2^-10 are then zeros, as float16 files hold small numbers less exactly. Other sets of
    rows give another value, but for a negligible probability. Not `scaled`, rows named the books of 0.2.0.
    """

    def __init__(self, key: bytes, *, scaled: bool = True) -> None:
        self._key = key
        self._forms, self._person = (_scaled_half, b"scaled rows") if scaled else (_as_given, b"")
        self._total, self._n_rows = np.zeros(LANES, dtype=np.uint64), 0
        self._keys = [np.empty(0, dtype=np.uint64)]

    def add(self, rows: RawRows) -> None:
        lanes = np.empty((len(rows), LANES), dtype=np.uint64)

        def add_part(here: slice) -> None:
            part = (row.tobytes() for row in self._forms(rows[here]))
            digests = b"".join(hashlib.blake2b(row, key=self._key, digest_size=8 * LANES).digest() for row in part)
            lanes[here] = np.frombuffer(digests, dtype=np.uint64).reshape(-1, LANES)

        in_slices(len(rows), _at_a_time(rows), add_part)
        self._total += lanes.sum(axis=0, dtype=np.uint64)
        self._keys.append(lanes[:, 0].copy())
        self._n_rows += len(rows)

    def row_keys(self) -> Numbers:
        """8 bytes of the digest of each row so far, shape (n,): equal for rows that are the same."""
        return np.concatenate(self._keys)

    def value(self) -> str:
        content = self._total.tobytes() + str(self._n_rows).encode()
        return hashlib.blake2b(content, key=self._key, digest_size=16, person=self._person).hexdigest()


class Factors:
    """Random odd factors for 64-bit hashes of rows, which never leave the process.

    Two different rows of b-bit words collide with a probability of at most 2^(b - 63) (Dietzfelbinger 1996); one more
    number is added, so that zeros have a hash too.
    """

    def __init__(self) -> None:
        self._of_width: dict[int, Numbers] = {}

    def hashes(self, words: NDArray[np.unsignedinteger]) -> Numbers:
        width = words.shape[1]
        if width not in self._of_width:
            drawn = np.frombuffer(secrets.token_bytes(8 * width + 8), dtype=np.uint64) | np.uint64(1)
            self._of_width.setdefault(width, drawn)  # the first of several threads decides
        factors = self._of_width[width]
        return np.asarray(np.einsum("ij,j->i", words, factors[:-1]) + factors[-1])


class RowHashes:
    """64-bit hashes of rows: equal for rows that are equal as float32 up to a power of 2, whatever their labels."""

    def __init__(self) -> None:
        self._factors = Factors()

    def __call__(self, rows: RawRows) -> Numbers:
        hashes = np.empty(len(rows), dtype=np.uint64)
        size = _at_a_time(rows)
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            single = rows[part].astype(np.float32)
            _, exponents = np.frexp(_sizes(single))
            words = (_scaled(single, exponents).astype(np.float32) + np.float32(0)).view(np.uint32)
            hashes[part] = self._factors.hashes(words)
        return hashes


HASHES = RowHashes()


def norms_of(x: RawRows) -> Reals:
    """`row_norms` of raw rows of any type, shape (n,): finite where a row is finite as float32, else not."""
    return row_norms(_float32(x))


def sampled(x: RawRows, norms: Reals) -> Numbers:
    """As `RowSet._digests`, but from `SAMPLED` columns: cheap, equal for equal rows, and equal for some others."""
    columns = np.linspace(0, x.shape[1] - 1, SAMPLED).astype(np.int64)
    few = _float32(x[:, columns])
    given = _half(np.stack([few, *_units(few, norms, SCALES)], axis=1))
    words = np.concatenate([given, _scaled_half(x, columns)[:, None]], axis=1).view(np.uint64)
    return np.asarray((words * FACTORS).sum(axis=2, dtype=np.uint64))


def _units(x: Singles, norms: Reals, scales: Iterable[float]) -> Iterator[Singles]:
    """Rows (b, n_features) divided by their norms and times each scale, rounded once; a zero row stays zero."""
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    for scale in scales:
        yield (x * (scale * inverse)[:, None]).astype(np.float32)


def _unit_rows(x: RawRows, norms: Reals) -> Singles:
    """Rows (b, n_features) divided by their norms (b,); rows that are not finite become zeros."""
    wide, finite = _float32(x), np.isfinite(norms)
    if finite.all():
        return normalise_rows(wide, norms)
    return normalise_rows(np.where(finite[:, None], wide, np.float32(0)), np.where(finite, norms, 0.0))


def _spreads(blocks: Iterable[RawRows]) -> Singles:
    """The spread of each feature of unit rows, (n_features,): half the distance between two quantiles of some rows.

    Where that is 0, the root mean square, of all such features if that is larger. A standard deviation may come from a
    few rows that are small elsewhere.
    """
    rows, step, n = [np.empty((0, 1), np.float32)], 1, 0
    for x in blocks:
        some = x[-n % step :: step]
        rows = [part for part in rows if part.size] + [_unit_rows(some, norms_of(some))]
        n += len(x)
        while sum(map(len, rows)) > MOST_SAMPLED:
            rows, step = [np.concatenate(rows)[::2]], 2 * step
    unit = np.concatenate(rows)
    if not len(unit):
        return np.ones(1, np.float32)
    low, middle, high = np.quantile(unit, (0.16, 0.5, 0.84), axis=0)
    spread = np.maximum((high - low) / 2, LEAST_SPREAD * np.abs(middle))
    squares, rare = np.einsum("ij,ij->j", unit, unit) / len(unit), spread == 0
    spread[rare] = np.sqrt(np.maximum(squares[rare], squares[rare].mean() if rare.any() else 0.0))
    return np.asarray(spread, np.float32)


def _fit(x: Singles) -> tuple[Mask, Mask]:
    """Whether all entries of each row are numbers of bfloat16, and of half precision."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits & 0xFFFF) == 0).all(axis=1), (widened(halved(x)) == x).all(axis=1)


def _grids(x: Singles) -> tuple[Mask, Mask]:
    """Whether bfloat16, or else half precision, may have rounded each row: all entries fit, and some are fractions."""
    (brain, half), fractions = _fit(x), (x != np.rint(x)).any(axis=1)
    return brain & fractions, half & fractions & ~brain


def _coarse(x: RawRows) -> Mask:
    """Whether bfloat16 or half precision may have rounded each row; most others differ in the first columns."""
    coarse = np.zeros(len(x), dtype=bool)
    likely = np.flatnonzero(np.logical_or(*_fit(_float32(x[:, :SAMPLED]))))
    coarse[likely] = np.logical_or(*_grids(_float32(x[likely])))
    return coarse


def _moved(x: Singles) -> Reals:
    """How far rounding may have moved each entry of rows (b, n_features), the same shape.

    Half a unit in the last place of bfloat16 or of half precision for rows of its numbers; else `FLOAT32` of the entry,
    for the multiplications.
    """
    wide = x.astype(np.float64)
    _, exponents = np.frexp(wide)
    moved = FLOAT32 * np.abs(wide)
    brain, half = _grids(x)
    moved[brain] = np.ldexp(1.0, exponents[brain] - 9)
    moved[half] = np.ldexp(1.0, np.maximum(exponents[half], -13) - 12)
    return moved


def _may_be_copies(x: RawRows, x_norms: Reals, y: RawRows, y_norms: Reals) -> Mask:
    """Whether each row of `x` and that of `y`, (b, n_features) with norms (b,), are one row, scaled and rounded."""
    wide_x, wide_y = _float32(x), _float32(y)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mine, theirs = wide_x / x_norms[:, None], wide_y / y_norms[:, None]
        moved = (1 + NEAR) * (_moved(wide_x) / x_norms[:, None] + _moved(wide_y) / y_norms[:, None])
        zero, size, along = mine == 0, np.abs(mine), theirs * np.sign(mine)
        # times any factor from `least` to `most`, an entry of x agrees with that of y
        least, most = np.where(zero, -np.inf, (along - moved) / size), np.where(zero, np.inf, (along + moved) / size)
    agree = (least.max(axis=1) <= most.min(axis=1)) & (most > 0).all(axis=1)
    return np.asarray(agree & (~zero | (np.abs(theirs) <= moved)).all(axis=1))


def _cells_of(sums: Singles) -> Numbers:
    """A number for the cell of each point, (b,): cells are cubes, twice `DIFFERENCE` wide."""
    with np.errstate(invalid="ignore"):
        cells = np.floor(sums / np.float32(2 * DIFFERENCE)).astype(np.int64).view(np.uint64)
    return np.asarray((cells * FACTORS[: sums.shape[1]]).sum(axis=1, dtype=np.uint64))


def _at_a_time(x: RawRows) -> int:
    return max(1, HASHED // int(x.shape[1]))


def _float32(x: RawRows) -> Singles:
    return widened(x) if x.dtype == np.float16 else np.asarray(x, dtype=np.float32)


def _half(x: RawRows) -> NDArray[np.uint16]:
    """The bits of rows in half precision. Zeros have no sign."""
    bits = halved(x).view(np.uint16)
    bits[bits == NEGATIVE_ZERO] = 0
    return bits


def _fine(x: Singles) -> NDArray[np.uint32]:
    """The bits of rows in float32, rounded to multiples of `LAST_BITS`. Zeros have no sign."""
    return ((x + np.float32(0)).view(np.uint32) + LAST_BITS // 2) // LAST_BITS


def _sizes(rows: RawRows) -> RawRows:
    sizes: RawRows = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    return sizes


def _scaled(rows: RawRows, exponents: NDArray[np.integer]) -> RawRows:
    """Each row times 2 to the power of minus its exponent. It is exact down to the least normal float32."""
    fits = np.abs(exponents).max(initial=0) <= MOST_EXPONENT
    scaled: RawRows = rows * np.ldexp(np.float32(1) if fits else 1.0, -exponents)[:, None]
    return scaled


def _as_given(rows: RawRows) -> Iterable[NDArray[np.uint16 | np.float32]]:
    """Each row in half precision, or where that cannot hold its largest entry, in float32. Zeros have no sign."""
    size, half, whole = _sizes(rows), _half(rows), _float32(rows) + np.float32(0)
    held = (size >= HALF.tiny) & (size <= HALF.max)
    return (half[place] if fits else whole[place] for place, fits in enumerate(held.tolist()))


def _scaled_half(rows: RawRows, columns: Indices | slice = slice(None)) -> NDArray[np.uint16]:
    """The bits of each scaled row in half precision, zeros for small entries, in `columns`: a row for `Commitment`."""
    fractions, exponents = np.frexp(_sizes(rows).astype(np.float64))
    exponents = exponents + (np.rint(fractions * SIGNIFICANT) == SIGNIFICANT)  # half precision rounds it to 1
    half = halved(_scaled(rows[:, columns], exponents)).view(np.uint16)
    half *= half & MAGNITUDE >= LEAST
    return half


NAMED = 5  # rows in a message
LEAKS = "refinement treats its rows as public, and that would leak; give other rows with --unlabelled"
WAITING = 4  # blocks that are read before a digest of them is computed


@blas_held_to_one_thread()  # also while threads share the rows of a digest
def check_rows(
    features: FeatureReader,
    *,
    keep: Mask | None = None,
    guarded: Mask | None = None,
    compared: Sequence[GroupRows] = (),
    commitment: Commitment | None = None,
    digest: bool = False,
) -> None:
    """Read every row, id and owner of a feature file once, and set `features.equal` and `features.checked`.

    The rows of a file that is `checked` are read only for what was not compared before.

    Args:
        keep, guarded: masks (n_train,) of the training rows that a run uses, and that must not be public.
        compared: public rows, with labels or without, to compare with the guarded rows.
        commitment: all training rows are added to it. digest: compute and keep the digest of the rows of `keep`.
    Raises DataError: not finite; a repeated id; a person with test rows and others. PrivacyError: private and public.
    """
    test = None if features.checked else _check_all_but_training_rows(features)
    if "train" in features.sizes:
        for part in compared:  # public images may repeat each other, as augmented ones do
            if _share_an_image(GroupRows(features, "train", guarded), part):
                raise PrivacyError(_shared("images", features, part))
        sha = GroupDigest(features, "train", keep) if digest and not features.has_digest("train", keep) else None
        if not features.checked or compared or commitment is not None or sha is not None:
            _check_training_rows(features, (keep, guarded), test, compared, commitment, sha)
        if test is not None:
            features.equal = _judged(test, features, [GroupRows(features, "train")], "training rows")
    features.checked = True


def _check_all_but_training_rows(features: FeatureReader) -> RowSet | None:
    tested = partial(_rows_of, partial(_finite_blocks, features, "test"))
    test = RowSet(tested, short=False) if "test" in features.sizes else None
    for group in {"public", UNLABELLED} & features.sizes.keys():
        for _ in _finite_blocks(features, group):
            pass
    text = features.text_weights()
    if text is not None and not np.isfinite(text).all():
        raise DataError(f"{features.path}: text/weights holds NaN or infinity; allowed: finite numbers; make it again")
    _check_ids(features)
    if test is not None and features.has_owners("test") and not features.description.shares_owners:
        others = [group for group in ("train", "public") if group in features.sizes and features.has_owners(group)]
        names = (name for group in others for name in GroupRows(features, group).owners())
        refuse_both_sides(GroupRows(features, "test").owners(), names, str(features.path))
    return test


def _check_training_rows(
    features: FeatureReader,
    masks: tuple[Mask | None, Mask | None],
    test: RowSet | None,
    public: Sequence[GroupRows],
    commitment: Commitment | None,
    sha: GroupDigest | None,
) -> None:
    sets = [(part, RowSet(partial(_rows_of, part.blocks))) for part in public]
    with ExitStack() as stack:  # digests are computed in threads, and hold no lock
        digests = [] if commitment is None else [lambda x, *_: commitment.add(x)]
        digests += [] if sha is None else [sha.add]
        adds = [stack.enter_context(behind(add, WAITING)) for add in digests]
        start = 0
        for x, y, norms in _finite_blocks(features, "train"):
            kept, guarded = (None if mask is None else mask[start : start + len(x)] for mask in masks)
            for add in adds:
                add(x, y, kept)
            if test is not None or sets:
                samples = sampled(x, norms)
                for _, known in sets:
                    known.find(x, norms, samples, guarded)
                if test is not None:
                    test.find(x, norms, samples)
            start += len(x)
    for part, known in sets:
        if known.found().size:
            raise PrivacyError(_shared("rows", features, part))
    if sha is not None:
        sha.keep()


def compare_test_rows(features: FeatureReader, others: Sequence[GroupRows], what: str) -> EqualRows | None:
    """Compare test rows with others, called `what`, as `check_rows` does. DataError: too many for chance."""
    test = RowSet(partial(_rows_of, partial(features.blocks, "test")), short=False)
    for other in others:
        test.look_through(_rows_of(other.blocks))
    equal = _judged(test, features, others, what)
    if equal is not None:
        equal.refuse_many()
    return equal


def share_people(private: GroupRows, public: GroupRows) -> bool:
    named = all(group.features.has_owners(group.group) for group in (private, public))
    return named and bool(people_in_both(private.owners(), public.owners()))


def refuse_shared(private: GroupRows, public: GroupRows, words: str, step: str, *, by_owner: bool = False) -> None:
    """PrivacyError if rows of `public`, their images or (`by_owner`) their people are among `private`, `words`."""
    shared = _share_an_image(private, public)
    shared = shared or share_a_row(_rows_of(private.blocks), partial(_rows_of, public.blocks))
    if shared or (by_owner and share_people(private, public)):
        people = " or people" if by_owner else ""
        raise PrivacyError(
            f"the group {public.group} of {public.features.path} holds {words}, or rows of their images{people}, of "
            f"{private.features.path}; {step}"
        )


def _share_an_image(private: GroupRows, public: GroupRows) -> bool:
    return bool(_of_images(public, [private]).any())


def _of_images(rows: GroupRows, others: Sequence[GroupRows]) -> Mask:
    """Which of the rows are of an image of the others, before or after the transform, as budget books compare them."""
    found = np.zeros(rows.n_rows, dtype=bool)
    for kind in (PIXELS, SOURCE):
        mine = rows.image_keys(kind)
        if mine is not None:
            theirs = (other.image_keys(kind) for other in others)
            found |= keys_among(mine, (keys for keys in theirs if keys is not None))
    return found


def _shared(what: str, features: FeatureReader, public: GroupRows) -> str:
    """The message for images or training rows of `features` that are both private and public."""
    elsewhere = f"{public.features.path} holds training {what} of {features.path}"
    never = f"a private {what[:-1]} cannot be public too"
    if public.group == UNLABELLED:
        return f"{elsewhere}; {LEAKS}"
    if public.features is not features:
        return f"{elsewhere}; {never}; give other {what}, or --public-shots K"
    if public.group == "train":
        copies = f"public shots of {features.path} have copies among its private {what}"
        return f"{copies}; {never}; remove the copies from the file, or give --public FILE"
    both = f"the group {public.group} of {features.path} holds {what} of its group train"
    return f"{both}; {never}; remove them from one group, or give --public-shots K"


def _judged(test: RowSet, features: FeatureReader, others: Sequence[GroupRows], what: str) -> EqualRows | None:
    """The test rows that were found among others, or are of their images; None for none."""
    equal, n_test = test.found(), features.sizes["test"]
    found = np.union1d(equal, np.flatnonzero(_of_images(GroupRows(features, "test"), others)))
    if not found.size:
        return None
    allowed = min(n_test, sum(other.n_rows for other in others)) // BY_CHANCE
    images = ", or are of their images" if found.size > equal.size else ""
    both = f"{found.size:,} of {n_test:,} test rows equal {what}, or multiples of them{images}"
    first = f"first at test rows {found[:NAMED].tolist()}"
    return EqualRows(f"{features.path}: {both}, {first}", allowed, few=bool(found.size <= allowed))


def _rows_of(blocks: Callable[[], Iterable[tuple[Any, ...]]]) -> Iterator[RawRows]:
    return (x for x, *_ in blocks())


def _finite_blocks(features: FeatureReader, group: str) -> Iterator[tuple[RawRows, NDArray[Any], Reals]]:
    """Rows, labels and norms of the blocks of a group. DataError after the last one: a row is not finite."""
    bad: list[int] = []
    start = 0
    for rows, labels in features.blocks(group):
        norms = norms_of(rows)
        bad.extend((start + np.flatnonzero(~np.isfinite(norms))).tolist())
        start += len(rows)
        if not bad:
            yield rows, labels, norms
    if bad:
        raise DataError(
            f"{features.path}: {group} has {counted(len(bad), 'row')} with NaN or infinity, first at rows {bad[:5]}; "
            "allowed: finite features; remove or repair those rows"
        )


def _check_ids(features: FeatureReader) -> None:
    """DataError for an id that names two records of a group, or a private and a public record."""
    hashes = {}
    for group, n_rows in features.sizes.items():
        ids = (name for batch in features.batches("id", group) for name in batch)
        hashes[group] = np.sort(np.fromiter(map(hash, ids), dtype=np.int64, count=n_rows))
        if repeated := _repeated(features, group, hashes[group]):
            raise DataError(
                f"{features.path}: {group} has {counted(len(repeated), 'repeated id')}, such as {repeated[0]!r}; "
                "allowed: one id per record; if several shards have the same test rows, give them in one shard"
            )
    if "public" not in hashes:
        return
    common = distinct(hashes["public"][among(hashes["public"], hashes["train"])])
    if not common.size:
        return
    private, public = (set(_ids_with_hash(features, group, common)) for group in ("train", "public"))
    if shared := private & public:
        raise DataError(
            f"{features.path}: train and public share {counted(len(shared), 'id')}, such as {min(shared)!r}; "
            "allowed: in one of the two; remove those rows from one group"
        )


def _ids_with_hash(features: FeatureReader, group: str, hashes: Indices) -> list[str]:
    wanted = set(hashes.tolist())
    return [name for batch in features.batches("id", group) for name in batch if hash(name) in wanted]


def _repeated(features: FeatureReader, group: str, hashes: Indices) -> list[str]:
    """The ids that repeat another id of the group. Ids with equal hashes are compared in full."""
    equal = hashes[1:][hashes[1:] == hashes[:-1]]
    names = _ids_with_hash(features, group, equal) if equal.size else []
    return list((Counter(names) - Counter(set(names))).elements())
