"""Import of array files and tables into a feature file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data import tables
from linprobe.data.feature_file import GROUPS, PRIVATE, Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import Arrays, class_list, label_indices, settle_labels
from linprobe.data.record_ids import CONTENT, GIVEN, ContentIds
from linprobe.errors import DataError, LinprobeError, UsageError, first_line

ARRAY_KEYS = tuple(f"{kind}_{group}" for group in GROUPS for kind in ("X", "y", "id"))
SUFFIXES = (".npz", ".npy", ".pt", *tables.SUFFIXES)
BLOCK_BYTES = 1 << 24
_COLUMNS = tables.Columns()


def read_arrays(
    sources: Sequence[Path], columns: tables.Columns = _COLUMNS, progress: tables.Counter | None = None
) -> Arrays:
    """Read arrays by key: X_train, y_train, X_test, y_test, and optionally X_public, y_public, id_*, class_names.

    A `.npz`, or a `.pt` with a dictionary, contains the keys. For a `.npy`, or a `.pt` with a tensor, the key is the
    stem of the file name (`X_train.npy`). A table is named after its group (`train.csv`) and has a column of labels,
    optionally one of ids, and columns of features. A folder is a data set of
    `datasets`, or means all array files in it.

    Raises:
        UsageError: another kind or name of file. DataError: a file that cannot be read.
    """
    arrays: Arrays = {}
    for source in sources:
        if source.is_dir() and not tables.is_dataset(source):
            inside = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES)
            if not inside:
                raise DataError(f"folder {source} holds no arrays; allowed: files ending in {', '.join(SUFFIXES)}")
            arrays |= read_arrays(inside, columns, progress)
            continue
        if not source.exists():
            raise DataError(
                f"array file {source} does not exist; give an existing {', '.join(SUFFIXES)} file or folder"
            )
        try:
            arrays |= _read_one(source, columns, progress)
        except LinprobeError:
            raise
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, UnicodeDecodeError) as error:
            reason = first_line(error)
            if "Object arrays" in reason or "Python objects" in reason:
                raise DataError(
                    f"array file {source} holds Python objects, not numbers or text; save features as "
                    "x.astype('float32'), and labels and ids as np.array(labels, dtype=str)"
                ) from None
            raise DataError(f"array file {source} cannot be read ({reason}); write it again") from None
    return arrays


def _read_one(source: Path, columns: tables.Columns, progress: tables.Counter | None) -> Arrays:
    if source.is_dir():
        return tables.read_dataset(source, columns)
    if source.suffix == ".npz":
        with np.load(source, allow_pickle=False) as archive:
            wanted = (*ARRAY_KEYS, "class_names")
            return {key: archive[key] for key in archive.files if key in wanted}
    if source.suffix == ".csv":
        return tables.read_csv(source, columns, progress)
    if source.suffix in tables.ARROW_SUFFIXES:
        return tables.read_arrow(source, columns)
    if source.suffix not in SUFFIXES:
        raise UsageError(f"{source} ends in {source.suffix!r}; allowed: {', '.join(SUFFIXES)} or a folder of them")
    loaded = _read_torch(source) if source.suffix == ".pt" else np.load(source, mmap_mode="r", allow_pickle=False)
    if isinstance(loaded, dict):
        return loaded
    if source.stem not in ARRAY_KEYS:
        raise UsageError(f"{source} is named {source.stem!r}; allowed: {', '.join(ARRAY_KEYS)}; rename it")
    return {source.stem: loaded}


def _read_torch(source: Path) -> Any:
    import pickle

    import torch

    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise ValueError(f"not a plain tensor or dictionary of tensors: {type(error).__name__}") from None
    if isinstance(loaded, dict):
        return {str(key): _to_numpy(value) for key, value in loaded.items() if key in ARRAY_KEYS}
    return _to_numpy(loaded)


def _to_numpy(value: Any) -> Any:
    import torch

    tensor = torch.as_tensor(value)
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _storage_type(x: NDArray[Any]) -> type[np.floating]:
    """float16 if it represents every value of the dtype exactly (float16, 8-bit integers, booleans), else float32."""
    return np.float16 if x.dtype == np.float16 or (x.dtype.kind in "bu" and x.dtype.itemsize == 1) else np.float32


def import_arrays(
    sources: Sequence[Path],
    out: Path,
    classes: Sequence[str] | None = None,
    *,
    private_test: bool = False,
    columns: tables.Columns = _COLUMNS,
    progress: tables.Counter | None = None,
) -> Description:
    """Write the feature file `out` from array files; returns its description.

    Image arrays (more than two dimensions) are flattened. Undeclared class names come from the test labels if these are
    public, never from training labels. `private_test` declares the test rows private. `columns` names the columns of
    tables that are no features.

    Raises:
        UsageError: an unknown kind or name of file. DataError: missing, damaged or inconsistent arrays.
    """
    arrays = read_arrays(sources, columns, progress)
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
                given = np.asarray(x[start : start + rows]).reshape(-1, width)
                block = given.astype(np.float32)
                large = np.argwhere(np.isinf(block) & np.isfinite(given))
                if large.size:
                    raise DataError(
                        f"X_{group} row {start + large[0, 0]} holds {given[tuple(large[0])]:g}, beyond "
                        f"{tables.LARGEST:.3g}, the largest float32; scale the features"
                    )
                if ids is None:
                    made.add(block, labels[start : start + rows])
                yield block

    names_of_rows = (str(name) for name in (made.names if ids is None else ids))
    writer.write_group(group, len(x), width, blocks(), labels, names_of_rows, _storage_type(x))
