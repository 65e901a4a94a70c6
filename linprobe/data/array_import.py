"""Import of array files and tables into a feature file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data import tables
from linprobe.data.array_files import array_names, fits, load_torch, open_array, read_archive
from linprobe.data.feature_file import GROUPS, check_class_names
from linprobe.data.feature_reader import PRIVATE, Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.label_matrix import has_several_labels, settle_matrix
from linprobe.data.labels import Arrays, class_list, label_indices, settle_labels
from linprobe.data.limits import too_large
from linprobe.data.owners import OWNER, by_owner
from linprobe.data.record_ids import CONTENT, GIVEN, ContentIds
from linprobe.data.tasks import MULTICLASS, MULTILABEL
from linprobe.errors import DataError, UsageError, reading

KINDS = ("X", "y", "id")
ARRAY_KEYS = tuple(f"{kind}_{group}" for group in GROUPS for kind in (*KINDS, OWNER))
SUFFIXES = (".npz", ".npy", ".pt", *tables.SUFFIXES)
BLOCK_BYTES = 1 << 24
NAMED = 4  # arrays that a note names
_COLUMNS = tables.Columns()


def read_arrays(
    sources: Sequence[Path], columns: tables.Columns = _COLUMNS, progress: tables.Counter | None = None
) -> Arrays:
    """Read arrays by key: X_train, y_train, X_test, y_test, and optionally X_public, y_public, id_*, owner_*,
    class_names.

    A `.npz`, or a `.pt` with a dictionary, contains the keys. For a `.npy`, or a `.pt` with a tensor, the key is the
    stem of the file name (`X_train.npy`). A table is named after its group (`train.csv`) and has a column of labels,
    optionally one of ids and one of owners, and columns of features. A folder is a data set of `datasets`, or means all
    array files in it.

    Args:
        columns: the columns of tables that are no features. `owner` is also the first part of an array's key.
        progress: gets the lines of a CSV, and a note about each file with arrays that are not read.

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
        if not source.is_file() and not source.is_dir():
            raise DataError(f"{source} is no regular file; give a {', '.join(SUFFIXES)} file or folder")
        with reading(f"array file {source}", "write it again"):
            arrays |= _read_one(source, columns, progress)
    _check(arrays)
    return arrays


def _known_key(key: str, owner: str) -> str | None:
    """The key of an array as the rest of the code names it; None for an array that is not read."""
    kind, _, group = key.rpartition("_")
    if group in GROUPS and kind == owner:
        return f"{OWNER}_{group}"
    return key if key == "class_names" or (group in GROUPS and kind in KINDS) else None


def _selected(source: Path, keys: Iterable[str], owner: str, progress: tables.Counter | None) -> dict[str, str]:
    """The arrays to read from a file, by their known key; notes the others."""
    known = {key: _known_key(key, owner) for key in keys}
    others = [key for key, name in known.items() if name is None]
    if others and progress is not None:
        named = ", ".join(others[:NAMED]) + (", ..." if len(others) > NAMED else "")
        progress.note(
            f"{source} holds {named}, which is not read; allowed: "
            f"X_, y_, id_ and {owner}_ before train, test or public, and class_names; if an array says whose row "
            "each row is, name it with --owner-column"
        )
    return {name: key for key, name in known.items() if name is not None}


def _read_one(source: Path, columns: tables.Columns, progress: tables.Counter | None) -> Arrays:
    owner = columns.owner or OWNER
    if source.is_dir():
        return tables.read_dataset(source, columns)
    if source.suffix == ".npz":
        chosen = _selected(source, array_names(source), owner, progress)
        found = read_archive(source, list(chosen.values()))
        return {name: found[key] for name, key in chosen.items()}
    if source.suffix == ".csv":
        return tables.read_csv(source, columns, progress)
    if source.suffix in tables.ARROW_SUFFIXES:
        return tables.read_arrow(source, columns)
    if source.suffix not in SUFFIXES:
        raise UsageError(f"{source} ends in {source.suffix!r}; allowed: {', '.join(SUFFIXES)} or a folder of them")
    loaded = load_torch(source) if source.suffix == ".pt" else open_array(source)
    if isinstance(loaded, dict):
        by_name = {str(key): value for key, value in loaded.items()}
        chosen = _selected(source, by_name, owner, progress)
        return {name: _to_numpy(by_name[key], source) for name, key in chosen.items()}
    if source.suffix == ".pt":
        loaded = _to_numpy(loaded, source)
    key = _known_key(source.stem, owner)
    if key is None or key == "class_names":
        raise UsageError(f"{source} is named {source.stem!r}; allowed: {', '.join(ARRAY_KEYS)}; rename it")
    return {key: loaded}


