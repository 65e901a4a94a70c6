"""Selection of public shots among the training rows, by record id and split seed, never by place."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import DataError


def id_hash(record_id: str, split_seed: int) -> int:
    """A pseudo-random 64-bit number that depends on record id and split seed only."""
    return int.from_bytes(hashlib.sha256(f"{split_seed}\0{record_id}".encode()).digest()[:8], "little")


def public_shots(
    ids: Sequence[str],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    shots: int,
    split_seed: int,
    owners: Sequence[str] | None = None,
) -> NDArray[np.bool_]:
    """Mask of the public rows, shape (n_rows,): in each class the `shots` records with the lowest `id_hash`.

    With `owners`, the people whose names have the lowest `id_hash` are public with all of their rows, so that each
    class has at least `shots` public rows.

    Raises:
        DataError: a class has fewer than `shots` rows, or no private row would be left.
    """
    names = ids if owners is None else owners
    order = np.array([id_hash(name, split_seed) for name in names], dtype=np.uint64)
    public = np.zeros(len(labels), dtype=bool)
    for index, name in enumerate(class_names):
        rows = np.flatnonzero(labels == index)
        if len(rows) < shots:
            raise DataError(
                f"public shots is {shots}, but class {name!r} has fewer training rows; lower --public-shots"
            )
        public[rows[np.argsort(order[rows], kind="stable")[:shots]]] = True
    if owners is not None:
        public = np.isin(order, order[public])
    if public.all():
        raise DataError(f"{shots} public shots per class take every training row; lower --public-shots")
    return public
