"""Check the arrays given to an estimator: classes, labels and owners."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linprobe.data.array_files import refuse_twice
from linprobe.data.labels import Bounds, by_owner, owner_bounds, owner_names
from linprobe.data.tables import column_order
from linprobe.errors import DataError, ParameterError, counted
from linprobe.parallel.array_api import Floats, Indices

SHOWN = 5  # classes in a message
ROUNDING = 1e-6  # of the mean and variance of float32 columns that were scaled to 0 and 1


def learnt_scaling(X: Floats) -> str | None:
    """One line if columns of `X` (n, n_features) are what a scaler fitted on these very rows gives; None otherwise."""
    low, high = X.min(axis=0), X.max(axis=0)
    varied, largest = np.asarray(high > low), np.maximum(high, -low)
    if not varied.any():
        return None
    mean = X.mean(axis=0, dtype=np.float64)
    variance = np.einsum("ij,ij->j", X, X, dtype=np.float64) / len(X) - mean**2
    of_sample = variance * len(X) / (len(X) - 1)  # as PCA whitens
    centred = varied & (np.abs(mean) <= ROUNDING * largest)
    unit = varied & ((np.abs(variance - 1) <= ROUNDING) | (np.abs(of_sample - 1) <= ROUNDING))
    signs = {  # zeros and ones alone are no sign of a scaler
        "mean 0": centred,
        "variance 1": unit,
        "minimum 0 and maximum 1": (np.abs(low) <= ROUNDING) & (np.abs(high - 1) <= ROUNDING),
        "minimum -1 and maximum 1": (np.abs(low + 1) <= ROUNDING) & (np.abs(high - 1) <= ROUNDING),
        "largest absolute value 1": np.abs(largest - 1) <= ROUNDING,
    }
    scaled, found = centred & unit, "mean 0 and variance 1"
    if not scaled.any():
        whole = [name for name, columns in signs.items() if columns[varied].all()]
        if not whole:
            return None
        scaled, found = varied, whole[0]
        if not centred[varied].all() and not unit[varied].all():
            size = np.abs(X)
            if not np.any((size > ROUNDING) & (size < 1 - ROUNDING), axis=0)[varied].all() or _of_bytes(X, low.min()):
                return None
    return (
        f"X has {scaled.sum()} of {len(scaled)} columns with exactly {found}, as a scaler fitted on the private rows "
        "gives; no epsilon covers what such a step learnt; fit it on public rows and freeze it, for instance "
        "sklearn.frozen.FrozenEstimator(StandardScaler().fit(X_public))"
    )


def _of_bytes(X: Floats, least: float) -> bool:
    """Whether `X`, from `least` on, is of pixels 0 to 255 that constants brought to 0..1 or to -1..1."""
    low, size = (-1, 2) if least < 0 else (0, 1)
    for start in range(0, len(X), 1024):
        pixels = (X[start : start + 1024].astype(np.float64) - low) * (255 / size)
        if np.abs(pixels - np.rint(pixels)).max() > 255 * ROUNDING:
            return False
    return True


def learnt_weights(weights: Floats, labels: NDArray[np.integer]) -> str | None:
    """One line if weights of private rows (n,) are one over the number of rows of their class, by `labels` (n,)."""
    counts = np.bincount(labels)[labels]
    totals = weights * counts
    if counts.min() == counts.max() or np.ptp(totals) > ROUNDING * abs(totals).max():
        return None
    return (
        "the weights are one over the number of private rows of each class; no epsilon covers these numbers; give "
        "class_weight='balanced', which releases noisy ones, or weights from public rows"
    )


def refuse_masked(given: Mapping[str, ArrayLike | None]) -> None:
    """DataError for an array with masked entries: NumPy reads the values under the mask."""
    for name, values in given.items():
        if np.ma.is_masked(values):
            raise DataError(f"{name} has masked entries; allowed: arrays without a mask; fill them or leave rows out")


COMPLEX = "Complex data not supported"  # as scikit-learn begins


@contextmanager
def naming_cell(X: ArrayLike, name: str) -> Iterator[None]:
    """A ValueError inside the block becomes a DataError with the place of the first cell of `X` that cannot be used.

    If there is none, and `name` is not X, what scikit-learn says about X becomes a DataError about `name`.
    """
    refuse_masked({name: X})
    refuse_twice(list(getattr(X, "columns", ())), name)
    try:
        yield
    except (TypeError, ValueError) as error:
        if str(error).startswith(COMPLEX):  # the numbers follow
            raise DataError(f"{COMPLEX}: {name} holds complex numbers; allowed: real ones; give {name}.real") from None
        found = _unusable_cell(X)
        if found is not None:
            cell, row, column = found
            convert = ", then convert with X.astype('float32')" if cell.startswith("'") else ""
            raise DataError(
                f"{name} holds {cell} at row {row}, column {column}; allowed: finite numbers; repair or remove the "
                f"row{convert}"
            ) from None
        if name == "X":
            raise
        words = re.sub(r"\bX\b", name, " ".join(str(error).split()))
        raise DataError(f"{'' if name in words else f'{name}: '}{words}") from None


def _unusable_cell(X: ArrayLike) -> tuple[str, int, int] | None:
    """The first text that is no number, NaN or infinity in rows `X`, with its row and column."""
    try:
        array = np.asarray(X)
        if array.dtype.kind not in "biuf":
            array = np.asarray(X, dtype=object)
    except ValueError:  # rows of different lengths
        return None
    if array.ndim != 2:
        return None
    if array.dtype.kind != "O":
        row, column = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape) if array.size else (0, 0)
        usable = not array.size or np.isfinite(array[row, column])
        return None if usable else (_shown(array[row, column]), int(row), int(column))
    return next(((_shown(one), row, column) for (row, column), one in np.ndenumerate(array) if not _usable(one)), None)


def _shown(cell: Any) -> str:
    return repr(cell[:40]) if isinstance(cell, str) else str(cell).replace("nan", "NaN")


def _usable(cell: Any) -> bool:
    """Whether a cell is a finite number, or of a type of which scikit-learn says more."""
    try:
        return cell is not None and math.isfinite(float(cell))
    except TypeError:
        return True
    except (ValueError, OverflowError):
        return False


def declared_classes(
    given: Iterable[Any] | None, public: NDArray[Any] | None, *, n_labels: int | None = None
) -> NDArray[Any]:
    """Classes in label order: as declared; else 0, 1, ... for `n_labels` labels a row, or the labels of public rows."""
    if given is not None:
        classes = _listed(given)
    elif n_labels is not None:
        classes = np.arange(n_labels)
    elif public is not None:
        classes = np.unique(public)
    else:
        raise ParameterError(
            "classes is None; allowed: all classes, listed without the protected labels; pass classes=[...]"
        )
    if len(classes) < 2 or len(np.unique(classes)) != len(classes):
        twice = [name for name, count in Counter(classes.tolist()).items() if count > 1]
        found = f"{twice[0]!r} twice" if twice else f"{len(classes)} of them"
        raise ParameterError(f"classes has {found}; allowed: 2 or more, all different")
    if n_labels is not None and len(classes) != n_labels:
        raise ParameterError(
            f"classes has {len(classes)} entries for {n_labels} labels a row; allowed: a name for each"
        )
    return classes


def _listed(given: Iterable[Any]) -> NDArray[Any]:
    """Declared classes as an array. Raises ParameterError: no list, or one of None or lists, which have no order."""
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "shape", None) == ():
        raise ParameterError(f"classes is {given!r}; allowed: a list of classes, such as range(10)")
    listed = list(given)
    try:
        classes = np.asarray(listed)
        np.unique(classes)
    except (TypeError, ValueError):
        classes = np.empty((0, 0))
    if classes.ndim != 1:
        raise ParameterError(f"classes is {repr(listed)[:80]}; allowed: a name or number for each class, as range(10)")
    return classes


def named_by(columns: Iterable[Any] | None, declared: Any, classes: NDArray[Any]) -> NDArray[Any]:
    """The `classes` of labels from a frame with `columns`: the names of several labels, unless some are `declared`."""
    names = [] if columns is None or declared is not None else list(columns)
    return declared_classes(names, None, n_labels=len(classes)) if len(names) > 1 else classes


def refuse_other_columns(labels: Any, classes: NDArray[Any], name: str) -> None:
    """DataError if a frame of several labels a row names other columns than the classes, or in another order.

    The columns 0, 1, 2, ..., which pandas gives unnamed ones, are no names, unless classes have them.
    """
    names, known = [str(column) for column in getattr(labels, "columns", ())], [str(one) for one in classes]
    unnamed = names == [str(place) for place in range(len(names))] and not set(names) & set(known)
    if len(names) == len(known) and names != known and not unnamed:
        raise DataError(
            f"{name} has the columns {', '.join(names[:SHOWN])}{', ...' * (len(names) > SHOWN)}, which are taken by "
            f"position; allowed: the classes in their order, {', '.join(known[:SHOWN])}"
            f"{', ...' * (len(known) > SHOWN)}; give {name}[[...]] in this order, or {name}.to_numpy() if it is right"
        )


def refuse_other_features(names: Sequence[Any], wanted: str | None, run: object) -> None:
    """DataError if `names` of the columns of a frame X are not those `wanted`, the `column_order` of `run`."""
    found = column_order(names, len(names)) if names and all(isinstance(one, str) for one in names) else None
    if wanted and found and found != wanted:
        raise DataError(
            f"X has the columns {found}, and the run {run} was trained with {wanted}; allowed: the same columns in the "
            "same order"
        )


def class_indices(labels: NDArray[Any], classes: NDArray[Any], name: str, *, declared: bool = True) -> Indices:
    """Labels as indices into `classes`, (n,), `declared` or of public labels. DataError: outside, or floats too big."""
    _refuse_rounded(labels, f"{name} has the label {{}} at row {{}}")
    if labels.dtype.kind in "iuf":
        _refuse_rounded(classes, "classes has {} at place {}")
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    try:
        places = np.clip(np.searchsorted(ordered, labels), 0, len(ordered) - 1)
        known = ordered[places] == labels
    except TypeError:
        known, places = np.zeros(len(labels), dtype=bool), np.zeros(len(labels), dtype=np.int64)
    if not np.all(known):
        wrong = np.flatnonzero(~np.broadcast_to(known, labels.shape))
        listed = ", ".join(map(repr, classes[:SHOWN].tolist())) + ", ..." * (len(classes) > SHOWN)
        raise DataError(
            f"{name} holds {counted(len(wrong), 'label')} outside the {len(ordered)} "
            f"{'declared classes' if declared else 'classes of the public labels'}, first label "
            f"{labels[wrong[:1]].tolist()[0]!r} at row {wrong[0]}; allowed: {listed}; "
            "name every class in the argument classes, in the type of the labels"
        )
    return np.asarray(order[places], dtype=np.int64)


def _refuse_rounded(numbers: NDArray[Any], found: str) -> None:
    """DataError if one of some floats is so large that several whole numbers may have become one; `found` takes it."""
    if numbers.dtype.kind != "f":
        return
    most = 2 / float(np.finfo(numbers.dtype).eps)
    inexact = np.flatnonzero(np.abs(numbers) >= most)
    if len(inexact):
        raise DataError(
            f"{found.format(f'{numbers[inexact[0]]:.17g}', inexact[0])}, of type {numbers.dtype}; allowed: below "
            f"{most:.0f}, as whole numbers above are rounded; give integers, or text"
        )


def label_matrix(labels: NDArray[Any], n_labels: int, name: str) -> NDArray[np.uint8]:
    """Several labels a row as uint8, shape (n, n_labels). Raises DataError: another shape, or not only 0 and 1."""
    if labels.ndim != 2 or labels.shape[1] != n_labels:
        raise DataError(f"{name} has shape {labels.shape}; allowed with {n_labels} labels a row: (rows, {n_labels})")
    wrong = int(np.sum(~((labels == 0) | (labels == 1))))
    if wrong:
        raise DataError(f"{name} holds {counted(wrong, 'value')} other than 0 and 1; allowed: 0 and 1")
    return labels.astype(np.uint8)


def refuse_other_index(X: Any, given: Mapping[str, Any], rows: str = "X") -> None:
    """DataError if a frame `X` and a `given` series or frame have different indices: all are taken by position."""
    for name, values in given.items():
        if hasattr(X, "iloc") and hasattr(values, "iloc") and not X.index.equals(values.index):
            raise DataError(
                f"{name} has another index than {rows}, and is taken by position; allowed: the index of {rows} in the "
                f"same order; give {name}.loc[{rows}.index], or {name}.to_numpy() if the order is right"
            )


def people_of(owners: NDArray[Any], n_rows: int, name: str = "owners") -> tuple[NDArray[np.intp], Bounds, NDArray[Any]]:
    """The order that puts rows of a person next to each other, where each person's rows begin, and the people."""
    names = owner_names(owners, n_rows, name)
    order = by_owner(names)
    if names.dtype.kind in "iu":
        people, starts = np.unique(names[order], return_index=True)
        return order, np.append(starts, n_rows), people
    bounds, texts = owner_bounds(names[order].astype(str).tolist(), name)
    return order, bounds, np.array(texts, dtype=names.dtype)
