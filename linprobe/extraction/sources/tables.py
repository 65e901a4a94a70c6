"""Images that a table lists: a line for each image, with its file, its class and, if there are such columns, more."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from linprobe.data.array_files import Arrays
from linprobe.data.array_import import TABLES, Columns, read_arrays
from linprobe.data.labels import class_list, label_indices, settle_labels
from linprobe.data.owners import FILE_NAMES, GIVEN, OWNER, divided
from linprobe.errors import DataError, UsageError
from linprobe.extraction.request import ExtractRequest
from linprobe.extraction.sources.base import ImageSource, Members, Owners, Strings, Subset, splits_by
from linprobe.extraction.sources.folders import members_of, refuse_linked


def table_source(
    request: ExtractRequest, table: Path, classes: Sequence[str] | None, owners: Owners | None
) -> tuple[ImageSource, Owners | None]:
    """The images that `table` lists, with the owners of its column, or `owners`.

    Undeclared class names are the test labels, if these are public.

    Raises UsageError: no such column, owners from two places, or not exactly one of a split column and a test fraction.
    DataError: private test rows without declared classes; a table that cannot be read, a repeated id, a label outside
    the classes, or an unsuitable split. PrivacyError: a file is listed twice.
    """
    if classes is None and request.private_test:
        raise DataError(
            "test labels are private, so class names cannot come from them; declare the classes with --classes A,B,..."
        )
    arrays = _columns(request, table)
    paths = arrays["path"].tolist()
    ids = list(map(str, arrays.get("id", arrays["path"]).tolist()))
    name, count = max(Counter(ids).items(), key=itemgetter(1), default=("", 1))
    if count > 1:
        raise DataError(f"{table} has {count} lines with the id {name!r}; allowed: one line and one id for each image")
    if OWNER in arrays:
        if owners is not None:
            raise UsageError(f"{owners.named_by} and a column of {table} name owners; leave one of the two out")
        owner_of = dict(zip(ids, map(str, arrays[OWNER].tolist()), strict=True))
        owners = Owners(owner_of.get, f"the column of owners of {table}")
    people = splits_by(owners, shared=request.owners_on_both_sides)
    sides = divided(ids, people, arrays.get("split"), request.test_fraction, str(table))
    labels = settle_labels({"y_train": arrays["y"]}, classes)["y_train"]
    names, names_from = class_list({"y_test": labels[sides.get("test", np.array([], dtype=np.int64))]}, classes)
    indices = label_indices(labels, names, f"{table}: column {request.label_column!r}")
    listed = members_of(table.parent, zip((table.parent / path for path in paths), indices.tolist(), strict=True))
    refuse_linked(listed, None, "lines or links")
    if "id" in arrays:
        stamp = hashlib.sha256("\0".join([listed.stamp, *ids]).encode()).hexdigest()
        listed = replace(listed, names=Strings(name.encode() for name in ids), stamp=stamp)
    groups: dict[str, Members] = {side: Subset(listed, rows, indices[rows]) for side, rows in sides.items()}
    return ImageSource(table.name, names, names_from, groups, GIVEN if "id" in arrays else FILE_NAMES), owners


def _columns(request: ExtractRequest, table: Path) -> Arrays:
    """The columns path, y and, where there are such, id, owner and split, each of shape (rows,)."""
    if table.suffix not in TABLES:
        raise UsageError(f"table {table} ends in {table.suffix!r}; allowed: {', '.join(TABLES)}")
    columns = Columns(
        request.label_column, request.id_column, request.owner_column, request.split_column, request.path_column
    )
    return {key.removesuffix("_train"): array for key, array in read_arrays([table], columns, group="train").items()}
