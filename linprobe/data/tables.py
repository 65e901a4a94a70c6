"""Tables of rows: CSV, Parquet, Arrow, and Hugging Face data sets on disk.

One column is the label, one may be the id and one the owner, the others are features. A table is named after its
group: `train.csv`, `test.parquet`. pyarrow is needed for all but CSV.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.atomic_files import open_regular, read_text
from linprobe.data.arrow_sizes import arrow_table
from linprobe.data.feature_file import GROUPS, check_class_names
from linprobe.data.limits import LONGEST_ID, too_large
from linprobe.data.owners import OWNER
from linprobe.data.parquet_sizes import check_parquet
from linprobe.errors import DataError, UsageError, require

Arrays = dict[str, NDArray[Any]]
ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
SUFFIXES = (".csv", *ARROW_SUFFIXES)
LINES_AT_ONCE = 2048
UTF32 = 4  # bytes of a character in an array of text
LARGEST = float(np.finfo(np.float32).max)
SPLITS = {"train": "train", "test": "test", "public": "public", "validation": "test"}  # of a data set on disk


class Counter(Protocol):
    """Receives notes, and the number of lines as they are read."""

    def note(self, text: str) -> None:
        """Show one line of text."""

    def start(self, total: int, what: str) -> None:
        """Begin counting `total` lines."""

    def step(self, count: int) -> None:
        """Count `count` more lines."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are not features.

    `label` may list several columns, NAME,NAME,..., of 0 and 1: rows then have several labels. `id` None means the
    column `id`, and `owner` None the column `owner`, if there is one.
    """

    label: str = "label"
    id: str | None = None
    owner: str | None = None

    def labels(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns of labels among the columns `names`."""
        return (self.label,) if self.label in names else tuple(self.label.split(","))

    def split(self, names: Sequence[str], group: str, where: Path) -> tuple[str | None, str | None, list[str]]:
        """The column of ids and that of owners, None without one, and the columns of features.

        Only the training rows must have the column of owners.

        Raises:
            DataError: no such column, no feature, or a name twice.
        """
        labels = self.labels(names)
        needed = [*(("--label-column", label) for label in labels), ("--id-column", self.id)]
        if group == "train" or self.owner in names:
            needed.append(("--owner-column", self.owner))
        for flag, name in needed:
            if name is not None and list(names).count(name) != 1:
                listed = ", ".join(map(repr, names[:6])) + (", ..." if len(names) > 6 else "")
                raise DataError(
                    f"{where} has {list(names).count(name)} columns {name!r}; allowed: 1 of {listed}; name it with "
                    f"{flag}"
                )
        record = self.id or ("id" if "id" in names else None)
        owner = next((name for name in (self.owner or OWNER,) if name in names), None)
        features = [name for name in names if name not in (*labels, record, owner)]
        if not features:
            raise DataError(f"{where} has no column of features beside {', '.join(names)}; add at least one")
        return record, owner, features


def group_of(source: Path) -> str:
    """The group that a table is named after. Raises UsageError."""
    if source.stem not in GROUPS:
        allowed = ", ".join(f"{group}{source.suffix}" for group in GROUPS)
        raise UsageError(f"{source} is named {source.stem!r}; allowed: {allowed}; rename it")
    return source.stem


def read_csv(source: Path, columns: Columns, progress: Counter | None) -> Arrays:
    """X, y and, where there are such columns, id and owner of one group, from CSV; a byte-order mark is skipped.

    Raises:
        DataError: a missing column, a line of another length, or a cell that is no number, with its line.
    """
    group = group_of(source)
    if progress is not None:
        with source.open("rb") as stream:
            lines = sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
        progress.start(max(1, lines - 1), f"reading {source.name}")
    blocks: list[NDArray[np.float32]] = []
    marks: list[NDArray[np.float32]] = []
    texts: dict[str, list[str]] = {}
    with source.open(newline="", encoding="utf-8-sig") as text:
        reader = csv.reader(text)
        header = next(reader, [])
        if not header:
            found = "begins with an empty line" if source.stat().st_size else "is empty"
            raise DataError(
                f"{source} {found}; allowed: a line with the names of the columns, then a line for each row"
            )
        record, owner, names = columns.split(header, group, source)
        labels = columns.labels(header)
        named = {"y": labels[0] if len(labels) == 1 else None, "id": record, OWNER: owner}
        others = {kind: header.index(name) for kind, name in named.items() if name is not None}
        of_labels = [header.index(name) for name in labels]
        taken = {*others.values(), *of_labels}
        places, rising = [place for place in range(len(header)) if place not in taken], np.argsort(of_labels)
        while rows := _lines(reader, source, len(header)):
            blocks.append(_numbers(rows, places, names, source))
            if len(labels) > 1:
                in_line = _numbers(rows, np.sort(of_labels).tolist(), [labels[place] for place in rising], source)
                marks.append(in_line[:, np.argsort(rising)])
            for kind, place in others.items():
                texts.setdefault(kind, []).extend(row[place] for _, row in rows)
            if progress is not None:
                progress.step(len(rows))
    if not blocks:
        raise DataError(f"{source} has no line after its header; allowed: at least 1 row")
    stored = source.stat().st_size
    several = {f"y_{group}": np.concatenate(marks), "class_names": np.array(labels)} if marks else {}
    return (
        several
        | {f"X_{group}": np.concatenate(blocks)}
        | {
            f"{kind}_{group}": _text_array(text, f"{source}: column {named[kind]!r}", stored)
            for kind, text in texts.items()
        }
    )


