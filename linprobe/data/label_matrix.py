"""Labels of imported rows that have several each: a matrix of 0 and 1, with a column and a name for every label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.limits import MOST_LABELS
from linprobe.errors import DataError

Arrays = dict[str, NDArray[Any]]


def has_several_labels(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the labels of any group have two axes."""
    return any(array.ndim == 2 for key, array in arrays.items() if key.startswith("y_"))


def settle_matrix(
    arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None
) -> tuple[Arrays, tuple[str, ...], str]:
    """The arrays with labels as uint8, the names of the labels, and where these come from.

    The number of labels is the width of `y_train`, which is public like the number of features. Undeclared labels are
    named after their column: 0, 1, 2, ...

    Raises:
        DataError: groups of different widths, fewer than 2 labels or more than `MOST_LABELS`, another number of names,
            or a value that is neither 0 nor 1.
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