def _to_numpy(value: Any, source: Path) -> Any:
    import torch

    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        longest = max(map(len, value), default=0)
        if too_large(4 * longest * len(value), source.stat().st_size):
            raise ValueError(f"a text has {longest} characters, too long for a list of {len(value)}")
        return np.array(value, dtype=np.str_)  # class names, labels or ids
    tensor = torch.as_tensor(value).detach()
    if not fits(tensor, source):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not dense and real, or larger than the file")
    plain = not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.float32, torch.float64)
    return (tensor if plain else tensor.float()).numpy()


def _check(arrays: Arrays) -> None:
    """DataError unless every array has the axes and the type that its key asks for."""
    for key, values in arrays.items():
        rows, labels = key.startswith("X_"), key.startswith("y_")
        axes = values.ndim >= 2 if rows else values.ndim == 1 or (labels and values.ndim == 2)
        if not axes or values.dtype.kind not in ("fiub" if rows else "fiubUS"):
            raise DataError(
                f"{key} has shape {values.shape} and type {values.dtype}; allowed: "
                + ("real numbers (rows, ...)" if rows else "one number or text for each row, or for each class")
                + ("; or a 0 or 1 for each row and label" if labels else "")
            )


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
    """Write the feature file `out` from array files; returns its description. Arguments are those of `described`.

    Where rows have owners, the rows of a group are written in the order of their owners' names. Image arrays (more than
    two dimensions) are flattened.

    Raises:
        UsageError, DataError: as `described`; also rows that are no finite float32.
    """
    description, arrays = described(sources, classes, private_test=private_test, columns=columns, progress=progress)
    with FeatureWriter(out, description, shown_as=Path(_shown(sources))) as writer:
        for group in groups_of(arrays):
            _write_group(writer, group, arrays, description.class_names, _shown(sources))
    if writer.note is not None and progress is not None:
        progress.note(writer.note)
    return description


def described(
    sources: Sequence[Path],
    classes: Sequence[str] | None = None,
    *,
    private_test: bool = False,
    columns: tables.Columns = _COLUMNS,
    progress: tables.Counter | None = None,
) -> tuple[Description, Arrays]:
    """The description of a feature file, and its arrays.

    Undeclared class names come from the test labels if these are public, never from training labels;
    several labels a row are named after their columns.

    Args:
        private_test: declares the test rows private. columns, progress: as in `read_arrays`.

    Raises:
        UsageError: an unknown kind or name of file. DataError: missing, damaged or inconsistent arrays.
    """
    arrays = read_arrays(sources, columns, progress)
    if columns.owner is not None and f"{OWNER}_train" not in arrays:
        raise DataError(
            f"{_shown(sources)} holds no {columns.owner}_train, which --owner-column {columns.owner} "
            "names; allowed: an array of that name, or a column of the training table"
        )
    tested = any(key in arrays for key in ("X_test", "y_test"))
    for key in ("X_train", "y_train", *(("X_test", "y_test") if tested else ())):
        if key not in arrays:
            raise DataError(
                f"{_shown(sources)} holds no {key}; needed: X_train, y_train, X_test, y_test, "
                "the last two only to measure accuracy"
            )
    if classes is None and "class_names" in arrays:
        classes = [str(name) for name in arrays["class_names"]]
    if private_test and not tested:
        raise UsageError("--private-test was given, and there are no test rows; leave it out")
    several = has_several_labels(arrays)
    if private_test and classes is None and not several:
        raise DataError(
            "test labels are private, so class names cannot come from them; declare the classes with --classes, or "
            "class_names in a .npz"
        )
    if several:
        arrays, names, names_from = settle_matrix(arrays, classes)
    else:
        arrays = settle_labels(arrays, classes)
        names, names_from = class_list(arrays, classes)
    where = f"the class list of {_shown(sources)}"
    check_class_names(names, where)
    if "" in names:
        raise DataError(f"{where} has an empty name, ''; allowed: text; fill empty labels, or rename the class")
    images = arrays["X_train"].ndim > 2
    description = Description(
        class_names=names,
        class_names_from=names_from,
        backbone="pixels" if images else "",
        preprocessing="flattened pixels" if images else "as imported",
        source=", ".join(source.name for source in sources),
        ids_from=GIVEN if "id_train" in arrays else CONTENT,
        test_rows=PRIVATE if private_test else "public",
        task=MULTILABEL if several else MULTICLASS,
    )
    return description, arrays