def _lines(reader: Any, source: Path, width: int) -> list[tuple[int, list[str]]]:
    """The next lines that are not empty, each with its number in the file."""
    rows = [(reader.line_num, row) for row in islice(reader, LINES_AT_ONCE) if row]
    for number, row in rows:
        if len(row) != width:
            raise DataError(f"{source} line {number} has {len(row)} columns; allowed: {width}, as in its first line")
    return rows


def _numbers(
    rows: Sequence[tuple[int, list[str]]], places: Sequence[int], names: Sequence[str], source: Path
) -> NDArray[np.float32]:
    """The features of some lines, (rows, features)."""
    kept = np.isin(np.arange(len(rows[0][1])), places).tolist()
    cells = chain.from_iterable(compress(row, kept) for _, row in rows)
    try:
        values = np.fromiter(map(float, cells), np.float64, len(rows) * len(places)).reshape(len(rows), -1)
    except ValueError:
        for number, row in rows:
            for place, name in zip(places, names, strict=True):
                _number(row[place], f"{source} line {number}, column {name!r}")
        raise
    large = np.argwhere(np.isfinite(values) & (np.abs(values) > LARGEST))
    if large.size:
        row, column = large[0]
        raise DataError(
            f"{source} line {rows[row][0]}, column {names[column]!r}: {values[row, column]:g} is beyond {LARGEST:.3g}, "
            "the largest float32; scale the features"
        )
    return values.astype(np.float32)


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(
            f"{where}: {text!r} is no number; write a number, leave the line out, or name the column with "
            "--label-column, --id-column or --owner-column"
        ) from None


def read_arrow(source: Path, columns: Columns) -> Arrays:
    """X, y and, where there are such columns, id and owner of one group, from a Parquet or Arrow file.

    Raises:
        DataError: a missing column, or one that holds no numbers. UsageError: pyarrow is not installed.
    """
    arrow = _pyarrow()
    group = group_of(source)
    if source.suffix == ".parquet":
        table = _parquet_table(arrow, source)
    else:
        with arrow.memory_map(str(source)) as stream:
            table = arrow_table(arrow, stream, source.stat().st_size, source)
    return _arrays(table, group, columns, source, source.stat().st_size)


def _parquet_table(arrow: Any, source: Path) -> Any:
    """The table in a Parquet file. Text stays in dictionaries: a text that stands in all rows is held once.

    Raises:
        DataError: the file declares more values than its bytes can stand for.
    """
    check_parquet(arrow, source)
    fields = arrow.parquet.read_schema(source)
    texts = [field.name for field in fields if arrow.types.is_string(field.type) or arrow.types.is_binary(field.type)]
    return arrow.parquet.read_table(source, read_dictionary=texts, use_threads=False)


