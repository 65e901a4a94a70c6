"""Arrays and tables of rows, read and written as a feature file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from linprobe.data import array_files
from linprobe.data.feature_file import GROUPS, NO_LABEL, UNLABELLED, check_class_names, data_set, open_hdf5, texts
from linprobe.data.feature_reader import FLATTENED, PRIVATE, TABLES, Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import (
    APART,
    CONTENT,
    GIVEN,
    MULTICLASS,
    MULTILABEL,
    OWNER,
    SHARED,
    ContentIds,
    by_owner,
    check_owners,
    class_list,
    declared_names,
    divided,
    first_of_equal,
    holds_label_matrix,
    label_indices,
    owner_names,
    plain_labels,
    settle_labels,
    settle_matrix,
)
from linprobe.data.tables import FEATURES, UTF32, Columns, check_features, column_order, read_table, text_array
from linprobe.errors import DataError, Progress, Silent, UsageError, counted, reading
from linprobe.options.requests import ImportRequest
from linprobe.parallel.array_api import Singles

KINDS = ("X", "y", "id")
OF_FILE = ("class_names", FEATURES)  # keys of what holds for all groups
ALONE = {"X": f"X_{UNLABELLED}", "id": f"id_{UNLABELLED}"}  # arrays of a file of rows without labels, and their keys
PAIRS = (("X", "y"), ("features", "labels"))  # rows and labels of one group, under names without a group
SYNONYMS = {"features": "X", "targets": "y"}  # before a group, in files of CLIP_benchmark
UNREAD = "val"  # a group of CLIP_benchmark that chooses its weight decay
ARRAY_KEYS = tuple(f"{kind}_{group}" for group in GROUPS for kind in (*KINDS, OWNER))
HDF5 = (".h5", ".hdf5")
ARRAYS = (".npz", ".npy", ".pt")
SUFFIXES = (*ARRAYS, *TABLES)
NAMED_ARRAYS = (".npz", ".pt", *HDF5)
WITH_X = f"with --x: {', '.join(NAMED_ARRAYS)}"
ALLOWED = f"{', '.join(SUFFIXES)} or a folder of them, or {', '.join(HDF5)}; {WITH_X}"
OF_IMAGES = "of images, `linprobe extract FOLDER` makes a feature file"
BLOCK_BYTES = 1 << 24
NAMED = 4  # arrays that a note names
ROWS_LOOKED_AT, LARGE_SHARE = 10_000, 0.5  # public test rows, and the share of their squared norm in one column


_COLUMNS, _SILENT = Columns(), Silent()


def read_arrays(
    sources: Sequence[Path], columns: Columns = _COLUMNS, progress: Progress = _SILENT, group: str | None = None
) -> array_files.Arrays:
    """The arrays of files and folders by key: X_train, y_train, ..., class_names, and `FEATURES` of tables."""
    arrays: array_files.Arrays = {}
    files = _files(sources, progress)
    pair = _pair([file.stem for file in files if file.suffix in (".npy", ".pt")], "train", columns.owner or OWNER)
    endings = (*SUFFIXES, *HDF5) if columns.x is None else NAMED_ARRAYS
    for source in files:
        if source.suffix not in endings:
            allowed = ALLOWED if columns.x is None else WITH_X
            raise UsageError(f"{source} ends in {source.suffix!r}; allowed: {allowed}; {OF_IMAGES}")
        kind, coded = "table" if source.suffix in TABLES else "array file", ", as UTF-8" * (source.suffix == ".csv")
        with reading(f"{kind} {source}", f"write it again{coded}"):
            found = _read_one(source, columns, progress, group, pair)
        if FEATURES in found:
            check_features(source, found[FEATURES].tolist(), arrays.get(FEATURES, found[FEATURES]).tolist())
        for key in sorted(arrays.keys() & found.keys()):
            if key not in OF_FILE or arrays[key].tolist() != found[key].tolist():
                raise DataError(f"{source} holds {key}, and so does a file before it; allowed: one; leave out a file")
        arrays |= found
    return {key: values if key == FEATURES else _checked(key, values) for key, values in arrays.items()}


def _files(sources: Sequence[Path], progress: Progress) -> list[Path]:
    """The files, and those of arrays in folders by name, but for the group `UNREAD`. Raises DataError: none."""
    files: list[Path] = []
    for source in sources:
        with reading(f"array file {source}", "give another name"):
            if not source.is_dir():
                files.append(source)
                continue
            found = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES and path.name[0] != ".")
        unread = [path for path in found if path.stem.rpartition("_")[2] == UNREAD]
        if unread:
            listed = ", ".join(path.name for path in unread)
            progress.note(f"{source} holds {listed}, which are not read; rename them to _test or _public to use them")
        if len(unread) == len(found):
            raise DataError(f"folder {source} holds no arrays; allowed: {', '.join(SUFFIXES)}; {OF_IMAGES}")
        files += [path for path in found if path not in unread]
    for file in files:
        if not file.is_file():
            what = "is no regular file" if file.exists() else "does not exist"
            raise DataError(f"array file {file} {what}; give a file that exists; allowed: {ALLOWED}")
    return files


def _checked(key: str, values: NDArray[Any]) -> NDArray[Any]:
    if key.startswith("X_"):
        fits, allowed = values.ndim >= 2 and values.dtype.kind in "fiub", "real numbers (rows, ...)"
    else:
        labels = key.startswith("y_")
        fits = (values.ndim == 1 or (labels and values.ndim == 2)) and values.dtype.kind in "fiubUS"
        allowed = "one number or text for each row, or for each class"
        allowed += "; or a 0 or 1 for each row and label" if labels else ""
    if not fits:
        raise DataError(f"{key} has shape {values.shape} and type {values.dtype}; allowed: {allowed}")
    return plain_labels(key, values) if values.dtype.kind == "S" else values


def _read_one(
    source: Path, columns: Columns, progress: Progress, group: str | None, pair: Mapping[str, str]
) -> array_files.Arrays:
    """The arrays of one file; `pair` are the keys of files with one array that belong together, by their stems."""
    owner = columns.owner or OWNER
    choose = partial(_selected, source, owner, progress) if columns.x is None else partial(_named, source, columns)
    if source.suffix == ".npz":
        chosen = choose(array_files.array_names(source))
        found = array_files.read_archive(source, list(chosen.values()))
        return {key: found[name] for key, name in chosen.items()}
    if source.suffix in TABLES:
        return read_table(source, columns, progress, group or _group_of(source))
    if source.suffix in HDF5:
        return _read_hdf5(source, columns, choose)
    if source.suffix == ".npy":
        key = _key_of_file(source, owner, pair, progress)
        return {key: array_files.open_array(source, by_row=key.startswith("X_"))}
    loaded = array_files.load_torch(source)
    if isinstance(loaded, dict):
        by_name = {str(key): value for key, value in loaded.items()}
        held = {key: by_name[name] for key, name in choose(by_name).items()}
    elif columns.x is not None:
        held = choose([])  # which refuses it
    elif isinstance(loaded, list | tuple) and len(loaded) == len(PAIRS[0]) and getattr(loaded[0], "ndim", 0) > 1:
        held = dict(zip(_pair(PAIRS[0], _group_or_train(source), owner).values(), loaded, strict=True))
    else:
        array = _to_numpy(loaded, source)
        return {_key_of_file(source, owner, pair, progress): array}
    return {key: _to_numpy(value, source) for key, value in held.items()}


def _key_of_file(source: Path, owner: str, pair: Mapping[str, str], progress: Progress) -> str:
    key = pair.get(source.stem) or _known_key(source.stem, owner)
    if key is None and source.stem == "X":
        labels = source.with_stem("y")
        if labels.exists():
            progress.note(f"{source} holds rows without labels; {labels} beside it is not read: give both to read both")
        return ALONE["X"]
    if key is None or key == "class_names":
        raise UsageError(f"{source} is named {source.stem!r}; allowed: {', '.join(ARRAY_KEYS)}; rename it")
    return key


def _read_hdf5(source: Path, columns: Columns, choose: Callable[[list[str]], dict[str, str]]) -> array_files.Arrays:
    with open_hdf5(source, str(source)) as file:
        named = [name for name in (columns.x, columns.y, columns.id, columns.owner) if name and columns.x is not None]
        others = [name for name in file if name not in named and _may_be_array(file, name)]  # read only if chosen
        held = others + [name for name in dict.fromkeys(named) if data_set(file, source, name) is not None]
        chosen = choose(held)
        if not chosen:
            listed = ", ".join(map(repr, sorted(held)[:6])) or "no array"
            raise UsageError(
                f"{source} has no arrays features and labels, or X and y; allowed: {listed}, named with --x KEY --y KEY"
            )
        return {key: _from_hdf5(file, source, name) for key, name in chosen.items()}


def _may_be_array(file: h5py.File, name: str) -> bool:
    """Whether a name stands for a data set, or for a link, which is not followed."""
    hard = isinstance(file.get(name, getlink=True), h5py.HardLink)
    return not hard or file.get(name, getclass=True) is h5py.Dataset


def _pair(names: Collection[str], group: str, owner: str) -> dict[str, str]:
    """The keys of rows and labels of a group, and of their ids and owners, by their names; empty without a pair."""
    for x, y in PAIRS:
        if x in names and y in names:
            kinds = {x: "X", y: "y", "id": "id", owner: OWNER}
            return {name: f"{kind}_{group}" for name, kind in kinds.items() if name in names}
    return {}


def _group_or_train(source: Path) -> str:
    return source.stem if source.stem in GROUPS else "train"


def _named(source: Path, columns: Columns, found: Collection[str]) -> dict[str, str]:
    """The arrays that --x and other options name, by their key. UsageError: not among those `found` in the file."""
    group = UNLABELLED if columns.y is None else "train"
    named = {"X": columns.x, "y": columns.y, "id": columns.id, OWNER: columns.owner}
    wanted = {kind: name for kind, name in named.items() if name is not None}
    for kind, name in wanted.items():
        if name not in found:
            listed = ", ".join(map(repr, sorted(found)[:6])) or "no named array"
            flag = f"--{kind.lower()}" + ("" if kind in KINDS[:2] else "-column")
            raise UsageError(f"{source} has no array {name!r}; allowed: {listed}; name one with {flag}")
    return {f"{kind}_{group}": name for kind, name in wanted.items()}


def _from_hdf5(file: h5py.File, source: Path, name: str) -> NDArray[Any]:
    found = data_set(file, source, name)
    if found is not None and h5py.check_string_dtype(found.dtype) is not None and found.ndim == 1:
        return text_array(texts(found, source, name, slice(None)), f"{source}: {name}", source.stat().st_size)
    return np.asarray(found)


def _known_key(key: str, owner: str) -> str | None:
    """The key of an array as the rest of the code names it; None for an array that is not read."""
    kind, _, group = key.rpartition("_")
    if group in GROUPS and kind == owner:
        return f"{OWNER}_{group}"
    if group in GROUPS and kind in SYNONYMS:
        return f"{SYNONYMS[kind]}_{group}"
    return key if key == "class_names" or (group in GROUPS and kind in KINDS) else None


def _selected(source: Path, owner: str, progress: Progress, keys: Iterable[str]) -> dict[str, str]:
    known = {key: _known_key(key, owner) for key in keys}
    if "X" in known and known.keys() <= ALONE.keys():
        known = {key: ALONE[key] for key in known}
    if not any(name and name.startswith("X_") for name in known.values()):
        known |= _pair(known, _group_or_train(source), owner)
    known = {key: None if name != key and name in known else name for key, name in known.items()}
    others = [key for key, name in known.items() if name is None]
    if others:
        named = ", ".join(others[:NAMED]) + (", ..." if len(others) > NAMED else "")
        progress.note(
            f"{source} holds {named}, which {'is' if len(others) == 1 else 'are'} not read; allowed: X_, y_, id_ and "
            f"{owner}_ before train, test or public, and class_names; for an array that names the person of each row, "
            "give --owner-column"
        )
    return {name: key for key, name in known.items() if name is not None}


def _to_numpy(value: Any, source: Path) -> Any:
    import torch

    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        longest = max(map(len, value), default=0)
        if array_files.too_large(UTF32 * longest * len(value), source.stat().st_size):
            raise ValueError(f"a text has {longest} characters, too long for a list of {len(value)}")
        return np.array(value, dtype=np.str_)  # class names, labels or ids
    tensor = torch.as_tensor(value).detach()
    if not array_files.tensor_fits(tensor, source):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not dense and real, or larger than the file")
    plain = not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.float32, torch.float64)
    return (tensor if plain else tensor.float()).numpy()


def _group_of(source: Path) -> str:
    if source.stem not in GROUPS:
        allowed = ", ".join(f"{group}{source.suffix}" for group in GROUPS)
        raise UsageError(f"{source} is named {source.stem!r}; allowed: {allowed}; rename it, or give one table")
    return source.stem


def import_arrays(
    request: ImportRequest, classes: Sequence[str] | None = None, progress: Progress = _SILENT
) -> Description:
    """Write the feature file of a request, and return its description. No class name comes from training labels."""
    sources, private_test, shared = request.sources, request.private_test, request.owners_on_both_sides
    columns = Columns(
        request.label_column, request.id_column, request.owner_column, request.split_column, x=request.x, y=request.y
    )
    where = ", ".join(map(str, sources))
    progress.start(0, "reading arrays")
    arrays = _read_groups(request, columns, progress)
    labelled = f"X_{UNLABELLED}" not in arrays
    if labelled:
        _check_present(arrays, columns, where)
        arrays, names, names_from = _settled(arrays, classes, where, private_test=private_test)
    else:
        _check_alone(arrays, where, progress, private_test=private_test)
        names, names_from = tuple(classes or ()), "declared"
    first = "train" if labelled else UNLABELLED
    backbone, preprocessing = _pixels_or_features(arrays, first, where)
    description = Description(
        class_names=names,
        class_names_from=names_from,
        backbone=backbone,
        preprocessing=preprocessing,
        source=", ".join(source.name for source in sources),
        ids_from=GIVEN if f"id_{first}" in arrays else CONTENT,
        test_rows=PRIVATE if private_test else "public",
        test_owners=_test_owners(arrays, where, shared=shared),
        task=MULTILABEL if labelled and holds_label_matrix(arrays) else MULTICLASS,
        columns=column_order(arrays.get(FEATURES, ()), arrays[f"X_{first}"].shape[1]),
    )
    progress.start(0, "writing rows")
    with FeatureWriter(request.out, description, shown_as=Path(where)) as writer:
        for group in (*GROUPS, UNLABELLED):
            if f"X_{group}" in arrays:
                _write_group(writer, group, arrays, names, where)
    if writer.note is not None:
        progress.note(writer.note)
    _note_sorted(arrays, where, progress)
    _note_one_hot(arrays, description, progress)
    _note_one_large_column(arrays, description, progress)
    return description


def _pixels_or_features(arrays: array_files.Arrays, group: str, where: str) -> tuple[str, str]:
    shapes = {
        key: "x".join(str(length) for length in array.shape[1:] if length != 1) or "1"
        for key, array in arrays.items()
        if key.startswith("X_") and array.ndim > 2
    }
    if len({*shapes.values()}) > 1:
        listed = ", ".join(f"{key} {arrays[key].shape}" for key in shapes)
        raise DataError(f"{where}: images have the shapes {listed}; allowed: one order of axes; transpose them")
    shape = shapes.get(f"X_{group}")
    return ("", "as imported") if shape is None else ("pixels", f"{FLATTENED}{shape}")


def _note_sorted(arrays: array_files.Arrays, where: str, progress: Progress) -> None:
    unnamed = [group for group in GROUPS if f"{OWNER}_{group}" in arrays and f"id_{group}" not in arrays]
    orders = (by_owner(arrays[f"{OWNER}_{group}"].astype(np.str_)) for group in unnamed)
    if any((np.diff(order) < 0).any() for order in orders):
        progress.note(
            f"rows are sorted by person, in another order than in {where}, and predict names them by their content; to "
            "find a row again, give ids: --id-column, or an array id_train beside X_train"
        )


def _note_one_large_column(arrays: array_files.Arrays, description: Description, progress: Progress) -> None:
    """Note a column with most of the squared norm of public test rows, as in a table whose columns have other units."""
    if description.private_test or arrays.get("X_test", np.empty(0)).ndim != 2:
        return
    squares = np.square(arrays["X_test"][:ROWS_LOOKED_AT], dtype=np.float64).sum(axis=0)
    share = squares.max() / max(squares.sum(), np.finfo(np.float64).tiny)
    if share > max(LARGE_SHARE, 1.98 / len(squares)):  # one column has all, and of two, one has half
        largest = int(squares.argmax())
        name = f"column {arrays[FEATURES][largest]!r}" if FEATURES in arrays else f"feature {largest}"
        progress.note(
            f"{name} has {math.floor(1000 * share) / 10:g} % of the squared length of the test rows, and training "
            "divides each row by its length, so other columns count little; from each column subtract a typical value "
            "that is public, then divide by a public spread, and import the table again"
        )


def _note_one_hot(arrays: array_files.Arrays, description: Description, progress: Progress) -> None:
    public = None if description.private_test else arrays.get("y_test")
    if public is not None and public.ndim > 1 and len(public) and (public.sum(axis=1) == 1).all():
        progress.note(
            f"every row of y_test has 1 of {public.shape[1]} labels; rows are taken to have several labels each; for "
            "one class a row give y of shape (rows,), such as y.argmax(axis=1), or one column of classes"
        )


def _read_groups(request: ImportRequest, columns: Columns, progress: Progress) -> array_files.Arrays:
    sources, fraction = request.sources, request.test_fraction
    if (len(sources) != 1 and columns.x is not None) or (columns.y is not None and columns.x is None):
        raise UsageError(
            f"--x is {columns.x}, --y is {columns.y}, for {len(sources)} files; allowed: --x, perhaps --y, and one file"
        )
    one_table = len(sources) == 1 and sources[0].suffix in TABLES
    divides = fraction is not None or columns.split is not None
    whole = one_table and (divides or sources[0].stem not in GROUPS)
    group = "train" if divides else UNLABELLED
    arrays = read_arrays(sources, columns, progress, group if whole else None)
    where = ", ".join(map(str, sources))
    return _in_groups(arrays, fraction, columns, where, by_row=request.owners_on_both_sides) if divides else arrays


def _test_owners(arrays: array_files.Arrays, where: str, *, shared: bool) -> str:
    """What a description states of people with test rows. UsageError where rows have no owners to be `shared`."""
    if shared and not {f"{OWNER}_test", f"{OWNER}_train"} <= arrays.keys():
        raise UsageError(f"--owners-on-both-sides does nothing for {where}, where rows have no owners; leave it out")
    return SHARED if shared else APART


def _in_groups(
    arrays: array_files.Arrays, fraction: float | None, columns: Columns, where: str, *, by_row: bool
) -> array_files.Arrays:
    """The arrays of training rows in groups, by their owners, ids or content. Raises as `divided`."""
    if {"X_train", "y_train"} - arrays.keys() or {"X_test", "X_public"} & arrays.keys():
        raise UsageError(
            f"{where}: --test-fraction and --split-column divide training rows alone, got "
            f"{', '.join(sorted({*arrays} - {FEATURES}))}; leave them out, or give X_train and y_train only"
        )
    if columns.split is not None and "split_train" not in arrays:
        raise UsageError(f"{where} has no column {columns.split!r}; --split-column is for one table; leave it out")
    x, _, ids = _rows_of(arrays, "train")
    owners = _owners(arrays, "train", len(x))
    names = ids if owners is None or by_row else owners
    if names is None:
        made = ContentIds("train")
        for _, block in _blocks(x, None, "train", where):  # as stored, however the file has them
            made.add(block, np.zeros(len(block), dtype=np.int64))  # a label that is corrected moves no row
        names = np.array([first_of_equal(name) for name in made.names])  # equal rows are on one side
    elif owners is None and (repeated := len(names) - len(set(names.tolist()))):
        name = Counter(names.tolist()).most_common(1)[0][0]
        raise DataError(
            f"{where} has {counted(repeated, 'repeated id')}, such as {name!r}; allowed: one id per record; name "
            "another column with --id-column, or leave ids out"
        )
    sides = divided(list(map(str, names.tolist())), None, arrays.get("split_train"), fraction, where)
    of_rows = {key.removesuffix("_train"): array for key, array in arrays.items() if key.endswith("_train")}
    of_rows.pop("split", None)
    return {key: array for key, array in arrays.items() if key in OF_FILE} | {
        f"{kind}_{group}": array[rows] for group, rows in sides.items() for kind, array in of_rows.items()
    }


def _check_alone(arrays: array_files.Arrays, where: str, progress: Progress, *, private_test: bool) -> None:
    """UsageError for other arrays or options beside rows without labels, which need no classes; a note of a table."""
    if FEATURES in arrays:
        progress.note(f"{where} has no column 'label': rows without labels; --label-column names another one")
    others = [key for key in arrays if key not in (*ALONE.values(), f"{OWNER}_{UNLABELLED}", FEATURES)]
    if others or private_test:
        raise UsageError(
            f"{where} hold X, rows without labels, beside {others[0] if others else '--private-test'}; "
            f"allowed: X alone, with id and {OWNER}; import the other rows into a file of their own"
        )


def _settled(
    arrays: array_files.Arrays, classes: Sequence[str] | None, where: str, *, private_test: bool
) -> tuple[array_files.Arrays, tuple[str, ...], str]:
    classes = declared_names(arrays, classes, where)
    if private_test and "X_test" not in arrays:
        raise UsageError("--private-test was given, and there are no test rows; leave it out")
    if holds_label_matrix(arrays):
        arrays, names, names_from = settle_matrix(arrays, classes)
    else:
        arrays = settle_labels(arrays, classes)
        names, names_from = class_list(arrays, classes, where, private_test=private_test)
    where = f"the class list of {where}"
    check_class_names(names, where)
    if "" in names:
        raise DataError(f"{where} has an empty name, ''; allowed: text; fill empty labels, or rename the class")
    return arrays, names, names_from


def _check_present(arrays: array_files.Arrays, columns: Columns, where: str) -> None:
    if columns.owner is not None and f"{OWNER}_train" not in arrays:
        raise DataError(
            f"{where} holds no {columns.owner}_train, which --owner-column {columns.owner} "
            "names; allowed: an array of that name, or a column of the training table"
        )
    tested = any(key in arrays for key in ("X_test", "y_test"))
    for key in ("X_train", "y_train", *(("X_test", "y_test") if tested else ())):
        if key not in arrays:
            raise DataError(
                f"{where} holds no {key}; needed: X_train, y_train, X_test, y_test, the last two only to measure "
                "accuracy, or tables named train and test; or X without y, for rows without labels"
            )


GroupArrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]


def _rows_of(arrays: array_files.Arrays, group: str) -> GroupArrays:
    """Rows, labels or `NO_LABEL`, and ids if given, of a group. DataError if their lengths differ."""
    x, y, ids = (arrays.get(f"{kind}_{group}") for kind in KINDS)
    if x is not None and group == UNLABELLED:
        y = np.full(len(x), NO_LABEL)
    if x is None or y is None or y.shape[:1] != (len(x),):
        raise DataError(
            f"X_{group} has shape {None if x is None else x.shape} and y_{group} {None if y is None else y.shape}; "
            "allowed: (rows, ...) and (rows,) or (rows, labels)"
        )
    if ids is not None and len(ids) != len(x):
        raise DataError(f"id_{group} has {len(ids)} entries for {len(x)} rows; allowed: one per row")
    return x, y, ids


def labelled_rows(arrays: array_files.Arrays, group: str, names: Sequence[str], where: str | Path) -> GroupArrays:
    """Rows, label indices or `NO_LABEL`, and ids if given, of a group. DataError as `_rows_of` and `label_indices`."""
    x, y, ids = _rows_of(arrays, group)
    labelled = y.ndim == 1 and group != UNLABELLED
    shown = () if ids is None else ids.tolist()
    return x, label_indices(y, names, f"{where}: y_{group}", shown) if labelled else y, ids


def _write_group(
    writer: FeatureWriter, group: str, arrays: array_files.Arrays, names: Sequence[str], where: str
) -> None:
    x, labels, ids = labelled_rows(arrays, group, names, where)
    owners, order, made = _owners(arrays, group, len(x)), None, ContentIds(group)
    if owners is not None and group != UNLABELLED:  # who scores rows expects them in their order
        order = by_owner(owners)
        labels, owners = labels[order], owners[order]
        ids = None if ids is None else ids[order]

    def blocks() -> Iterator[NDArray[Any]]:
        for start, block in _blocks(x, order, group, where):
            if ids is None:
                made.add(block, labels[start : start + len(block)])
            yield block

    names_of_rows = (str(name) for name in (made.names if ids is None else ids))
    people = None if owners is None else owners.tolist()
    stored = None if group == UNLABELLED else labels
    width = int(np.prod(x.shape[1:]))
    # float16 represents 8-bit integers and booleans exactly
    exact = x.dtype == np.float16 or (x.dtype.kind in "bu" and x.dtype.itemsize == 1)
    dtype = np.float16 if exact else np.float32
    writer.write_group(group, len(x), width, blocks(), stored, names_of_rows, dtype, people)


def _blocks(x: NDArray[Any], order: NDArray[np.intp] | None, group: str, where: str) -> Iterator[tuple[int, Singles]]:
    """Flattened rows in `order` as float32, (b, features), each block with the place of its first row."""
    width = int(np.prod(x.shape[1:]))
    at_once = max(1, BLOCK_BYTES // (4 * max(1, width)))
    for start in range(0, len(x), at_once):
        rows = np.arange(start, min(start + at_once, len(x))) if order is None else order[start : start + at_once]
        given = np.asarray(x[start : start + at_once] if order is None else x[rows]).reshape(len(rows), width)
        array_files.check_float32(given, f"{where}: X_{group}", rows)
        yield start, given.astype(np.float32)


def _owners(arrays: array_files.Arrays, group: str, n_rows: int) -> NDArray[np.str_] | None:
    given = arrays.get(f"{OWNER}_{group}")
    if given is None:
        return None
    owners = owner_names(given, n_rows, f"{OWNER}_{group}").astype(np.str_)
    known = {str(name) for key, array in arrays.items() if key.startswith(f"{OWNER}_") for name in array.tolist()}
    check_owners(owners.tolist(), f"{OWNER}_{group}", known=known)
    return owners
