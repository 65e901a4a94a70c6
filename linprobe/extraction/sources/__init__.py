"""Open the SOURCE argument: an image folder, images in array files, or a table with a line for each image."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.array_files import Arrays
from linprobe.data.array_import import ARRAYS, labelled_rows, read_arrays
from linprobe.data.feature_file import GROUPS
from linprobe.data.feature_reader import TABLES
from linprobe.data.labels import (
    CONTENT,
    FILE_NAMES,
    GIVEN,
    OWNER,
    ContentIds,
    OwnerOf,
    class_list,
    declared_names,
    divided,
    holds_label_matrix,
    label_indices,
    settle_labels,
)
from linprobe.data.tables import Columns
from linprobe.errors import DataError, UsageError
from linprobe.extraction.request import ExtractRequest, Recipe, read_class_names
from linprobe.extraction.sources import base
from linprobe.extraction.sources.folders import folder_source, members_of, refuse_linked, unlabelled_source

IMAGES_AT_ONCE = 256


def listed_source(request: ExtractRequest, recipe: Recipe | None) -> base.ImageSource:
    owners, shared = base.owners_from(request.owners, request.owner_regex), request.owners_on_both_sides
    if recipe is not None or request.unlabelled:
        source = unlabelled_source(Path(request.images), () if recipe is None else recipe.class_names)
    elif request.table is not None:
        source, owners = table_source(request, request.table, read_class_names(request.classes), owners)
    else:
        source = open_source(
            request.images,
            classes=read_class_names(request.classes),
            test_fraction=request.test_fraction,
            owner_of=base.splits_by(owners, shared=shared),
            private_test=request.private_test,
        )
    return base.with_owners(source, owners, shared=shared)


def table_source(
    request: ExtractRequest, table: Path, classes: Sequence[str] | None, owners: base.Owners | None
) -> tuple[base.ImageSource, base.Owners | None]:
    """The images that `table` lists, with the owners of its column, or `owners`. PrivacyError: a file listed twice."""
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
        owners = base.Owners(owner_of.get, f"the column of owners of {table}")
    people = base.splits_by(owners, shared=request.owners_on_both_sides)
    sides = divided(ids, people, arrays.get("split"), request.test_fraction, str(table))
    labels = settle_labels({"y_train": arrays["y"]}, classes)["y_train"]
    tested = {"y_test": labels[sides.get("test", np.array([], dtype=np.int64))]}
    names, names_from = class_list(tested, classes, table, private_test=request.private_test)
    indices = label_indices(labels, names, f"{table}: column {request.label_column!r}", ids)
    listed = members_of(table.parent, zip((table.parent / path for path in paths), indices.tolist(), strict=True))
    refuse_linked(listed, how="lines or links")
    if "id" in arrays:
        stamp = hashlib.sha256("\0".join([listed.stamp, *ids]).encode()).hexdigest()
        listed = replace(listed, names=base.Strings(name.encode() for name in ids), stamp=stamp)
    groups: dict[str, base.Members] = {side: base.Subset(listed, rows, indices[rows]) for side, rows in sides.items()}
    return base.ImageSource(table.name, names, names_from, groups, GIVEN if "id" in arrays else FILE_NAMES), owners


def _columns(request: ExtractRequest, table: Path) -> Arrays:
    if table.suffix not in TABLES:
        raise UsageError(f"table {table} ends in {table.suffix!r}; allowed: {', '.join(TABLES)}")
    columns = Columns(
        request.label_column, request.id_column, request.owner_column, request.split_column, request.path_column
    )
    return {key.removesuffix("_train"): array for key, array in read_arrays([table], columns, group="train").items()}


def open_source(
    source: str,
    *,
    classes: Sequence[str] | None = None,
    test_fraction: float | None = None,
    owner_of: OwnerOf | None = None,
    private_test: bool = False,
) -> base.ImageSource:
    """The images of the SOURCE argument. PrivacyError: a private image is public too, or there twice through links."""
    path = Path(source)
    kinds = f"a folder of images, or arrays in {', '.join(ARRAYS)}; for a table that lists images, give --table FILE"
    if not path.is_dir() and not path.is_file():
        raise DataError(f"{source} {'is no regular file' if path.exists() else 'does not exist'}; allowed: {kinds}")
    if path.is_file() and path.suffix not in ARRAYS:
        raise DataError(f"{source} is no folder and no array file; allowed: {kinds}; unpack an archive first")
    if path.suffix in ARRAYS or (path.is_dir() and any(path.glob("X_*.np[yz]"))):
        if test_fraction is not None:
            raise UsageError(f"--test-fraction does nothing for {path}, which has a test group; leave it out")
        return _array_source(path, classes, private_test=private_test)
    return folder_source(path, classes, test_fraction, owner_of, private_test=private_test)


class ArrayMembers:
    """Images in a uint8 array of shape (rows, height, width) or (rows, height, width, 3)."""

    def __init__(
        self, source: Path, group: str, x: NDArray[Any], labels: NDArray[np.int64], ids: NDArray[Any] | None
    ) -> None:
        self.source, self.group, self.labels = source, group, labels
        if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] not in (3, 4)):
            raise DataError(
                f"X_{group} has shape {x.shape} and type {x.dtype}; allowed: uint8 images (rows, height, width) or "
                "(rows, height, width, 3); convert them, or use `linprobe import` for features"
            )
        if ids is None:
            made = ContentIds(group)
            for start in range(0, len(x), IMAGES_AT_ONCE):
                part = slice(start, start + IMAGES_AT_ONCE)
                made.add(x[part], labels[part])
        self.ids = base.Strings(str(name).encode() for name in (made.names if ids is None else ids))
        self._images: NDArray[np.uint8] | None = x
        self._n_rows = len(x)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_images": None}  # each worker process opens the file itself

    def __len__(self) -> int:
        return self._n_rows

    def id(self, row: int) -> str:
        return base.readable(self.ids[row])

    def read(self, row: int) -> NDArray[np.uint8]:
        if self._images is None:
            self._images = read_arrays([self.source])[f"X_{self.group}"]
        return np.asarray(self._images[row])

    def fingerprint(self) -> str:
        sha = hashlib.sha256(self.labels.tobytes())
        for path in sorted(self.source.iterdir()) if self.source.is_dir() else [self.source]:
            status = path.stat()
            sha.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return sha.hexdigest()


def _array_source(path: Path, classes: Sequence[str] | None, *, private_test: bool) -> base.ImageSource:
    arrays = read_arrays([path])
    if any(key.startswith("owner_") for key in arrays):
        raise UsageError(f"{path} has owners of images; leave them out, and give --owners FILE.csv or --owner-regex")
    for key in ("X_train", "y_train", "X_test", "y_test"):
        if key not in arrays:
            raise DataError(f"{path} holds no {key}; needed: X_train, y_train, X_test, y_test")
    if holds_label_matrix(arrays):
        raise DataError(f"{path} holds several labels per image; allowed: one label per image, y of shape (rows,)")
    classes = declared_names(arrays, classes, path)
    arrays = settle_labels(arrays, classes)
    names, names_from = class_list(arrays, classes, path, private_test=private_test)
    groups: dict[str, base.Members] = {
        group: ArrayMembers(path, group, *labelled_rows(arrays, group, names, path))
        for group in GROUPS
        if f"X_{group}" in arrays
    }
    return base.ImageSource(path.name, names, names_from, groups, ids_from=GIVEN if "id_train" in arrays else CONTENT)
