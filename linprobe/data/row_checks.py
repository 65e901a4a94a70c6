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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import halved, row_norms, widened
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

SCALES = (1.0, 1.3, 1.7)  # of unit rows: a number between two of half precision is not so at every scale
SHORT, LAST_BITS = 4, np.uint32(8)  # fewer entries have few directions in half precision; float32 is rounded to these
SAMPLED = 16  # columns compared before whole rows are
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], dtype=np.uint64)
NONE = np.uint64(0)  # in place of a digest
NO_SAMPLES = np.empty((0, 2 + len(SCALES)), dtype=np.uint64)

LANES = 4  # 64-bit words of a commitment's digest
HASHED = 2**18  # numbers at a time: they fit in the cache
SIGNIFICANT = 2**11  # half precision has 11 significant bits
LEAST = np.float16(2**-10).view(np.uint16)  # bits of the least entry of a scaled row that counts
MOST_EXPONENT = 126  # of a scale in float32
HALF = np.finfo(np.float16)


class RowSet:
    """Rows to be found among other rows: equal rows, or positive multiples, in half precision, whatever their labels.

    Rows that half precision does not hold are compared as float32. So are multiples of a row with fewer than `SHORT`
    entries other than zero, which other records have by chance; a row with one entry has none. A factor that is no
    power of 2 changes last digits: a row of 2,048 features is missed with a probability of about 0.1 at one of the
    `scales` of unit rows, and of 0.001 at three. Rows that are the same for a `Commitment` are equal here as well, but
    for those with fewer than `FEWEST` entries left. Rows with fewer than `fewest` entries have no multiples, as these
    may be other records by chance; above 0, rows of zeros equal nothing.
    """

    def __init__(
        self, blocks: Callable[[], Iterable[RawRows]], fewest: int = 0, scales: Sequence[float] = SCALES
    ) -> None:
        self._blocks, self._fewest, self._scales, self._factors = blocks, fewest, scales, Factors()
        self._samples = distinct(np.concatenate([NO_SAMPLES, *(sampled(x, norms_of(x)) for x in blocks())]))
        self._found: list[Numbers] = []

    @cached_property
    def _digests_of_rows(self) -> Numbers:
        """Digests of all rows, shape (n, 2 + n_scales). Most sets need none, as no sample is found among others."""
        return np.concatenate([self._digests(x, norms_of(x)) for x in self._blocks()])

    @cached_property
    def _known(self) -> Numbers:
        return distinct(self._digests_of_rows)

    def find(self, x: RawRows, samples: Numbers | None = None, which: Mask | None = None) -> bool:
        """Whether a row of `x` (b, n_features), of those in `which`, is in the set; `samples` are `sampled(x)`."""
        samples = sampled(x, norms_of(x)) if samples is None else samples
        found = among(samples, self._samples).any(axis=1)
        likely = x[found if which is None else found & which]
        if not len(likely):
            return False
        digests = self._digests(likely, norms_of(likely))
        self._found.append(digests[among(digests, self._known) & (digests != NONE)])
        return bool(self._found[-1].size)

    def found(self) -> NDArray[np.intp]:
        if not self._found:
            return np.empty(0, dtype=np.intp)
        met = distinct(np.concatenate(self._found))
        return np.flatnonzero(among(self._digests_of_rows, met).any(axis=1))

    def _digests(self, x: RawRows, norms: Reals) -> Numbers:
        """Digests of each row as given, as unit row at each scale, and without small entries, (b, 2 + n_scales)."""
        digests = np.empty((len(x), 2 + len(self._scales)), dtype=np.uint64)

        def add_part(here: slice) -> None:
            wide, size = _float32(x[here]), _sizes(x[here])
            held, entries = (size >= SMALLEST) & (size <= LARGEST), np.count_nonzero(wide, axis=1)
            as_given, units, short = digests[here, 0], digests[here, 1:-1], entries < SHORT
            as_given[:] = self._factors.hashes(_half(x[here]))
            if not held.all():
                as_given[~held] = self._factors.hashes((wide[~held] + np.float32(0)).view(np.uint16))
            for place, unit in enumerate(_units(wide, norms[here], self._scales)):
                units[:, place] = self._factors.hashes(_half(unit))
                units[short, place] = self._factors.hashes(_fine(unit[short]))
            as_given[entries == 0] = NONE
            units[(entries < self._fewest) | (entries == 1)] = NONE
            rough = _scaled_half(x[here])
            digests[here, -1] = self._factors.hashes(rough)
            digests[here, -1][np.count_nonzero(rough, axis=1) < FEWEST] = NONE

        in_slices(len(x), _at_a_time(x), add_part)
        return digests


def share_a_row(private: Iterable[RawRows], public: Callable[[], Iterable[RawRows]]) -> bool:
    """Whether blocks of private rows share a row, or a positive multiple, in half precision with public ones."""
    known = RowSet(public)
    return any(known.find(x) for x in private)


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


FEWEST = 8  # entries that are not zero; rows with fewer are multiples of each other by chance
ONE_SCALE = SCALES[:1]  # for test rows, of which many count
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
    test = RowSet(tested, FEWEST, ONE_SCALE) if "test" in features.sizes else None
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
    shared: list[GroupRows] = []
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
                shared = shared or [part for part, known in sets if known.find(x, samples, guarded)]
                if test is not None:
                    test.find(x, samples)
            start += len(x)
    if shared:
        raise PrivacyError(_shared("rows", features, shared[0]))
    if sha is not None:
        sha.keep()


def compare_test_rows(features: FeatureReader, others: Sequence[GroupRows], what: str) -> EqualRows | None:
    """Compare test rows with others, called `what`, as `check_rows` does. DataError: too many for chance."""
    test = RowSet(partial(_rows_of, partial(features.blocks, "test")), FEWEST, ONE_SCALE)
    for other in others:
        for x, _ in other.blocks():
            test.find(x)
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
