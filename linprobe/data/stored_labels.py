"""Labels as a feature file stores them: one class a row, or for every class a 0 or 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from linprobe.data.limits import MOST_LABELS
from linprobe.data.tasks import MULTICLASS, MULTILABEL
from linprobe.errors import DataError

CELLS_AT_ONCE = 1 << 20


def check_stored(y: h5py.Dataset, group: str, path: Path, *, n_rows: int, n_classes: int, task: str) -> None:
    """DataError unless `y` has class indices (n_rows,), or for multilabel 0 and 1, shape (n_rows, n_classes)."""
    shape = (n_rows,) if task == MULTICLASS else (n_rows, n_classes)
    if y.shape != shape or y.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {group} labels have shape {y.shape} and type {y.dtype}; allowed: integers of shape {shape}; "
            "make the file again"
        )
    if task == MULTILABEL and n_classes > MOST_LABELS:
        raise DataError(f"{path} declares {n_classes} labels a row; allowed: at most {MOST_LABELS}; use fewer")
    largest = n_classes - 1 if task == MULTICLASS else 1
    wrong, first = 0, (0, 0)
    for start, labels in _parts(y):
        bad = np.argwhere((labels < 0) | (labels > largest))
        if len(bad) and not wrong:
            first = (start + int(bad[0][0]), int(labels[tuple(bad[0])]))
        wrong += len(bad)
    if wrong:
        outside = f"outside the {n_classes} declared classes" if task == MULTICLASS else "that are not 0 or 1"
        raise DataError(
            f"{path}: {group} has {wrong} labels {outside}, first at row {first[0]} (label {first[1]}); allowed: 0 to "
            f"{largest}"
        )


def _parts(y: h5py.Dataset) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """The labels in parts, each with its first row."""
    size = max(1, CELLS_AT_ONCE // (1 if y.ndim == 1 else max(1, y.shape[1])))
    for start in range(0, len(y), size):
        yield start, y[start : start + size]


def as_labels(y: NDArray[np.integer]) -> NDArray[np.integer]:
    """Class indices as int64, labels 0 and 1 as uint8."""
    return y.astype(np.int64 if y.ndim == 1 else np.uint8, copy=False)
