"""Tables of rows, CSV and Parquet: a column of labels, perhaps of ids, owners and groups, and columns of features."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.array_files import LARGEST, SMALLEST, Arrays, parquet_table, refuse_twice, too_large
from linprobe.data.feature_file import UNLABELLED
from linprobe.data.labels import OWNER, refuse_long
from linprobe.errors import DataError, Progress, UsageError, counted, printable
from linprobe.parallel.array_api import Floats, Singles

LINES_AT_ONCE = 2048
UTF32 = 4  # bytes of a character in an array of text
INDEX = re.compile(r"\s*|Unnamed: [0-9]+|__index_level_[0-9]+__")  # a column of numbers of rows, which is no feature
FEATURES = "features"  # key of the names of a table's features, dtype object, shape (n_features,)


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are not features; `x` and `y` name arrays of one file, as `id` and `owner` then do."""

    label: str = "label"  # or several, NAME,NAME,..., of 0 and 1: rows then have several labels
    id: str | None = None  # None: the column `id`, if there is one
    owner: str | None = None  # None: the column `owner`, if there is one
    split: str | None = None  # names the group of each row
    path: str | None = None  # lists files: other columns are not read
    x: str | None = None
    y: str | None = None

    def group(self, names: Sequence[str], group: str) -> str:
        """`train` in place of the group of rows without labels where a column is named as labels, or spelt alike."""
        labelled = self.label != Columns.label or Columns.label in map(str.lower, names)
        return "train" if group == UNLABELLED and labelled else group

    def labels(self, names: Sequence[str], group: str) -> tuple[str, ...]:
        if group == UNLABELLED:
            return ()
        return (self.label,) if self.label in names or self.path is not None else tuple(self.label.split(","))

    def places(self, names: Sequence[str], group: str, where: Path) -> tuple[dict[str, str], list[str]]:
        """Columns of ids and owners, by kind, and of features. UsageError, DataError: one is not there."""
        labels = self.labels(names, group)
        needed = [*(("--label-column", label) for label in labels), ("--id-column", self.id)]
        if group in ("train", UNLABELLED) or self.owner in names:
            needed.append(("--owner-column", self.owner))
        for flag, name in (*needed, ("--split-column", self.split), ("--path-column", self.path)):
            if name is not None and name not in names:
                listed = _listed(names, name, flag, by_name=where.stem == group)
                raise UsageError(f"{where} has no column {name!r}; allowed: its {listed}")
        others = {"id": self.id or "id", OWNER: self.owner or OWNER, "split": self.split, "path": self.path}
        texts = {kind: name for kind, name in others.items() if name is not None and name in names}
        if self.path is not None:
            return texts, []
        taken = {*labels, *texts.values()}
        features = [name for name in names if name not in taken]
        if not features:
            raise DataError(f"{where} has no column of features beside {', '.join(names)}; add at least one")
        return texts, features


def _listed(names: Sequence[str], wanted: str, flag: str, *, by_name: bool) -> str:
    """The columns of a table, and the next step of who `wanted` another; `by_name`: the table is named by its group."""
    shown = [*map(repr, names[:6]), *["..."][: len(names) > 8], *map(repr, names[6:][-2:])]
    near = "".join([f"did you mean {name!r}? " for name in names if name.lower() == wanted.lower()][:1])
    other = len(names) == 1 and re.search(r"[;\t|]", names[0])
    step = "allowed between columns: commas; write the table again" if other else f"{near}name one with {flag}"
    bare = by_name and not other and wanted == Columns.label
    alone = ", or import it alone under another name if its rows have no labels" if bare else ""
    return f"{counted(len(names), 'column')}, {', '.join(shown)}; {step}{alone}"