def is_dataset(folder: Path) -> bool:
    """Whether `datasets` (Hugging Face) saved a data set, or one with splits, in the folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def read_dataset(folder: Path, columns: Columns) -> Arrays:
    """Arrays of all splits of a data set that `save_to_disk` wrote: train, test or validation, and public.

    A data set without splits is the group train. Class names are those of its label.

    Raises:
        DataError: another split, or a data set with selected rows. UsageError: pyarrow is not installed.
    """
    arrow = _pyarrow()
    splits = {"train": folder}
    if (folder / "dataset_dict.json").is_file():
        named = json.loads(read_text(folder / "dataset_dict.json"))["splits"]
        groups = [SPLITS.get(name) for name in named]
        if None in groups or len(set(groups)) != len(groups):
            raise DataError(
                f"data set {folder} has the splits {', '.join(named)}; allowed: train, one of test and validation, and "
                "public; rename or remove the others"
            )
        splits = {SPLITS[name]: folder / name for name in named}
    arrays: Arrays = {}
    for group, place in splits.items():
        state = json.loads(read_text(place / "state.json"))
        if state.get("_indices_files"):
            raise DataError(f"data set {place} selects rows of another; call flatten_indices() and save it again")
        parts = [place / Path(entry["filename"]).name for entry in state["_data_files"]]
        if len(set(parts)) < len(parts):
            raise DataError(f"data set {place} names a file twice; save it again")
        tables = []
        for part in parts:
            open_regular(part).close()
            with arrow.memory_map(str(part)) as stream:
                tables.append(arrow_table(arrow, stream, part.stat().st_size, part))
        stored = sum(part.stat().st_size for part in parts)
        arrays |= _arrays(arrow.concat_tables(tables), group, columns, place, stored)
        names = _names_of_label(place, columns)
        if names is not None:
            check_class_names(names, str(place))
            arrays["class_names"] = np.array(names)
    return arrays


def _names_of_label(place: Path, columns: Columns) -> list[str] | None:
    """The class names that a data set declares for its label; None without them."""
    info = json.loads(read_text(place / "dataset_info.json"))
    label = (info.get("features") or {}).get(columns.label) or {}
    return list(map(str, label["names"])) if label.get("_type") == "ClassLabel" and label.get("names") else None


def _pyarrow() -> Any:
    require("arrow", "a Parquet or Arrow file or a data set on disk")
    import pyarrow
    import pyarrow.compute  # used below, and not imported by the others in every case
    import pyarrow.parquet

    return pyarrow


def _arrays(table: Any, group: str, columns: Columns, where: Path, stored: int) -> Arrays:
    """The arrays of a table; `stored` is the number of bytes that it came from."""
    table.validate(full=True)  # Arrow ends the process where lengths contradict each other
    record, owner, features = columns.split(table.column_names, group, where)
    labels = columns.labels(table.column_names)
    arrays: Arrays = {f"X_{group}": np.concatenate([_column(table[name], name, where) for name in features], axis=1)}
    if len(labels) == 1:
        arrays[f"y_{group}"] = _texts_or_numbers(table[columns.label], columns.label, where, stored)
    else:
        arrays[f"y_{group}"] = np.concatenate([_column(table[name], name, where) for name in labels], axis=1)
        arrays["class_names"] = np.array(labels)
    if record is not None:
        ids = [str(value) for value in _plain_list(table[record], record, where)]
        arrays[f"id_{group}"] = _text_array(ids, f"{where}: column {record!r}", stored)
    if owner is not None:
        arrays[f"{OWNER}_{group}"] = _texts_or_numbers(table[owner], owner, where, stored)
    return arrays


def _texts_or_numbers(column: Any, name: str, where: Path, stored: int) -> NDArray[Any]:
    _refuse_nulls(column, name, where)
    values = _plain_list(column, name, where)
    if all(isinstance(value, str) for value in values):
        return _text_array(values, f"{where}: column {name!r}", stored)
    return np.array(values)


def _plain_list(column: Any, name: str, where: Path) -> list[Any]:
    """The values of a column of texts, numbers or flags, of which none is longer than LONGEST_ID."""
    import pyarrow

    for chunk in column.chunks:
        known = chunk.dictionary if pyarrow.types.is_dictionary(chunk.type) else chunk
        kind = known.type
        texts = [pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_binary]
        is_text = any(is_kind(kind) for is_kind in texts)
        if not is_text and not pyarrow.types.is_primitive(kind):
            raise DataError(f"{where}: column {name!r} has type {kind}; allowed: texts or whole numbers")
        if is_text:
            longest = pyarrow.compute.max(pyarrow.compute.binary_length(known)).as_py() or 0
            _refuse_long(longest, f"{where}: column {name!r}")
    return list(column.to_pylist())


def _refuse_long(longest: int, where: str) -> None:
    if longest > LONGEST_ID:
        raise DataError(f"{where} holds a text of {longest} bytes; allowed: {LONGEST_ID}; shorten it")


def _text_array(values: Sequence[str], where: str, stored: int) -> NDArray[np.str_]:
    """Texts as an array, which gives each of them the room of the longest.

    Raises:
        DataError: a text longer than LONGEST_ID, or an array far larger than the `stored` bytes of the file.
    """
    longest = max(map(len, values), default=0)
    _refuse_long(longest, where)
    if too_large(UTF32 * longest * len(values), stored):
        raise DataError(
            f"{where} holds {len(values)} texts and one of {longest} characters among them, too much for memory; "
            "shorten the long ones"
        )
    return np.array(values, dtype=np.str_)


def _column(column: Any, name: str, where: Path) -> NDArray[np.floating]:
    """The numbers of a column, (rows, 1), or those of its lists, (rows, length)."""
    import pyarrow

    _refuse_nulls(column, name, where)
    kind, flat, width = column.type, column, 1
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        lengths = {len(value) for value in column}
        if len(lengths) > 1:
            raise DataError(
                f"{where}: lists of column {name!r} have lengths {sorted(lengths)[:5]}; allowed: one length"
            )
        kind, flat, width = kind.value_type, pyarrow.compute.list_flatten(column), max(lengths, default=0)
        _refuse_nulls(flat, name, where)
    if not (pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_boolean(kind)):
        raise DataError(
            f"{where}: column {name!r} has type {column.type}; allowed: numbers, or lists of numbers; leave it out, or "
            "name it with --label-column, --id-column or --owner-column"
        )
    return np.asarray(flat.to_numpy()).reshape(-1, width)


def _refuse_nulls(column: Any, name: str, where: Path) -> None:
    if column.null_count:
        row = next(place for place, value in enumerate(column) if not value.is_valid)
        raise DataError(
            f"{where}: column {name!r} has {column.null_count} empty cells, first at row {row}; fill them, or leave "
            "the rows out"
        )
