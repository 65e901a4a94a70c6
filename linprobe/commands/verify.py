"""`linprobe verify`: a run's guarantee, recomputed."""

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
    """What was read of a run that holds.

    Attributes:
        folder: where it lies. manifest: the JSON object. figures: what was recomputed, as `check_manifest` returns it.
        per_record: ids, losses and commitment key, private; None where the file is not there.
    """

    folder: Path
    manifest: dict[str, Any]
    figures: dict[str, Any]
    per_record: tuple[list[str], RecordLosses, bytes] | None


def verified(folder: Path) -> VerifiedRun:
    """Recompute a run's epsilon from its ledger with both accountants, and check every file.

    Raises:
        PrivacyError: anything that does not match.
    """
    manifest = read_manifest(folder)
    figures = check_manifest(manifest, folder, read_ledger(folder / run_folder.LEDGER))
    there = (folder / run_folder.PER_RECORD).exists()
    return VerifiedRun(folder, manifest, figures, run_folder.read_per_record(folder, manifest) if there else None)


def verify(folder: Path, features: Path | None) -> dict[str, Any]:
    """`verified`, and the data if given.

    Raises:
        PrivacyError: anything that does not match.
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
    """Which training rows of `features` the run held private, (n_train,), checked against its data commitment.

    None for a run that made no release about private rows, and so committed to none.

    Raises:
        DataError: no per-record file. PrivacyError: other rows than those the run was trained on.
    """
    manifest = run.manifest
    if manifest["private_commitment"] is None:
        return None
    # where it is not there, reading it says so
    ids, _, key = run.per_record or run_folder.read_per_record(run.folder, manifest)
    known = set(ids)
    keep = np.array([name in known for name in features.ids("train")])
    if find_method(manifest["method"]).joins_public:
        keep[:] = True  # and the public rows among the ids come from elsewhere
    if run_folder.commitment(key, features.digest("train", keep)) != manifest["private_commitment"]:
        raise PrivacyError(
            f"{features.path} does not hold the private rows this run was trained on; find the right file"
        )
    return keep