def check_features(table: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    """DataError if the columns of features of a table hold an index, or are not `wanted`, as in a table before it."""
    for place, (name, before) in enumerate(zip_longest(found, wanted), 1):
        if name != before:
            raise DataError(
                f"{table}: feature {place} is the column {name!r}, and {before!r} in the table before it; allowed: the "
                "same columns in the same order; write one of the tables again"
            )
        if INDEX.fullmatch(name):
            raise DataError(
                f"{table} has the column {name!r}, as pandas and R name the numbers of rows; allowed: features under "
                "names; write the table without its index (pandas: index=False), or rename the column"
            )


def column_order(names: Collection[str], n_features: int) -> str:
    """A short text for columns of features in their order; empty without a name for each, as for arrays or lists."""
    if len(names) != n_features:
        return ""
    digest = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()
    return f"{printable(', '.join(names))[:40]} (SHA-256 {digest[:16]})"


def read_table(source: Path, columns: Columns, progress: Progress, group: str) -> Arrays:
    if source.suffix == ".parquet":
        return _read_parquet(source, columns, group)
    with source.open("rb") as stream:
        n_lines = sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
    progress.start(max(1, n_lines - 1), f"reading {source.name}")
    blocks, marked = list[Singles](), list[Singles]()
    with source.open(newline="", encoding="utf-8-sig") as text:
        reader = csv.reader(text, strict=True)  # an unclosed quote would swallow rows
        header = next(reader, [])
        if not header:
            found = "begins with an empty line" if source.stat().st_size else "is empty"
            raise DataError(f"{source} {found}; allowed: a line with the names of the columns, then rows")
        refuse_twice(header, f"{source} line 1")
        group = columns.group(header, group)
        of_texts, features = columns.places(header, group, source)
        labels = columns.labels(header, group)
        if len(labels) == 1:
            of_texts = {"y": labels[0], **of_texts}
        texts: dict[str, list[str]] = {kind: [] for kind in of_texts}
        marks = labels if len(labels) > 1 else ()
        while rows := _lines(reader, source, len(header)):
            blocks.append(_numbers(rows, features, header, source))
            marked.append(_numbers(rows, marks, header, source))
            for kind, name in of_texts.items():
                place = header.index(name)
                for number, row in rows:
                    _refuse_nul(row[place], f"{source} line {number}, column {name!r}")
                texts[kind].extend(row[place] for _, row in rows)
            progress.step(len(rows))
    if not blocks:
        raise DataError(f"{source} has no line after its header; allowed: at least 1 row")
    stored = source.stat().st_size
    arrays: Arrays = {f"X_{group}": np.concatenate(blocks), FEATURES: np.array(features, dtype=object)}
    if marks:
        order = [sorted(marks, key=header.index).index(name) for name in marks]
        arrays |= {f"y_{group}": np.concatenate(marked)[:, order], "class_names": np.array(labels)}
    return arrays | {
        f"{kind}_{group}": text_array(found, f"{source}: column {of_texts[kind]!r}", stored)
        for kind, found in texts.items()
    }


def _lines(reader: Any, source: Path, width: int) -> list[tuple[int, list[str]]]:
    rows = [(reader.line_num, row) for row in islice(reader, LINES_AT_ONCE) if row]
    for number, row in rows:
        if len(row) != width:
            raise DataError(f"{source} line {number} has {len(row)} columns; allowed: {width}, as in its first line")
    return rows


def _numbers(
    rows: Sequence[tuple[int, list[str]]], wanted: Sequence[str], names: Sequence[str], source: Path
) -> Singles:
    """The columns `wanted` of some lines, in the order of the table, whose columns have `names`; (rows, columns)."""
    places = [place for place, name in enumerate(names) if name in wanted]
    kept = [name in wanted for name in names]
    cells = chain.from_iterable(compress(row, kept) for _, row in rows)
    try:
        if not all(map(_plain, map("".join, (compress(row, kept) for _, row in rows)))):
            raise ValueError("digits of another script, or with _ between them")
        values = np.fromiter(map(float, cells), np.float64, len(rows) * len(places)).reshape(len(rows), len(places))
    except ValueError:
        for number, row in rows:
            for place in places:
                _refuse_text(row[place], f"{source} line {number}, column {names[place]!r}")
        raise
    large = np.argwhere(np.isfinite(values) & (np.abs(values) > LARGEST))
    if large.size:
        row, column = large[0]
        raise DataError(
            f"{source} line {rows[row][0]}, column {names[places[column]]!r}: {values[row, column]:g} is beyond "
            f"{LARGEST:.3g}, the largest float32; scale the features"
        )
    singles = values.astype(np.float32)
    for row in np.flatnonzero(values.any(axis=1) & ~singles.any(axis=1))[:1].tolist():
        raise DataError(
            f"{source} line {rows[row][0]}: every feature is below {SMALLEST:.3g}, the smallest float32, so the row "
            "becomes zero; scale the features"
        )
    return singles


def _plain(cells: str) -> bool:
    """Whether Python's `float` reads no more than decimals in them: it also takes 1_0 and the digits of any script."""
    return cells.isascii() and "_" not in cells


def _refuse_nul(text: Any, where: str) -> None:
    # NumPy drops it at the end of a text: two labels would become one
    if (isinstance(text, str) and "\0" in text) or (isinstance(text, bytes) and b"\0" in text):
        raise DataError(f"{where}: {text!r} holds the character NUL; allowed: text without it; write the table again")


def _refuse_text(cell: str, where: str) -> None:
    try:
        float(cell if _plain(cell) else "")
    except ValueError:
        raise DataError(
            f"{where}: {cell!r} is no plain decimal number; write a number, leave out the line or the column, or name "
            "the column with --label-column, --id-column or --owner-column"
        ) from None


def _read_parquet(where: Path, columns: Columns, group: str) -> Arrays:
    table, stored = parquet_table(where), where.stat().st_size
    table.validate(full=True)  # Arrow ends the process where lengths contradict each other
    group = columns.group(table.column_names, group)
    texts, features = columns.places(table.column_names, group, where)
    labels = columns.labels(table.column_names, group)
    numbers = [_column(table[name], name, where) for name in features]
    arrays: Arrays = {
        f"X_{group}": np.concatenate([np.empty((len(table), 0), bool), *numbers], axis=1),
        FEATURES: np.array(features, dtype=object),
    }
    if len(labels) == 1:
        texts = {"y": columns.label, **texts}
    elif labels:
        arrays[f"y_{group}"] = np.concatenate([_column(table[name], name, where) for name in labels], axis=1)
        arrays["class_names"] = np.array(labels)
    for kind, name in texts.items():
        if kind != "id":
            _refuse_nulls(table[name], name, where)
        values = _plain_list(table[name], name, where)
        for row, value in enumerate(values):
            _refuse_nul(value, f"{where} row {row}, column {name!r}")
        if kind in ("id", "split", "path"):
            values = [value if isinstance(value, bytes) else str(value) for value in values]
        is_text = all(isinstance(value, str) for value in values)
        found = text_array(values, f"{where}: column {name!r}", stored) if is_text else np.array(values)
        arrays[f"{kind}_{group}"] = found
    return arrays


def _plain_list(column: Any, name: str, where: Path) -> list[Any]:
    """The values of a column of texts, numbers or flags, of which none is longer than LONGEST_ID."""
    from pyarrow import compute, types

    for chunk in column.chunks:
        held = chunk.dictionary if types.is_dictionary(chunk.type) else chunk
        texts = (types.is_string, types.is_large_string, types.is_binary)
        if any(is_kind(held.type) for is_kind in texts):
            longest = compute.max(compute.binary_length(held)).as_py() or 0
            refuse_long(longest, f"{where}: column {name!r}")
        elif not types.is_primitive(held.type):
            raise DataError(f"{where}: column {name!r} has type {held.type}; allowed: texts or whole numbers")
    return list(column.to_pylist())


def text_array(values: Sequence[str], where: str, stored: int) -> NDArray[np.str_]:
    longest = max(map(len, values), default=0)
    refuse_long(longest, where)
    if too_large(UTF32 * longest * len(values), stored):
        raise DataError(f"{where} holds {len(values)} texts, one of {longest} characters, beyond memory; shorten them")
    return np.array(values, dtype=np.str_)


def _column(column: Any, name: str, where: Path) -> Floats:
    from pyarrow import compute, types

    _refuse_nulls(column, name, where)
    kind, flat, width = column.type, column, 1
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = compute.unique(compute.list_value_length(column)).to_pylist()
        if len(lengths) > 1:
            raise DataError(f"{where}: lists of column {name!r} have lengths {sorted(lengths)[:5]}; allowed: one")
        kind, flat, width = kind.value_type, compute.list_flatten(column), max(lengths, default=0)
        _refuse_nulls(flat, name, where)
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{where}: column {name!r} has type {column.type}; allowed: numbers, or lists of numbers; leave it out, or "
            "name it with --label-column, --id-column or --owner-column"
        )
    return np.asarray(flat.to_numpy()).reshape(-1, width)


def _refuse_nulls(column: Any, name: str, where: Path) -> None:
    if column.null_count:
        row = next(place for place, value in enumerate(column) if not value.is_valid)
        raise DataError(f"{where}: column {name!r} has {column.null_count} empty cells, first at row {row}; fill them")
