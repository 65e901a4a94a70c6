"""Labels of imported rows: whole numbers or names, and the class list that turns them into indices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.limits import MOST_CLASSES
from linprobe.errors import DataError

Arrays = dict[str, NDArray[Any]]
SHOWN = 5  # class names in a message
WHOLE_FLOAT = re.compile(r"(?<=[0-9])\.0*$")
DIGITS = 20  # of the longest whole number that a label can be, with its sign


def settle_labels(arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None) -> Arrays:
    """The arrays with labels as integers where they are whole numbers, stored as floats or as text, else as text.

    Text labels that are all among the declared class names stay text.

    Raises:
        DataError: a label that is neither a whole number nor text, with its row.
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

    Raises:
        DataError: no names are declared, and there are no test labels.
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

    Raises:
        DataError: a label outside the classes, with its row; `key` says whose labels they are.
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