def _shown(sources: Sequence[Path]) -> str:
    """The sources in a message about their content."""
    return ", ".join(map(str, sources))


def groups_of(arrays: Arrays) -> dict[str, tuple[int, int, np.dtype[np.floating]]]:
    """Rows, features and type on disk of each group that there is."""
    found = {}
    for group in GROUPS:
        if f"X_{group}" in arrays:
            x = arrays[f"X_{group}"]
            found[group] = (len(x), int(np.prod(x.shape[1:])), np.dtype(_storage_type(x)))
    return found


def _write_group(writer: FeatureWriter, group: str, arrays: Arrays, names: Sequence[str], where: str) -> None:
    x, y = arrays[f"X_{group}"], arrays.get(f"y_{group}")
    if y is None or y.shape[:1] != (len(x),) or x.ndim < 2:
        raise DataError(
            f"X_{group} has shape {x.shape} and y_{group} {None if y is None else y.shape}; "
            "allowed: (rows, ...) and (rows,) or (rows, labels)"
        )
    if x.dtype.kind not in "fiub":
        raise DataError(f"X_{group} has type {x.dtype}; allowed: real numbers; convert it first")
    width = int(np.prod(x.shape[1:]))
    rows = max(1, BLOCK_BYTES // (4 * max(1, width)))
    ids = arrays.get(f"id_{group}")
    if ids is not None and len(ids) != len(x):
        raise DataError(f"id_{group} has {len(ids)} entries for {len(x)} rows; allowed: one per row")
    owners = _owners(arrays, group, len(x))
    order = None if owners is None else by_owner(owners)
    labels, made = y if y.ndim == 2 else label_indices(y, names, f"y_{group}"), ContentIds(group)
    if order is not None:
        labels, owners = labels[order], owners[order]  # type: ignore[index]
        ids = None if ids is None else np.asarray(ids)[order]

    def blocks() -> Iterator[NDArray[Any]]:
        with np.errstate(over="ignore"):
            for start in range(0, len(x), rows):
                here = slice(start, start + rows)
                given = np.asarray(x[here if order is None else order[here]]).reshape(-1, width)
                bad = np.flatnonzero(~np.isfinite(given).all(axis=1))
                if bad.size:
                    row = start + bad[0]
                    raise DataError(
                        f"{where}: X_{group} has rows with NaN or infinity, first at row "
                        f"{row if order is None else order[row]}; allowed: finite features; remove or repair those rows"
                    )
                block = given.astype(np.float32)
                large = np.argwhere(np.isinf(block))
                if large.size:
                    row = start + large[0, 0]
                    raise DataError(
                        f"X_{group} row {row if order is None else order[row]} holds {given[tuple(large[0])]:g}, "
                        f"beyond {tables.LARGEST:.3g}, the largest float32; scale the features"
                    )
                if ids is None:
                    made.add(block, labels[start : start + rows])
                yield block

    names_of_rows = (str(name) for name in (made.names if ids is None else ids))
    people = None if owners is None else [str(owner) for owner in owners]
    writer.write_group(group, len(x), width, blocks(), labels, names_of_rows, _storage_type(x), people)


def _owners(arrays: Arrays, group: str, n_rows: int) -> NDArray[np.str_] | None:
    """The owner of each row of a group as text, shape (n_rows,); None if none are given.

    Raises:
        DataError: another number of owners than rows, or numbers that are not whole.
    """
    given = arrays.get(f"{OWNER}_{group}")
    if given is None:
        return None
    owners = np.asarray(given)
    if owners.shape != (n_rows,) or owners.dtype.kind not in "iuUS":
        raise DataError(
            f"{OWNER}_{group} has shape {owners.shape} and type {owners.dtype} for {n_rows} rows; allowed: one name or "
            "whole number for each row"
        )
    return np.char.decode(owners, "utf-8") if owners.dtype.kind == "S" else owners.astype(np.str_)
