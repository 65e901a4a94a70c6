"""Import of array files (.npz, .npy, .pt, .csv) into a feature file."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.array_files import Arrays, fits, load_torch, open_array, read_archive
from linprobe.data.feature_file import GROUPS, PRIVATE, Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.limits import MOST_CLASSES
from linprobe.data.record_ids import CONTENT, GIVEN, ContentIds
from linprobe.errors import DataError, UsageError, reading

ARRAY_KEYS = tuple(f"{kind}_{group}" for group in GROUPS for kind in ("X", "y", "id"))
SUFFIXES = (".npz", ".npy", ".pt", ".csv")
BLOCK_BYTES = 1 << 24


def read_arrays(sources: Sequence[Path]) -> Arrays:
    """Read arrays by key: X_train, y_train, X_test, y_test, and optionally X_public, y_public, id_*, class_names.

    A `.npz`, or a `.pt` with a dictionary, contains the keys. For a `.npy`, or a `.pt` with a tensor, the key is the
    stem of the file name (`X_train.npy`). A CSV is named after its group (`train.csv`); its header has a column
    `label`, optionally `id`, and one column per feature. A folder means all array files in it.

    Raises:
        UsageError: another kind or name of file. DataError: a file that cannot be read.
    """
    arrays: Arrays = {}
    for source in sources:
        if source.is_dir():
            inside = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES)
            if not inside:
                raise DataError(f"folder {source} holds no arrays; allowed: files ending in {', '.join(SUFFIXES)}")
            arrays |= read_arrays(inside)
            continue
        if not source.is_file():
            raise DataError(
                f"array file {source} does not exist; give an existing {', '.join(SUFFIXES)} file or folder"
            )
        arrays |= _read_one(source)
    _check(arrays)
    return arrays


def _read_one(source: Path) -> Arrays:
    if source.suffix == ".npz":
        return read_archive(source, (*ARRAY_KEYS, "class_names"))
    if source.suffix == ".csv":
        return _read_csv(source)
    if source.suffix not in SUFFIXES:
        raise UsageError(f"{source} ends in {source.suffix!r}; allowed: {', '.join(SUFFIXES)} or a folder of them")
    loaded = _read_torch(source) if source.suffix == ".pt" else open_array(source)
    if isinstance(loaded, dict):
        return loaded
    if source.stem not in ARRAY_KEYS:
        raise UsageError(f"{source} is named {source.stem!r}; allowed: {', '.join(ARRAY_KEYS)}; rename it")
    return {source.stem: loaded}


def _read_torch(source: Path) -> Any:
    loaded = load_torch(source)
    with reading(f"array file {source}", "save plain tensors, or a dictionary of them"):
        if isinstance(loaded, dict):
            return {str(key): _to_numpy(value, source) for key, value in loaded.items() if key in ARRAY_KEYS}
        return _to_numpy(loaded, source)


def _to_numpy(value: Any, source: Path) -> Any:
    import torch

    tensor = torch.as_tensor(value).detach()
    if not fits(tensor, source):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not dense and real, or larger than the file")
    plain = not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.float32, torch.float64)
    return (tensor if plain else tensor.float()).numpy()


def _check(arrays: Arrays) -> None:
    """DataError unless every array has the axes and the type that its key asks for."""
    for key, values in arrays.items():
        rows = key.startswith("X_")
        if (values.ndim < 2 if rows else values.ndim != 1) or values.dtype.kind not in ("fiub" if rows else "fiubUS"):
            raise DataError(
                f"{key} has shape {values.shape} and type {values.dtype}; allowed: "
                + ("real numbers (rows, ...)" if rows else "one number or text for each row, or for each class")
            )


def _read_csv(source: Path) -> Arrays:
    group = source.stem
    if group not in GROUPS:
        raise UsageError(f"{source} is named {group!r}; allowed: train.csv, test.csv, public.csv; rename it")
    values, labels, ids = array("f"), list[str](), list[str]()
    with reading(f"array file {source}", "write it again"), source.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        if "label" not in header:
            raise ValueError(f"its first line has no column 'label', but {header[:4]}")
        features = [column for column, name in enumerate(header) if name not in ("label", "id")]
        label, record = header.index("label"), header.index("id") if "id" in header else None
        for row in filter(None, reader):
            if len(row) != len(header):
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} columns where the first has {len(header)} columns"
                )
            values.extend(float(row[column]) for column in features)
            labels.append(row[label])
            if record is not None:
                ids.append(row[record])
    arrays: Arrays = {
        f"X_{group}": np.array(values, dtype=np.float32).reshape(len(labels), len(features)),
        f"y_{group}": np.array(labels, dtype=np.str_),
    }
    if record is not None:
        arrays[f"id_{group}"] = np.array(ids, dtype=np.str_)
    return arrays


def settle_labels(arrays: Arrays, declared: Sequence[str] | None) -> Arrays:
    """The arrays with labels as integers where they are whole numbers, stored as floats or as text.

    Text labels that are all among the declared class names stay text.
    """
    keys = [key for key in arrays if key.startswith("y_")]
    labels = {key: np.asarray(arrays[key]) for key in keys}
    if all(array.dtype.kind == "f" and np.array_equal(array, np.floor(array)) for array in labels.values()):
        return arrays | {key: array.astype(np.int64) for key, array in labels.items()}
    if any(array.dtype.kind not in "US" for array in labels.values()):
        return arrays
    texts = {key: [str(text) for text in array] for key, array in labels.items()}
    if declared is not None and all(set(declared) >= set(text) for text in texts.values()):
        return arrays
    try:
        return arrays | {key: np.array([int(text) for text in array], dtype=np.int64) for key, array in texts.items()}
    except (ValueError, OverflowError):
        return arrays


def class_list(arrays: Arrays, declared: Sequence[str] | None) -> tuple[tuple[str, ...], str]:
    """Class names and their origin: declared, or else taken from the test labels, which are public."""
    if declared is not None:
        return tuple(declared), "declared"
    if "y_test" not in arrays:
        raise DataError(
            "there are no test labels to take class names from, and training labels are private; declare the classes "
            "with --classes, or class_names in a .npz"
        )
    labels = arrays["y_test"]
    if labels.dtype.kind in "iub":
        largest = int(labels.max(initial=0))
        if largest >= MOST_CLASSES:
            raise DataError(f"y_test has the label {largest}; allowed: 0 to {MOST_CLASSES - 1}; number classes from 0")
        return tuple(str(index) for index in range(largest + 1)), "test labels"
    return tuple(sorted({str(label) for label in labels})), "test labels"


def label_indices(labels: NDArray[Any], names: Sequence[str], key: str) -> NDArray[np.int64]:
    """Labels as indices into `names`, shape (rows,); integers are indices already.

    Raises:
        DataError: a text label that is not in `names`; `key` says whose labels they are.
    """
    if labels.dtype.kind in "iub":
        return np.asarray(labels, dtype=np.int64)
    index = {name: position for position, name in enumerate(names)}
    unknown = sorted({str(label) for label in labels} - set(index))
    if unknown:
        raise DataError(
            f"{key} holds {len(unknown)} labels outside the declared classes, first {unknown[0]!r}; "
            "declare them with --classes"
        )
    return np.array([index[str(label)] for label in labels], dtype=np.int64)


def _storage_type(x: NDArray[Any]) -> type[np.floating]:
    """float16 if it represents every value of the dtype exactly (float16, 8-bit integers, booleans), else float32."""
    return np.float16 if x.dtype == np.float16 or (x.dtype.kind in "bu" and x.dtype.itemsize == 1) else np.float32


def import_arrays(
    sources: Sequence[Path], out: Path, classes: Sequence[str] | None = None, *, private_test: bool = False
) -> Description:
    """Write the feature file `out` from array files; returns its description.

    Image arrays (more than two dimensions) are flattened. Undeclared class names come from the test labels if these are
    public, never from training labels. `private_test` declares the test rows private.

    Raises:
        UsageError: an unknown kind or name of file. DataError: missing, damaged or inconsistent arrays.
    """
    arrays = read_arrays(sources)
    tested = any(key in arrays for key in ("X_test", "y_test"))
    for key in ("X_train", "y_train", *(("X_test", "y_test") if tested else ())):
        if key not in arrays:
            raise DataError(
                f"{', '.join(map(str, sources))} holds no {key}; needed: X_train, y_train, X_test, y_test, "
                "the last two only to measure accuracy"
            )
    if classes is None and "class_names" in arrays:
        classes = [str(name) for name in arrays["class_names"]]
    if private_test and not tested:
        raise UsageError("--private-test was given, and there are no test rows; leave it out")
    if private_test and classes is None:
        raise DataError(
            "test labels are private, so class names cannot come from them; declare the classes with --classes, or "
            "class_names in a .npz"
        )
    arrays = settle_labels(arrays, classes)
    names, names_from = class_list(arrays, classes)
    images = arrays["X_train"].ndim > 2
    description = Description(
        class_names=names,
        class_names_from=names_from,
        backbone="pixels" if images else "",
        preprocessing="flattened pixels" if images else "as imported",
        source=", ".join(source.name for source in sources),
        ids_from=GIVEN if "id_train" in arrays else CONTENT,
        test_rows=PRIVATE if private_test else "public",
    )
    with FeatureWriter(out, description) as writer:
        for group in GROUPS:
            if f"X_{group}" in arrays:
                _write_group(writer, group, arrays, names)
    return description


def _write_group(writer: FeatureWriter, group: str, arrays: Arrays, names: Sequence[str]) -> None:
    x, y = arrays[f"X_{group}"], arrays.get(f"y_{group}")
    if y is None or y.shape != (len(x),) or x.ndim < 2:
        raise DataError(
            f"X_{group} has shape {x.shape} and y_{group} {None if y is None else y.shape}; "
            "allowed: (rows, ...) and (rows,)"
        )
    if x.dtype.kind not in "fiub":
        raise DataError(f"X_{group} has type {x.dtype}; allowed: real numbers; convert it first")
    width = int(np.prod(x.shape[1:]))
    rows = max(1, BLOCK_BYTES // (4 * max(1, width)))
    ids = arrays.get(f"id_{group}")
    if ids is not None and len(ids) != len(x):
        raise DataError(f"id_{group} has {len(ids)} entries for {len(x)} rows; allowed: one per row")
    labels, made = label_indices(y, names, f"y_{group}"), ContentIds(group)

    def blocks() -> Iterator[NDArray[Any]]:
        with np.errstate(over="ignore"):
            for start in range(0, len(x), rows):
                block = np.asarray(x[start : start + rows], dtype=np.float32).reshape(-1, width)
                if ids is None:
                    made.add(block, labels[start : start + rows])
                yield block

    names_of_rows = (str(name) for name in (made.names if ids is None else ids))
    writer.write_group(group, len(x), width, blocks(), labels, names_of_rows, _storage_type(x))
