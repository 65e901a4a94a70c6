"""`linprobe info`: what a feature file or a run folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linprobe.data.dataset import open_features
from linprobe.data.feature_reader import FeatureReader
from linprobe.data.owners import owner_bounds
from linprobe.runs.run_folder import RunFolder


def describe_features(path: Path, *, whole: bool = True) -> dict[str, Any]:
    """The number of rows, features and classes of a feature file, and its description; `whole` checks every row."""
    with open_features(path, whole=whole, labelled=False) as features:
        description = features.description
        return {
            "file": str(path),
            "rows": dict(features.sizes),
            "owners": {group: _n_owners(features, group) for group in features.sizes if features.has_owners(group)},
            "n_features": features.n_features,
            "n_classes": len(description.class_names),
            "text_weights": features.text_weights() is not None,
            **{key: value for key, value in vars(description).items() if key != "class_names"},
            "class_names": list(description.class_names),
        }


def _n_owners(features: FeatureReader, group: str) -> int:
    return len(owner_bounds(features.owner_batches(group), f"group {group} of {features.path}")[1])


def info(path: Path) -> dict[str, Any]:
    """A feature file's description, or a run folder's manifest."""
    if path.is_dir():
        return RunFolder(path).manifest.to_json()
    return describe_features(path)
