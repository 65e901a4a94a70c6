"""Checks that read a whole feature file: values are finite, an id is of one record, test rows are of other records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from linprobe.data.equal_rows import RowSet
from linprobe.data.feature_reader import BY_CHANCE, EqualRows, FeatureReader
from linprobe.data.owners import refuse_both_sides
from linprobe.errors import DataError

FEWEST = 8  # entries that are not zero; rows with fewer are multiples of each other by chance
NAMED = 5  # places in a message


def scan(features: FeatureReader) -> None:
    """Read every row, id and owner once, and set `features.equal`.

    Raises:
        DataError: NaN or infinity, with the number of such rows and the first of them; a repeated id; an id that is
            both private and public; or people with test rows and other rows.
    """
    hashes: dict[str, NDArray[np.int64]] = {}
    test: RowSet | None = None
    for group in sorted(features.sizes, key=lambda name: name != "test"):  # training rows are looked up in test rows
        rows = _finite_rows(features, group)
        if group == "test":
            test = RowSet(rows, FEWEST)
        else:
            for x in rows:
                if group == "train" and test is not None:
                    test.find(x)
        hashes[group] = _id_hashes(features, group)
        if repeated := _repeated(features, group, hashes[group]):
            raise DataError(
                f"{features.path}: {group} has {len(repeated)} repeated ids, such as {repeated[0]!r}; "
                "allowed: one id per record"
            )
        if group == "public":
            common = np.intersect1d(hashes[group], hashes["train"])
            if common.size and (shared := _shared_ids(features, common)):
                raise DataError(
                    f"{features.path}: {len(shared)} ids are both in train and in public, such as {min(shared)!r}; "
                    "allowed: in one of the two; remove those rows from one group"
                )
    text = features.text_weights()
    if text is not None and not np.isfinite(text).all():
        raise DataError(f"{features.path}: text/weights holds NaN or infinity; allowed: finite numbers; make it again")
    if test is None or "train" not in features.sizes:
        return
    if features.has_owners("test"):
        others = [group for group in ("train", "public") if group in features.sizes and features.has_owners(group)]
        refuse_both_sides(
            owners_of(features, "test"),
            (name for group in others for name in owners_of(features, group)),
            str(features.path),
        )
    features.equal = _judged(test, features, features.sizes["train"], "training rows")


def owners_of(features: FeatureReader, group: str, keep: NDArray[np.bool_] | None = None) -> Iterator[str]:
    """The owners of a group, in row order; only where `keep` (n_rows,) is true, if given."""
    return (name for batch in features.owner_batches(group, keep) for name in batch)


def compare_test_rows(
    features: FeatureReader, others: Iterable[NDArray[np.floating]], n_others: int, what: str
) -> EqualRows | None:
    """`scan`'s comparison of the test rows of a file with other rows: `others`, blocks of `n_others` rows in all.

    Args:
        what: the other rows, for messages.

    Raises:
        DataError: too many of them for chance.
    """
    test = RowSet((x for x, _ in features.blocks("test")), FEWEST)
    for x in others:
        test.find(x)
    equal = _judged(test, features, n_others, what)
    if equal is not None:
        equal.refuse_many()
    return equal


def _judged(test: RowSet, features: FeatureReader, n_others: int, what: str) -> EqualRows | None:
    """The test rows that were found among others; None for none."""
    found, n_test = test.found(), features.sizes["test"]
    if not found.size:
        return None
    allowed = min(n_test, n_others) // BY_CHANCE
    places = found[:NAMED].tolist()
    both = f"{found.size:,} of {n_test:,} test rows equal {what}, or multiples of them, first at test rows {places}"
    return EqualRows(f"{features.path}: {both}", allowed, few=bool(found.size <= allowed))


def _finite_rows(features: FeatureReader, group: str) -> Iterator[NDArray[np.floating]]:
    """Blocks of the rows of a group. DataError after the last, if a row is not finite."""
    bad: list[int] = []
    start = 0
    for rows, _ in features.blocks(group):
        finite = np.isfinite(rows).all(axis=1)
        bad.extend((start + np.flatnonzero(~finite)).tolist())
        start += len(rows)
        if finite.all():
            yield rows
    if bad:
        raise DataError(
            f"{features.path}: {group} has {len(bad)} rows with NaN or infinity, first at rows {bad[:5]}; "
            "allowed: finite features; remove or repair those rows"
        )


def _id_hashes(features: FeatureReader, group: str) -> NDArray[np.int64]:
    """64-bit hashes of a group's ids, sorted, shape (n_rows,)."""
    ids = (name for batch in features.id_batches(group) for name in batch)
    hashes = np.fromiter(map(hash, ids), dtype=np.int64, count=features.sizes[group])
    hashes.sort()
    return hashes


def _ids_with_hash(features: FeatureReader, group: str, hashes: NDArray[np.int64]) -> list[str]:
    """The ids of a group whose hash is in `hashes`."""
    wanted = set(hashes.tolist())
    return [name for batch in features.id_batches(group) for name in batch if hash(name) in wanted]


def _repeated(features: FeatureReader, group: str, hashes: NDArray[np.int64]) -> list[str]:
    """The ids that repeat another id of the group. Ids with equal hashes are compared in full."""
    equal = hashes[1:][hashes[1:] == hashes[:-1]]
    names = _ids_with_hash(features, group, equal) if equal.size else []
    return list((Counter(names) - Counter(set(names))).elements())


def _shared_ids(features: FeatureReader, common: NDArray[np.int64]) -> set[str]:
    """The ids that train and public have in common, given the hashes that both contain."""
    return set(_ids_with_hash(features, "public", common)) & set(_ids_with_hash(features, "train", common))
