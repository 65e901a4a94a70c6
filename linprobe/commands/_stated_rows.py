"""What a run states about its rows, compared with a feature file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import OWNER
from linprobe.commands._row_sources import public_source
from linprobe.commands._test_rows import figures_of
from linprobe.commands._units import private_units
from linprobe.data.feature_reader import FeatureReader
from linprobe.errors import PrivacyError
from linprobe.methods import find_method
from linprobe.runs.manifest import Manifest
from linprobe.runs.metrics_file import stated_metrics
from linprobe.runs.per_record_file import commitment
from linprobe.runs.run_folder import RunFolder

ROUNDING = 1e-3  # scores may round differently on another machine, and change the answer for a row
OF_PRIVATE = ("n_private", "n_units")


def private_mask(run: RunFolder, features: FeatureReader) -> NDArray[np.bool_] | None:
    """Mask of the training rows of `features` that were private, (n_train,), checked against the data commitment.

    None if the run released nothing about private rows, so that it has no commitment.

    Raises:
        DataError: no per-record file. PrivacyError: not the rows that the run was trained on.
    """
    manifest = run.manifest
    if manifest.private_commitment is None:
        return None
    ids, _, key = run.per_record
    known = set(ids)
    people = manifest.unit == OWNER
    if people and not features.has_owners("train"):
        raise PrivacyError(
            f"{features.path} does not say whose rows they are, and the run protects people; find the right file"
        )
    keep = np.array([name in known for name in (features.owners if people else features.ids)("train")])
    if find_method(manifest.method).joins_public:
        keep[:] = True  # every training row is private; the ids also name public rows of another file
    if people:
        used = private_units(features, ~keep, OWNER, manifest.per_owner_rows, manifest.split_seed).keep
        keep = keep if used is None else used
    if commitment(key, features.digest("train", keep)) != manifest.private_commitment:
        raise PrivacyError(
            f"{features.path} does not hold the private rows this run was trained on; find the right file"
        )
    return keep


def check_stated(run: RunFolder, features: FeatureReader) -> list[str]:
    """The keys of the manifest that the feature file proves.

    Keys about rows that the file does not hold are left out: public rows of another file, and test rows of another
    number or kind.

    Raises:
        PrivacyError: a key contradicts the file.
    """
    manifest = run.manifest
    if list(features.description.class_names) != run.class_names or features.n_features != manifest.n_features:
        raise PrivacyError(f"{features.path} has other classes or features than the manifest; find the right file")
    _same("task", run.task, features.description.task, features)
    return [
        "class_names",
        *(["task"] if manifest.has("task") else []),
        *_rows(manifest, features),
        *_test_rows(run, features),
    ]


def _rows(manifest: Manifest, features: FeatureReader) -> list[str]:
    """Keys about public and private rows."""
    if manifest.public_file is not None or find_method(manifest.method).joins_public:
        return []
    unit, seed = manifest.unit, manifest.split_seed
    public, taken = public_source(features, None, manifest.public_shots, seed, protected=True, people=unit == OWNER)
    units = private_units(features, taken, unit, manifest.per_owner_rows, seed, public)
    found: dict[str, Any] = {
        "n_public": 0 if public is None else public.n_rows,
        **dict.fromkeys(OF_PRIVATE, units.n_units),
    }
    if manifest.has("public_digest"):
        found["public_digest"] = None if public is None else public.digest()
    for key, value in found.items():
        if manifest.has(key):
            _same(key, getattr(manifest, key), value, features)
    return list(found)


def _test_rows(run: RunFolder, features: FeatureReader) -> list[str]:
    """Keys about public test rows."""
    manifest = run.manifest
    comparable = manifest.test_rows == "public" == features.description.test_rows
    if not comparable or features.sizes.get("test") != manifest.n_test:
        return []
    figures = figures_of(features, run) or {}
    known = stated_metrics(manifest)
    for key, name in known.items():
        _close(key, getattr(manifest, key), figures[name], manifest.n_test, features)
    for name, stated in (manifest.test_accuracy_per_class or {}).items():
        of_class = figures["per_class"][name]
        _close(name, stated, of_class["recall"], of_class["n"], features)
    return ["test_rows", *known, "test_accuracy_per_class"]


def _close(key: str, value: float | None, found: float | None, n_rows: int, features: FeatureReader) -> None:
    if value == found:
        return
    near = None not in (value, found) and math.isclose(value or 0, found or 0, abs_tol=ROUNDING + 1.5 / max(n_rows, 1))
    if not near:
        raise PrivacyError(
            f"{key} is {value} in the manifest, and the test rows of {features.path} give {found}; do not trust it"
        )


def _same(key: str, value: Any, found: Any, features: FeatureReader) -> None:
    if value != found:
        raise PrivacyError(f"{key} is {value} in the manifest, and {features.path} gives {found}; do not trust it")
