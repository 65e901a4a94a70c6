"""Record ids, the names of rows, and owners, the person each row belongs to.

An id made from content never depends on the place of a row: deleting a row leaves the ids of all others as they are.
Public shots, which are chosen by id, then stay the same too. Adjacent rows of one owner are one unit of privacy.

An owner's rows must be adjacent, so that a person has a place among the people as a row has one among the rows.
`by_owner` is the order that makes them so.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import DataError, UsageError

GIVEN, FILE_NAMES, CONTENT = "given", "file names", "content"
LONGEST_ID = 4_096  # bytes of a record id: a path has at most these on Linux
DIGEST_BYTES = 16
OWNER = "owner"  # column of a table, and first part of an array's key
APART, SHARED = "apart", "shared"  # people with test rows: apart from the others, or declared not to be
TEST_NAMES = ("test", "val", "validation", "valid")  # of a folder, or in a column, of test rows
OwnerOf = Callable[[str], str | None]  # the owner of the record with an id; None if nobody is named
LISTED, PERHAPS_LISTED = re.compile(r"[;|\n\t]"), re.compile(r"[,/+&]")  # between the people of a row
BRACKETS = {"[": "]", "(": ")", "{": "}"}
Bounds = NDArray[np.int64]  # rows of unit u are bounds[u] to bounds[u + 1], shape (n_units + 1,)


class ContentIds:
    """Ids `PREFIX/DIGEST` of the rows of one group, in row order.

    The digest is BLAKE2b of a row's shape, type, bytes and label. Rows that are equal in all of them are numbered from
    the second on: `PREFIX/DIGEST-2`, `PREFIX/DIGEST-3`. Deleting one of them removes the last number. The digest has no
    key, so whoever knows a row can find its id: the ids of private rows are private.

    Attributes:
        names: the ids of all rows added so far.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names: list[str] = []
        self._seen: Counter[str] = Counter()

    def add(self, rows: NDArray[Any], labels: NDArray[np.integer]) -> None:
        """Append the ids of a block of rows, shape (b, ...), with labels (b,) or (b, n_labels)."""
        contiguous = np.ascontiguousarray(rows)
        kind = f"{contiguous.shape[1:]} {contiguous.dtype.str}".encode()
        for row, label in zip(contiguous, labels.tolist(), strict=True):
            sha = hashlib.blake2b(kind, digest_size=DIGEST_BYTES)
            sha.update(row.data)
            sha.update(str(label).encode())
            name = f"{self.prefix}/{sha.hexdigest()}"
            self._seen[name] += 1
            count = self._seen[name]
            self.names.append(name if count == 1 else f"{name}-{count}")


def id_hashes(names: Iterable[str], split_seed: int) -> NDArray[np.uint64]:
    """Pseudo-random 64-bit numbers, shape (n_names,), that depend on the id of a record or person and the seed only."""
    digests = (hashlib.sha256(f"{split_seed}\0{name}".encode()).digest()[:8] for name in names)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def in_share(names: Iterable[str], share: float) -> NDArray[np.bool_]:
    """Mask of the names whose hash is among the lowest `share` of all numbers, 0 < share < 1, shape (n_names,)."""
    return id_hashes(names, 0) < np.uint64(math.ceil(share * 2.0**64))


def by_owner(owners: NDArray[Any]) -> NDArray[np.intp]:
    """The order of rows with the given owners (n_rows,) that puts the rows of an owner next to each other."""
    return np.argsort(owners, kind="stable")


def owner_bounds(batches: Iterable[Sequence[str]], where: str) -> tuple[Bounds, list[str]]:
    """Where the rows of each owner begin, shape (n_units + 1,), and the owners in this order.

    Args:
        batches: the owner of each row, in row order. where: the rows, for the message.
    Raises DataError: rows of an owner that are not adjacent, an empty name, or one that lists several people.
    """
    starts: list[int] = []
    names: list[str] = []
    last, row = None, 0
    for batch in batches:
        for owner in batch:
            if owner != last:
                starts.append(row)
                names.append(owner)
                last = owner
            row += 1
    if not all(names):
        raise DataError(f"{where} has rows whose owner is empty; allowed: a name for every row; write it again")
    if len(set(names)) != len(names):
        raise DataError(
            f"{where} has {len(names) - len(set(names))} owners whose rows are not adjacent; allowed: the rows of a "
            "person next to each other; make the file with linprobe import or extract, which sort them"
        )
    refuse_several(names, where, starts)
    return np.array([*starts, row], dtype=np.int64), names


def names_several(owner: str, known: Collection[str]) -> bool:
    """Whether an owner lists several people: `P1;P2`, `P1|P2`, `[P1, P2]`; or `P1,P2`, if both are owners themselves.

    A comma alone may be part of a name.
    """
    parts = [part.strip() for part in LISTED.split(owner) if part.strip()]
    if len(parts) > 1 or (owner[:1] in BRACKETS and owner[-1:] == BRACKETS[owner[0]] and "," in owner):
        return True
    parts = [part.strip() for part in PERHAPS_LISTED.split(owner) if part.strip()]
    return len(parts) > 1 and all(part in known for part in parts)


