"""`linprobe import`, arrays to a feature file, and `linprobe info`, what a feature file or a run folder holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.atomic_files import given_text
from linprobe.data.array_import import Columns, described, groups_of, import_arrays
from linprobe.data.dataset import open_features
from linprobe.data.feature_file import is_hdf5
from linprobe.data.owners import owner_bounds
from linprobe.data.record_ids import GIVEN
from linprobe.errors import DataError, LinprobeError, UsageError, advice
from linprobe.options.requests import ImportRequest
from linprobe.plans.words import DryRun, bytes_in_words
from linprobe.progress import Progress
from linprobe.runs.output import new_files
from linprobe.runs.run_folder import RunFolder

NAMED = 8  # classes in a dry run


def import_(request: ImportRequest, progress: Progress) -> dict[str, Any]:
    """Write arrays to a feature file; returns its description, as `info` does.

    Raises:
        UsageError: `out` is a folder, an input or no feature file, or exists and `overwrite` is false. DataError:
            unreadable arrays or class list. LinprobeError: `out` is not writable.
    """
    with _writing(request):
        try:
            import_arrays(out=request.out, **_arguments(request), progress=progress)
        except OSError as error:
            raise LinprobeError(f"feature file {request.out} cannot be written ({error}); {advice(error)}") from None
        return describe_features(request.out, whole=False)  # the writer has checked it


@contextmanager
def _writing(request: ImportRequest) -> Iterator[None]:
    """`new_files` for the feature file; also refuses to replace a file of another kind, such as an input's array."""
    inputs, out = (*request.sources, request.classes), request.out
    with new_files({"--out": out}, what="feature file", inputs=inputs, overwrite=request.overwrite):
        if out.exists() and out.stat().st_size and not is_hdf5(out):
            raise UsageError(f"{out} is no feature file, and --overwrite would replace it; give --out another name")
        yield


def dry_run_of_import(request: ImportRequest, progress: Progress) -> DryRun:
    """What `import_` would read and write. The arrays are read; single values are not checked.

    Returns: sources, out, rows and owners (number of each group; owners empty without any), n_features, class_names,
        class_names_from, ids_from, test_rows, dtype, file_bytes.

    Raises:
        LinprobeError: as `import_`, before it writes.
    """
    with _writing(request):
        description, arrays = described(**_arguments(request), progress=progress)
    groups = groups_of(arrays)
    owners = {group: len(np.unique(arrays[key])) for group in groups if (key := f"owner_{group}") in arrays}
    _, n_features, dtype = next(iter(groups.values()))
    facts: dict[str, Any] = {
        "sources": [str(source) for source in request.sources],
        "out": str(request.out),
        "rows": {group: rows for group, (rows, _, _) in groups.items()},
        "owners": owners,
        "n_features": n_features,
        "class_names": list(description.class_names),
        "class_names_from": description.class_names_from,
        "ids_from": description.ids_from,
        "test_rows": description.test_rows if "test" in groups else None,
        "dtype": str(dtype),
        "file_bytes": sum(rows * width * kind.itemsize for rows, width, kind in groups.values()),
    }
    shown = ", ".join(f"{rows:,} {group}" for group, rows in facts["rows"].items())
    lines = [
        ("reads", f"{', '.join(facts['sources'])}: {shown} rows of {n_features} features"),
        ("classes", f"{len(description.class_names)}: {', '.join(description.class_names[:NAMED])}"),
        ("ids", "given" if description.ids_from == GIVEN else "made from the rows"),
        ("owners", ", ".join(f"{count:,} {group}" for group, count in owners.items()) or "none"),
        ("spends", "nothing; training on the rows does"),
        ("writes", f"{request.out}: {bytes_in_words(facts['file_bytes'])} as {dtype}"),
    ]
    return DryRun(facts, lines)


def _arguments(request: ImportRequest) -> dict[str, Any]:
    """The arguments of `described`, with the declared classes."""
    names, classes = None, request.classes
    if classes is not None:
        try:
            names = [line.strip() for line in given_text(classes, "utf-8-sig").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"class list {classes} cannot be read ({error}); give one class name per line") from None
    return {
        "sources": request.sources,
        "classes": names,
        "private_test": request.private_test,
        "columns": Columns(request.label_column, request.id_column, request.owner_column),
    }


def describe_features(path: Path, *, whole: bool = True) -> dict[str, Any]:
    """The number of rows, features and classes of a feature file, and its description; `whole` checks every row."""
    with open_features(path, whole=whole, labelled=False) as features:
        description = features.description
        return {
            "file": str(path),
            "rows": dict(features.sizes),
            "owners": {
                group: len(owner_bounds(features.owner_batches(group), f"group {group} of {path}")[1])
                for group in features.sizes
                if features.has_owners(group)
            },
            "n_features": features.n_features,
            "n_classes": len(description.class_names),
            "text_weights": features.text_weights() is not None,
            **{key: value for key, value in vars(description).items() if key != "class_names"},
            "class_names": list(description.class_names),
        }


def info(path: Path) -> dict[str, Any]:
    """A feature file's description, or a run folder's manifest."""
    if path.is_dir():
        return RunFolder(path).manifest.to_json()
    return describe_features(path)
