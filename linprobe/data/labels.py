"""Labels: class indices or several labels a row, from imported arrays to a feature file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import DataError

MULTICLASS, MULTILABEL = "multiclass", "multilabel"  # one class a row, or several labels a row
TASKS = (MULTICLASS, MULTILABEL)
MOST_LABELS = 4096  # of a row
MOST_CLASSES = 100_000
LONGEST_NAME = 1_024  # characters of a class name
CELLS_AT_ONCE = 1 << 20
SHOWN = 5  # class names in a message
WHOLE_FLOAT = re.compile(r"(?<=[0-9])\.0*$")
DIGITS = 20  # of the longest whole number that a label can be, with its sign

Arrays = dict[str, NDArray[Any]]


def settle_labels(arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None) -> Arrays:
    """The arrays with labels as integers where they are whole numbers, stored as floats or as text, else as text.

    Text labels that are all among the declared class names stay text.

    Raises DataError: a label that is neither a whole number nor text, with its row.
    """
    labels = {key: _plain(key, np.asarray(array)) for key, array in arrays.items() if key.startswith("y_")}
    texts = [array for array in labels.values() if array.dtype.kind == "U"]
    named = declared is not None and all(set(declared) >= set(array.tolist()) for array in texts)
    if texts and not named:
        try:
            labels |= {key: _whole(array) for key, array in labels.items() if array.dtype.kind == "U"}
        except (ValueError, OverflowError):
            named = True
    if texts and named:
        labels = {key: array if array.dtype.kind == "U" else array.astype(str) for key, array in labels.items()}
    return {**arrays, **labels}


def _whole(texts: NDArray[np.str_]) -> NDArray[np.int64]:
    """Text labels as whole numbers; `2.0`, as tables write floats, is 2. ValueError for any other text."""
    found, places = np.unique(texts, return_inverse=True)
    return np.array([int(WHOLE_FLOAT.sub("", text)) for text in found.tolist()], dtype=np.int64)[places]


def _plain(key: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Labels of dtype int64, or as text."""
    if labels.dtype.kind == "U":
        return labels
    if labels.dtype.kind == "S":
        try:
            return np.char.decode(labels, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{key} holds bytes that are no UTF-8 text; write class names as text") from None
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    if labels.dtype.kind != "f":
        raise DataError(f"{key} has type {labels.dtype}; allowed: whole numbers, or class names as text")
    wrong = np.flatnonzero(~(labels == np.floor(labels)) | (np.abs(labels) > 2**53))
    if wrong.size:
        raise DataError(
            f"{key} has label {labels[wrong[0]]:g} at row {wrong[0]}; allowed: whole numbers, or class names as text"
        )
    return labels.astype(np.int64)


def class_list(arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None) -> tuple[tuple[str, ...], str]:
    """Class names and their origin: declared, or else taken from the test labels, which are public.

    Whole test labels that begin at 0 count the classes; others are the names of the classes, in order.

    Raises DataError: no names are declared, and there are no test labels.
    """
    if declared is not None:
        return tuple(declared), "declared"
    if "y_test" not in arrays:
        raise DataError(
            "there are no test labels to take class names from, and training labels are private; declare the classes "
            "with --classes, or class_names in a .npz"
        )
    labels = arrays["y_test"]
    if not labels.size:
        raise DataError(
            "test has 0 rows; allowed: at least 1, or no X_test and no y_test at all; add rows or leave it out"
        )
    if labels.dtype.kind in "iub" and labels.min() == 0:
        if labels.max() >= MOST_CLASSES:
            raise DataError(
                f"y_test has the label {labels.max()}; allowed: 0 to {MOST_CLASSES - 1}; number classes from 0"
            )
        return tuple(str(index) for index in range(int(labels.max()) + 1)), "test labels"
    return tuple(str(label) for label in np.unique(labels)), "test labels"


def label_indices(labels: NDArray[Any], names: Sequence[str], key: str) -> NDArray[np.int64]:
    """Labels as indices into `names`, shape (rows,).

    Text is matched by name. Whole numbers are matched by name if all names are whole numbers; else they are indices.

    Raises DataError: a label outside the classes, with its row; `key` says whose labels they are.
    """
    listed = f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
    numbered = all(
        len(name) <= DIGITS and name.removeprefix("-").isdecimal() and str(int(name)) == name for name in names
    )
    if labels.dtype.kind in "iub" and not numbered:
        wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
        if wrong.size:
            raise DataError(
                f"{key} has {wrong.size} labels outside the declared classes, first label {labels[wrong[0]]} at row "
                f"{wrong[0]}; allowed: 0 to {len(names) - 1}, the positions in the class list ({listed}); subtract 1 "
                "if labels count from 1, or write class names as labels"
            )
        return np.asarray(labels, dtype=np.int64)
    index = {name: position for position, name in enumerate(names)}
    found = np.array([index.get(str(label), -1) for label in labels.tolist()], dtype=np.int64)
    wrong = np.flatnonzero(found < 0)
    if wrong.size:
        raise DataError(
            f"{key} has {wrong.size} labels outside the classes, first label {labels[wrong[0]].item()!r} at row "
            f"{wrong[0]}; allowed: {listed}; declare others with --classes"
        )
    return found


def holds_label_matrix(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the labels of any group have two axes."""
    return any(array.ndim == 2 for key, array in arrays.items() if key.startswith("y_"))


def settle_matrix(
    arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None
) -> tuple[Arrays, tuple[str, ...], str]:
    """The arrays with labels as uint8, the names of the labels, and where these come from.

    The number of labels is the width of `y_train`, which is public like the number of features. Undeclared labels are
    named after their column: 0, 1, 2, ...

    Raises DataError: groups of different widths, fewer than 2 labels or more than `MOST_LABELS`, another number of
    names, or a value that is neither 0 nor 1.
    """
    labels = {key: array for key, array in arrays.items() if key.startswith("y_")}
    shapes = {key: array.shape for key, array in labels.items()}
    widths = {shape[1] if len(shape) == 2 else 0 for shape in shapes.values()}
    if len(widths) != 1:
        listed = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
        raise DataError(f"labels have the shapes {listed}; allowed: (rows,), or (rows, labels) with one width for all")
    width = widths.pop()
    if not 2 <= width <= MOST_LABELS:
        raise DataError(
            f"y_train has {width} labels a row; allowed: 2 to {MOST_LABELS}; for one class a row give the shape (rows,)"
        )
    names = tuple(str(column) for column in range(width)) if declared is None else tuple(declared)
    if len(names) != width:
        raise DataError(f"{len(names)} class names are declared for {width} labels a row; allowed: one for each label")
    settled = {key: _zeros_and_ones(key, array, names) for key, array in labels.items()}
    return {**arrays, **settled}, names, "columns" if declared is None else "declared"


def _zeros_and_ones(key: str, labels: NDArray[Any], names: Sequence[str]) -> NDArray[np.uint8]:
    if labels.dtype.kind not in "fiub":
        raise DataError(f"{key} has type {labels.dtype}; allowed with several labels a row: 0 and 1")
    wrong = np.argwhere(~((labels == 0) | (labels == 1)))
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            f"{key} has {len(wrong)} values that are not 0 or 1, first {labels[row, column]:g} at row {row}, label "
            f"{names[column]!r}; allowed: 0 and 1; decide on uncertain or missing labels first, or leave their rows out"
        )
    return labels.astype(np.uint8)


def check_stored(y: Any, group: str, path: Path, *, n_rows: int, n_classes: int, task: str) -> None:
    """DataError unless the HDF5 data set `y` has class indices (n_rows,), or 0 and 1 in shape (n_rows, n_classes)."""
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
    at_once = max(1, CELLS_AT_ONCE // max([1, *y.shape[1:]]))
    for start in range(0, len(y), at_once):
        labels = y[start : start + at_once]
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


def as_labels(y: NDArray[np.integer]) -> NDArray[np.integer]:
    """Class indices as int64, labels 0 and 1 as uint8."""
    return y.astype(np.int64 if y.ndim == 1 else np.uint8, copy=False)
