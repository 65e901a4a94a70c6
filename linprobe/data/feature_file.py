"""The feature file: HDF5 with `train`, optional `test` and `public` rows, and optional text weights.

A file of new images has unlabelled `rows` instead.

The schema is documented in `features/README.md`. Rows are read in blocks; memory use does not grow with their number.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from linprobe.data.feature_reader import ALL, PRIVATE, Description, FeatureReader
from linprobe.data.hdf5_checks import (
    data_set,
    find,
    open_hdf5,
    refuse_shared_storage,
    text_attribute,
    text_attributes,
    texts,
)
from linprobe.data.labels import LONGEST_NAME, MOST_CLASSES, TASKS, as_labels, check_stored
from linprobe.data.owners import APART, SHARED
from linprobe.errors import DataError, reading

SCHEMA_VERSION = 1
GROUPS = ("train", "test", "public")
PARTS = ("x", "y", "id", "owner")  # data sets of a group
UNLABELLED = "rows"  # the group of a file without labels
NO_LABEL = -1
PRIVATE_LOG = "private_log"


TEXT_ATTRIBUTES = tuple(entry.name for entry in fields(Description) if entry.name != "class_names")


def check_class_names(names: Sequence[str], where: str) -> None:
    """DataError if there are too many names, one is too long, or two are equal; `where` says whose they are."""
    if len(names) > MOST_CLASSES:
        raise DataError(f"{where} has {len(names)} classes; allowed: {MOST_CLASSES}; use fewer")
    try:
        "".join(names).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where} has a class name that is no Unicode text; rename it") from None
    longest = max(map(len, names), default=0)
    if longest > LONGEST_NAME:
        raise DataError(f"{where} has a class name of {longest} characters; allowed: {LONGEST_NAME}; shorten it")
    if len(set(names)) < len(names):
        twice = next(iter(Counter(names) - Counter(set(names))))
        raise DataError(f"{where} has the class name {twice!r} twice; allowed: different names; rename or remove one")


def is_hdf5(path: Path) -> bool:
    """Whether a file has the HDF5 signature."""
    return path.is_file() and h5py.is_hdf5(path)


class FeatureFile(FeatureReader):
    """A feature file open for reading, with its schema checked. Use as a context manager.

    Args:
        shown_as: path for messages, if not `path`.

    Raises:
        DataError: no such file, not HDF5, truncated, incomplete, a newer schema, a missing group, wrong shapes,
            labels outside the declared classes, fewer than two classes.
    """

    def __init__(self, path: Path, *, shown_as: Path | None = None) -> None:
        super().__init__()
        self._sets: dict[str, h5py.Dataset] = {}  # that passed the checks, by name
        self._extents: dict[str, Extents | None] = {}
        self.path = shown_as or path
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise DataError(f"feature file {path} {what}; make one with `linprobe extract` or `linprobe import`")
        self._file = open_hdf5(path, f"feature file {path}")
        try:
            with self._reading("content"):
                self._check()
        except BaseException:
            self._file.close()
            raise

    def _check(self) -> None:
        self._check_schema()
        self.description = self._described()
        n_classes = len(self.description.class_names)
        if "train" not in self._file.id and UNLABELLED not in self._file.id:
            raise DataError(
                f"{self.path} has no group 'train'; allowed: train, and optionally test and public; or {UNLABELLED}"
            )
        groups = [name for name in (*GROUPS, UNLABELLED) if name in self._file.id]
        shapes = {name: self._check_group(name, n_classes) for name in groups}
        self.sizes = {name: n_rows for name, (n_rows, _) in shapes.items()}
        widths = {width for _, width in shapes.values()}
        if len(widths) != 1:
            raise DataError(f"{self.path}: groups have {sorted(widths)} features; allowed: one width for all")
        self.n_features = widths.pop()
        if "text" in self._file.id:
            self._check_text((self.n_features, n_classes))
        refuse_shared_storage(self._sets, self.path)

    def _check_schema(self) -> None:
        schema = self._file.attrs.get("schema_version")
        if not isinstance(schema, int | np.integer):
            raise DataError(
                f"{self.path} is HDF5 but has no whole-number schema_version; allowed: files made by linprobe import"
            )
        if int(schema) > SCHEMA_VERSION:
            raise DataError(
                f"{self.path} has schema version {schema}; this linprobe reads up to {SCHEMA_VERSION}; upgrade linprobe"
            )
        if int(schema) < 1:
            raise DataError(f"{self.path} has schema version {schema}; allowed: 1 or more; make the file again")
        if not self._file.attrs.get("complete", False):
            raise DataError(f"{self.path} is incomplete: its writing was interrupted; make it again")

    def _described(self) -> Description:
        texts = text_attributes(self._file.attrs, self.path, TEXT_ATTRIBUTES)
        for name, values in (("test_rows", ("public", PRIVATE)), ("task", TASKS), ("test_owners", (APART, SHARED))):
            texts[name] = texts[name] or values[0]
            if texts[name] not in values:
                raise DataError(f"{self.path}: {name} is {texts[name][:40]!r}; allowed: {', '.join(values)}")
        return Description(class_names=self._class_names(), **texts)

    def _check_text(self, shape: tuple[int, int]) -> None:
        text = data_set(self._file, self.path, "text/weights")
        if text is None or text.shape != shape or text.dtype.kind not in "fiu":
            found = None if text is None else f"shape {text.shape} and type {text.dtype}"
            raise DataError(f"{self.path}: text/weights has {found}; allowed: numbers of shape {shape}")
        self._sets["text/weights"] = text

    def _reading(self, what: str) -> AbstractContextManager[None]:
        return reading(f"{self.path}: {what}", "make the file again")

    def _class_names(self) -> tuple[str, ...]:
        text = text_attribute(self._file.attrs, self.path, "class_names", MOST_CLASSES * LONGEST_NAME)
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.path} has no readable class_names ({error}); make it again") from None
        if not isinstance(listed, list) or not all(isinstance(name, str | int) for name in listed):
            raise DataError(f"{self.path} has no readable class_names: not a JSON list of text; make it again")
        names = tuple(str(name) for name in listed)
        if len(names) < 2 and (names or "train" in self._file.id):  # rows without labels need no classes
            raise DataError(f"{self.path} declares {len(names)} classes; allowed: at least 2")
        check_class_names(names, str(self.path))
        return names

    def _check_group(self, name: str, n_classes: int) -> tuple[int, int]:
        """Number of rows and features of a group, whose labels are within `n_classes`."""
        sets: dict[str, Any] = {part: data_set(self._file, self.path, f"{name}/{part}") for part in PARTS}
        needed = [part for part in ("x", "y", "id") if part != "y" or name != UNLABELLED]
        for part in needed:
            if sets[part] is None:
                raise DataError(f"{self.path}: group {name!r} has no data set {part!r}; make the file again")
        n_rows, width = self._shape_of(name, sets["x"])
        y = sets["y"] if "y" in needed else None
        n_labels = n_rows if y is None else (*y.shape, 0)[0]
        if sets["id"].shape != (n_rows,) or n_labels != n_rows:
            raise DataError(
                f"{self.path}: {name} has {n_rows} rows, {n_labels if 'y' in needed else 0} labels and "
                f"{sets['id'].size} ids; allowed: one of each per row"
            )
        for part in ("id", "owner"):
            self._check_texts(name, part, sets[part], n_rows)
        if y is not None:
            task = self.description.task
            check_stored(y, name, self.path, n_rows=n_rows, n_classes=n_classes, task=task)
        self._sets |= {f"{name}/{part}": found for part, found in sets.items() if found is not None}
        return n_rows, width

    def _shape_of(self, name: str, x: h5py.Dataset) -> tuple[int, int]:
        """Number of rows and features of a group."""
        if x.shape[:1] == (0,):
            raise DataError(f"{self.path}: there are no {name} rows; allowed: at least 1; make the file again")
        if x.ndim != 2 or min(x.shape) < 1 or x.dtype not in (np.float16, np.float32):
            raise DataError(
                f"{self.path}: {name}/x has shape {x.shape} and type {x.dtype}; allowed: (rows, features), float16/32"
            )
        n_rows, width = map(int, x.shape)
        n_bytes = self._file.id.get_filesize()
        if n_rows > n_bytes:
            raise DataError(
                f"{self.path}: {name} declares {n_rows} rows, and the file has {n_bytes} bytes; allowed: a row for "
                "each byte at most; make the file again"
            )
        return n_rows, width

    def _check_texts(self, name: str, part: str, texts: h5py.Dataset | None, n_rows: int) -> None:
        if texts is None and part in self._file[name].id:
            raise DataError(f"{self.path}: {name}/{part} is no data set; make the file again")
        if texts is not None and (texts.shape != (n_rows,) or h5py.check_string_dtype(texts.dtype) is None):
            raise DataError(
                f"{self.path}: {name}/{part} has shape {texts.shape} and type {texts.dtype} for {n_rows} rows; "
                "allowed: one text per row; make the file again"
            )

    def labels(self, group: str, part: slice = ALL) -> NDArray[Any]:
        if group == UNLABELLED:
            return np.full(len(range(*part.indices(self.sizes[group]))), NO_LABEL, dtype=np.int64)
        with self._reading(f"{group}/y"):
            return as_labels(self._sets[f"{group}/y"][part])

    def ids(self, group: str, part: slice = ALL) -> list[str]:
        with self._reading(f"{group}/id"):
            return texts(self._sets[f"{group}/id"], self.path, f"{group}/id", part)

    def has_owners(self, group: str) -> bool:
        return f"{group}/owner" in self._sets

    def owners(self, group: str, part: slice = ALL) -> list[str]:
        with self._reading(f"{group}/owner"):
            return texts(self._sets[f"{group}/owner"], self.path, f"{group}/owner", part)

    def text_weights(self) -> NDArray[np.float32] | None:
        if "text/weights" not in self._sets:
            return None
        with self._reading("text/weights"):
            return np.asarray(self._sets["text/weights"][:], dtype=np.float32)

    def rows(self, group: str, part: slice) -> NDArray[np.floating]:
        with self._reading(f"{group}/x"):
            start, stop, step = part.indices(self.sizes[group])
            if group not in self._extents:
                try:
                    self._extents[group] = Extents.of(self._sets[f"{group}/x"])
                except (RuntimeError, IndexError):  # a damaged file: reading through h5py gives the error message
                    self._extents[group] = None
            extents = self._extents[group]
            if extents is None or step != 1:
                return np.asarray(self._sets[f"{group}/x"][part])
            return extents.read(start, stop)

    def fingerprint(self) -> str:
        """Fingerprint of the images; empty if `extract` did not make the file. Private."""
        with self._reading(PRIVATE_LOG):
            log = find(self._file, self.path, PRIVATE_LOG)
            return "" if log is None else text_attribute(log.attrs, self.path, "fingerprint")

    def image_keys(self, group: str) -> NDArray[np.uint8] | None:
        return self._keys(f"{group}_key", self.sizes[group])

    def source_keys(self, group: str) -> NDArray[np.uint8] | None:
        return self._keys(f"{group}_source_key", self.sizes[group])

    def _keys(self, name: str, n_rows: int) -> NDArray[np.uint8] | None:
        with self._reading(PRIVATE_LOG):
            keys = data_set(self._file, self.path, f"{PRIVATE_LOG}/{name}")
            if keys is None:
                return None
            if keys.ndim != 2 or len(keys) != n_rows or keys.dtype != np.uint8:
                raise DataError(
                    f"{self.path}: {PRIVATE_LOG}/{name} has shape {keys.shape} and type {keys.dtype}; allowed: "
                    "bytes for each row; make the file again"
                )
            return np.asarray(keys[:])

    def skipped(self) -> list[tuple[str, str]]:
        """Id and reason of each image that `extract` skipped. Private."""
        with self._reading(PRIVATE_LOG):
            columns = [data_set(self._file, self.path, f"{PRIVATE_LOG}/skipped_{name}") for name in ("id", "reason")]
            if None in columns:
                return []
            return list(zip(*(texts(column, self.path, PRIVATE_LOG, ALL) for column in columns), strict=True))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Extents:
    """Byte ranges of an uncompressed HDF5 data set, for direct reads from the file.

    The HDF5 library would copy the rows once more, under a lock that blocks other threads.

    Args:
        descriptor: of the open file.
        chunk: rows per chunk. offsets: position of each chunk in the file, in bytes, shape (chunks,).
        width: values per row. dtype: of a value.
    """

    def __init__(
        self, descriptor: int, chunk: int, offsets: NDArray[np.int64], width: int, dtype: np.dtype[Any]
    ) -> None:
        self._descriptor, self._chunk, self._offsets = descriptor, chunk, offsets
        self._width, self._dtype = width, dtype

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Self | None:
        """Extents of a data set of shape (n_rows, n_features).

        Returns:
            None if rows are compressed, split between chunks, or not stored in this file.
        """
        file, plan = dataset.file, dataset.id.get_create_plist()
        usual = file.driver == "sec2" and not file.userblock_size and hasattr(os, "preadv")
        if not usual or plan.get_nfilters() or plan.get_external_count():
            return None
        n_rows, width = dataset.shape
        if plan.get_layout() == h5py.h5d.CHUNKED:
            chunk = dataset.chunks[0]
            offsets = np.zeros(-(-n_rows // chunk), dtype=np.int64)
            if dataset.chunks[1] != width or dataset.id.get_num_chunks() != len(offsets):
                return None

            def note(stored: Any) -> None:
                offsets[stored.chunk_offset[0] // chunk] = stored.byte_offset

            dataset.id.chunk_iter(note)
        elif plan.get_layout() == h5py.h5d.CONTIGUOUS and dataset.id.get_offset() is not None:
            chunk, offsets = n_rows, np.array([dataset.id.get_offset()])
        else:
            return None
        return cls(file.id.get_vfd_handle(), chunk, offsets, width, dataset.dtype)

    def read(self, start: int, stop: int) -> NDArray[np.floating]:
        """Rows start:stop, shape (stop - start, n_features). Raises OSError if the file is truncated."""
        x = np.empty((max(stop - start, 0), self._width), dtype=self._dtype)
        row_bytes = self._width * self._dtype.itemsize
        view = x.view(np.uint8).reshape(-1).data
        while start < stop:
            first = last = start // self._chunk
            while (last + 1) * self._chunk < stop and self._adjacent(last, row_bytes):
                last += 1
            end = min(stop, (last + 1) * self._chunk)
            offset = int(self._offsets[first]) + (start - first * self._chunk) * row_bytes
            size = (end - start) * row_bytes
            while size:
                count = os.preadv(self._descriptor, [view[:size]], offset)
                if not count:
                    raise OSError(f"the file ends at byte {offset}, inside its rows")
                view, offset, size = view[count:], offset + count, size - count
            start = end
        return x

    def _adjacent(self, chunk: int, row_bytes: int) -> bool:
        """Whether the next chunk follows directly in the file."""
        return bool(self._offsets[chunk + 1] == self._offsets[chunk] + self._chunk * row_bytes)
