"""`linprobe info`: what a feature file or a run folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linprobe.commands._row_sources import open_features
from linprobe.runs.manifest import read_manifest


def describe_features(path: Path) -> dict[str, Any]:
    """The number of rows, features and classes of a feature file, and its description."""
    with open_features(path, labelled=False) as features:
        description = features.description
        return {
            "file": str(path),
            "rows": dict(features.sizes),
            "n_features": features.n_features,
            "n_classes": len(description.class_names),
            "text_weights": features.text_weights() is not None,
            **{key: value for key, value in vars(description).items() if key != "class_names"},
            "class_names": list(description.class_names),
        }


def info(path: Path) -> dict[str, Any]:
    """A feature file's description, or a run folder's manifest."""
    if path.is_dir():
        return read_manifest(path)
    return describe_features(path)
