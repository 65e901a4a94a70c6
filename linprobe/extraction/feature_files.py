"""`linprobe import`, arrays to a feature file, and `linprobe info`, what a feature file or a run folder holds."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from linprobe.data.array_import import import_arrays
from linprobe.data.dataset import open_features
from linprobe.data.feature_file import is_hdf5
from linprobe.data.feature_reader import FeatureReader, people_by_group
from linprobe.data.labels import people_in_both
from linprobe.errors import Progress, UsageError, writing
from linprobe.extraction.request import read_class_names
from linprobe.options.requests import ImportRequest
from linprobe.runs.run_folder import RunFolder, new_files


def import_(request: ImportRequest, progress: Progress) -> dict[str, Any]:
    """Write arrays to a feature file; returns its description, as `info` does."""
    inputs, out = (*request.sources, request.classes), request.out
    with new_files({"--out": out}, what="feature file", inputs=inputs, overwrite=request.overwrite):
        if out.exists() and out.stat().st_size and not is_hdf5(out):
            raise UsageError(f"{out} is no feature file, and --overwrite would replace it; give --out another name")
        classes = read_class_names(request.classes)
        with writing(f"feature file {out}"):
            import_arrays(request, classes, progress)
        return describe_features(out, whole=False)  # the writer has checked it


def describe_features(path: Path, *, whole: bool = True) -> dict[str, Any]:
    """The number of rows, features and classes of a feature file, and its description; `whole` checks every row."""
    with open_features(path, whole=whole, labelled=False) as features:
        description = features.description
        return {
            "file": str(path),
            "rows": dict(features.sizes),
            "owners": people_by_group(features),
            "on_both_sides": _on_both_sides(features) if description.shares_owners else None,
            "n_features": features.n_features,
            "n_classes": len(description.class_names),
            "text_weights": features.text_weights() is not None,
            **{key: value for key, value in vars(description).items() if key != "class_names"},
            "class_names": list(description.class_names),
        }


def info(path: Path) -> dict[str, Any]:
    return RunFolder(path).manifest.to_json() if path.is_dir() else describe_features(path)


def _on_both_sides(features: FeatureReader) -> int:
    """The number of people with test rows and other rows. Private."""
    owners = {group: features.owners(group) for group in features.sizes if features.has_owners(group)}
    return len(people_in_both(owners.pop("test", []), chain.from_iterable(owners.values())))
