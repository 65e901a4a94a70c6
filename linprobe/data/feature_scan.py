"""Checks that read a whole feature file: every value is finite, and every id belongs to one record."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from linprobe.data.feature_reader import FeatureReader
from linprobe.errors import DataError


def scan(features: FeatureReader) -> None:
    """Read every row and id once.

    Raises:
        DataError: NaN or infinity, with the number of such rows and the first of them; a repeated id; or an id that is
            both private and public.
    """
    hashes: dict[str, NDArray[np.int64]] = {}
    for group in features.sizes:
        _refuse_non_finite_rows(features, group)
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


def _refuse_non_finite_rows(features: FeatureReader, group: str) -> None:
    bad: list[int] = []
    start = 0
    for rows, _ in features.blocks(group):
        finite = np.isfinite(rows).all(axis=1)
        bad.extend((start + np.flatnonzero(~finite)).tolist())
        start += len(rows)
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
