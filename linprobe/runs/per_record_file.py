"""The private file of a run: record ids, each record's losses, and the key of the data commitment."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linprobe.accounting.per_instance import ORDERS, RecordLosses
from linprobe.atomic_files import open_regular, replace_when_complete
from linprobe.data.array_files import checked_arrays, read_archive
from linprobe.errors import DataError, PrivacyError, read_fault
from linprobe.runs.manifest import PER_RECORD

PER_RECORD_ARRAYS = ("note", "id", "mu", "renyi", "key")
NOTE = "PRIVATE: derived from private rows without noise; do not publish"


@dataclass(frozen=True)
class PrivateRecords:
    """The part of a run folder that depends on the private records. Private.

    Attributes:
        digest: of the private rows. ids, losses: of every record whose loss was tracked, in the same order; where
            people are protected, their names and losses.
    """

    digest: str
    ids: list[str]
    losses: RecordLosses


class PerRecordFile(NamedTuple):
    """The content of `per_record.npz`: ids and losses in the same order, and the key of the commitments. Private."""

    ids: list[str]
    losses: RecordLosses
    key: bytes


def commitment(key: bytes, digest: str) -> str:
    """HMAC-SHA256 of a private digest: binds the manifest to the data and reveals nothing without the key."""
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


def per_record_digest(ids: list[str], losses: RecordLosses) -> str:
    """SHA-256 of every record's id and losses. Private."""
    figures = losses.mu.astype("<f8").tobytes() + losses.renyi.astype("<f4").tobytes()
    return hashlib.sha256("\0".join(ids).encode() + figures).hexdigest()


def write_per_record(folder: Path, private: PerRecordFile) -> None:
    """Write the private sidecar, mode 0600."""
    with replace_when_complete(folder / PER_RECORD, private=True) as stream:
        np.savez(
            stream,
            note=np.array(NOTE),
            id=np.array(private.ids, dtype=np.str_),
            mu=private.losses.mu,
            renyi=private.losses.renyi,
            key=np.frombuffer(private.key, dtype=np.uint8),
        )


def read_per_record(folder: Path, committed: str | None) -> PerRecordFile:
    """The private sidecar of a run whose manifest states the commitment `committed`.

    Raises DataError: missing or damaged. PrivacyError: another file than the manifest commits to.
    """
    path = folder / PER_RECORD
    try:
        stream = open_regular(path)
    except OSError as error:
        raise read_fault(str(path), error) or DataError(
            f"{folder} has no readable {PER_RECORD} ({error.strerror}); it is private and written only by "
            "methods that spend privacy; use the folder where the run was trained"
        ) from None
    with stream:
        arrays = read_archive(path, None, stream)
    if not set(arrays) <= set(PER_RECORD_ARRAYS) or str(arrays.get("note", NOTE)) != NOTE:
        raise DataError(f"{path} holds more than {', '.join(PER_RECORD_ARRAYS)}; restore it from a copy")
    ids, mu, renyi = checked_arrays(path, arrays, id=(1, "U"), mu=(1, "f"), renyi=(2, "f"))
    (key,) = checked_arrays(path, arrays, key=(1, "u"))
    known = len(mu) in (0, len(ids)) and len(renyi) == len(mu) and renyi.shape[1] in (0, len(ORDERS))
    if not known or not (np.isfinite(mu).all() and (mu >= 0).all() and not np.isnan(renyi).any()):
        raise DataError(
            f"{path} holds {len(ids)} ids, mu of {mu.shape} and renyi of {renyi.shape}; allowed: losses of 0 or more, "
            "one for each id, or none; restore it from a copy"
        )
    found = PerRecordFile(ids.tolist(), RecordLosses(mu, renyi), key.tobytes())
    if commitment(found.key, per_record_digest(found.ids, found.losses)) != committed:
        raise PrivacyError(f"{path} was edited, or belongs to another run; restore it from a copy")
    return found