def refuse_several(owners: Sequence[str], where: str, rows: Sequence[object] | None = None, known: Any = None) -> None:
    """Refuse rows that show several people: removing one of them would change whose the other rows are.

    Args:
        owners: of rows, shape (n_rows,). where: the rows, for the message, which names rows and nobody. rows: their
            names, by default their places. known: a set of owners of other rows as well; None for `owners` alone.
    Raises DataError: an owner that lists people.
    """
    each = set(owners)
    several = {owner for owner in each if names_several(owner, each if known is None else known)}
    found = [row if rows is None else rows[row] for row, owner in enumerate(owners) if owner in several]
    if found:
        raise DataError(
            f"{where}: {len(found)} rows list several people as their owner, first "
            f"{', '.join(map(str, found[:5]))}; allowed: one owner a row; leave such rows out, or give all people "
            "who share rows, directly or through others, one name, and the group is protected as one"
        )


def refuse_both_sides(test: Iterable[str], others: Iterable[str], where: str) -> None:
    """Refuse people who have test rows and other rows: the accuracy would be measured on people the model has seen.

    Args:
        test, others: owners of the test rows, and of training and public rows. where: the rows, for the message, which
            counts people and names nobody.
    Raises DataError: a name is among both.
    """
    both = set(test).intersection(others)
    if both:
        raise DataError(
            f"{where}: people with rows on both sides, in test and in train or public: {len(both)}; allowed: 0; remove "
            "their rows from one side and make the file again; extract --test-fraction splits by person; for an "
            "accuracy on people seen in training, import or extract with --owners-on-both-sides"
        )


def test_side(ids: Iterable[str], fraction: float, owner_of: OwnerOf | None) -> NDArray[np.bool_]:
    """Mask of the test rows, about `fraction` of all, shape (rows,).

    A row's side depends on its own id only. With `owner_of` it depends on its owner's name only, so that all rows
    of a person are on one side.

    Raises UsageError: `fraction` is not between 0 and 1. DataError: all rows, or none, fall on the test side.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"test fraction is {fraction}; allowed: above 0 and below 1")
    names = ids if owner_of is None else (owner_of(one) or one for one in ids)
    test = in_share(names, fraction)
    if test.all() or not test.any():
        raise DataError(
            f"test fraction {fraction} puts {int(test.sum())} of {len(test)} rows into the test group; "
            "allowed: some, but not all; change --test-fraction"
        )
    return test


def divided(
    ids: Sequence[str], owner_of: OwnerOf | None, named: NDArray[np.str_] | None, fraction: float | None, where: str
) -> dict[str, NDArray[np.int64]]:
    """Places of the rows of each group: by a column, `named` (n_rows,), of group names; or by `test_side`.

    The column holds train, public, and one of `TEST_NAMES`.

    Raises UsageError: both a column and a fraction, or neither; or as `test_side`. DataError: another value in the
    column, two names for test rows, or no training row; or as `test_side`.
    """
    if (named is None) == (fraction is None):
        raise UsageError(
            f"{where}: {'neither' if named is None else 'both'} of --split-column and --test-fraction were given; "
            "allowed: one of the two"
        )
    if named is None:
        test = test_side(ids, fraction or 0, owner_of)
        return {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
    tested = [name for name in TEST_NAMES if (named == name).any()]
    names = {"train": "train", "public": "public"} | dict.fromkeys(tested[:1], "test")
    wrong = np.flatnonzero(~np.isin(named, list(names)))
    if wrong.size or not (named == "train").any():
        got = f"{str(named[wrong[0]])!r} in row {wrong[0]}" if wrong.size else "no row of train"
        raise DataError(
            f"{where}: the column of groups has {got}; allowed: train, public, and one of {', '.join(TEST_NAMES)}"
        )
    sides = {group: np.flatnonzero(named == name) for name, group in names.items()}
    return {group: rows for group, rows in sides.items() if rows.size}


def capped(bounds: Bounds, ids: Sequence[str], most: int, seed: int) -> NDArray[np.bool_]:
    """Mask of at most `most` rows of each unit, shape (n_rows,): those whose record ids have the lowest `id_hashes`.

    The rows of a person depend on that person's ids and on `seed` only.

    Raises UsageError: `most` is below 1.
    """
    if most < 1:
        raise UsageError(f"per-owner-rows is {most}; allowed: 1 or more")
    keep = np.ones(len(ids), dtype=bool)
    for unit in np.flatnonzero(np.diff(bounds) > most):
        rows = np.arange(bounds[unit], bounds[unit + 1])
        order = id_hashes((ids[row] for row in rows), seed)
        keep[rows[np.argsort(order, kind="stable")[most:]]] = False
    return keep
