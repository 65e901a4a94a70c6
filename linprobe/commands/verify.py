"""`linprobe verify`: recompute a run's guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.ledger import read_ledger
from linprobe.accounting.per_instance import RecordLosses
from linprobe.commands._row_sources import open_features
from linprobe.data.feature_file import FeatureReader
from linprobe.errors import PrivacyError
from linprobe.methods import find_method
from linprobe.runs import run_folder
from linprobe.runs.manifest import check_manifest, read_manifest


@dataclass(frozen=True)
class VerifiedRun:
    """A run whose manifest, ledger and files agree.

    Attributes:
        folder: its path. manifest: the JSON object. figures: the recomputed figures, from `check_manifest`.
        per_record: ids, losses and commitment key, private; None without a per-record file.
    """

    folder: Path
    manifest: dict[str, Any]
    figures: dict[str, Any]
    per_record: tuple[list[str], RecordLosses, bytes] | None


def verified(folder: Path) -> VerifiedRun:
    """Recompute a run's epsilon from its ledger with both accountants, and check every file.

    Raises:
        PrivacyError: any mismatch.
    """
    manifest = read_manifest(folder)
    figures = check_manifest(manifest, folder, read_ledger(folder / run_folder.LEDGER))
    has_records = (folder / run_folder.PER_RECORD).exists()
    per_record = run_folder.read_per_record(folder, manifest) if has_records else None
    return VerifiedRun(folder, manifest, figures, per_record)


def verify(folder: Path, features: Path | None) -> dict[str, Any]:
    """Verify a run and, with `features`, that its private rows are those of the file.

    Returns: run, verified, private, the figures of `check_manifest`, data (what was checked, in words).

    Raises:
        PrivacyError: any mismatch.
    """
    run = verified(folder)
    data = "not checked: give --features FILE"
    if features is not None:
        with open_features(features) as opened:
            private = verify_data(run, opened)
        data = "the private rows are those the run was trained on"
        if private is None:
            data = "not committed to: the run makes no release about private rows"
    return {"run": str(folder), "verified": True, "private": run.manifest["private"], **run.figures, "data": data}


def verify_data(run: VerifiedRun, features: FeatureReader) -> NDArray[np.bool_] | None:
    """Mask of the training rows of `features` that were private, (n_train,), checked against the data commitment.

    None for a run that released nothing about private rows, and so commits to none.

    Raises:
        DataError: no per-record file. PrivacyError: not the rows that the run was trained on.
    """
    manifest = run.manifest
    if manifest["private_commitment"] is None:
        return None
    ids, _, key = run.per_record or run_folder.read_per_record(run.folder, manifest)
    known = set(ids)
    keep = np.array([name in known for name in features.ids("train")])
    if find_method(manifest["method"]).joins_public:
        keep[:] = True  # every training row is private; the ids also name public rows of another file
    if run_folder.commitment(key, features.digest("train", keep)) != manifest["private_commitment"]:
        raise PrivacyError(
            f"{features.path} does not hold the private rows this run was trained on; find the right file"
        )
    return keep
