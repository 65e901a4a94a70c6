"""Owners: the person each row belongs to. Adjacent rows of one owner are one unit of privacy.

An owner's rows must be adjacent, so that a person has a place among the people as a row has one among the rows.
`by_owner` is the order that makes them so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import DataError, UsageError

OWNER = "owner"  # column of a table, and first part of an array's key
Bounds = NDArray[np.int64]  # rows of unit u are bounds[u] to bounds[u + 1], shape (n_units + 1,)


def id_hash(name: str, split_seed: int) -> int:
    """A pseudo-random 64-bit number that depends on the id of a record, or the name of a person, and the seed only."""
    return int.from_bytes(hashlib.sha256(f"{split_seed}\0{name}".encode()).digest()[:8], "little")


def by_owner(owners: NDArray[Any]) -> NDArray[np.intp]:
    """The order of rows with the given owners (n_rows,) that puts the rows of an owner next to each other."""
    return np.argsort(owners, kind="stable")


def owner_bounds(batches: Iterable[Sequence[str]], where: str) -> tuple[Bounds, list[str]]:
    """Where the rows of each owner begin, shape (n_units + 1,), and the owners in this order.

    Args:
        batches: the owner of each row, in row order. where: the rows, for the message.

    Raises:
        DataError: rows of an owner that are not adjacent, or an empty name.
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
    return np.array([*starts, row], dtype=np.int64), names


def refuse_both_sides(test: Iterable[str], others: Iterable[str], where: str) -> None:
    """Refuse people who have test rows and other rows: the accuracy would be measured on people the model has seen.

    Args:
        test, others: owners of the test rows, and of training and public rows. where: the rows, for the message, which
            counts people and names nobody.

    Raises:
        DataError: a name is among both.
    """
    both = set(test).intersection(others)
    if both:
        raise DataError(
            f"{where}: people with rows on both sides, in test and in train or public: {len(both)}; allowed: 0; remove "
            "their rows from one side and make the file again; extract --test-fraction splits by person"
        )


def capped(bounds: Bounds, ids: Sequence[str], most: int, seed: int) -> NDArray[np.bool_]:
    """Mask of at most `most` rows of each unit, shape (n_rows,): those whose record ids have the lowest `id_hash`.

    The rows of a person depend on that person's ids and on `seed` only.

    Raises:
        UsageError: `most` is below 1.
    """
    if most < 1:
        raise UsageError(f"per-owner-rows is {most}; allowed: 1 or more")
    keep = np.ones(len(ids), dtype=bool)
    for unit in np.flatnonzero(np.diff(bounds) > most):
        rows = np.arange(bounds[unit], bounds[unit + 1])
        order = np.array([id_hash(ids[row], seed) for row in rows], dtype=np.uint64)
        keep[rows[np.argsort(order, kind="stable")[most:]]] = False
    return keep
