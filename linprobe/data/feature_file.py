"""Feature files: HDF5 with `train`, optional `test` and `public` rows, optional text weights; one file, or shards.

`features/README.md` documents the schema. A file may come from a stranger: data in other files, in a FIFO or in the
bytes of private rows, and data sets that declare far more than is stored, are refused before memory is allocated.
"""

from __future__ import annotations

import glob
import json
import math
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from linprobe.data.array_files import LARGEST, MOST_COMPRESSED, too_large
from linprobe.data.feature_reader import (
    ALL,
    IMAGE_KEY_BYTES,
    PIXELS,
    PRIVATE,
    RECORDS_AT_ONCE,
    Description,
    FeatureReader,
    extraction_of,
    first_difference,
    runs_of,
    shown,
)
from linprobe.data.labels import APART, LONGEST_NAME, MOST_CLASSES, SHARED, TASKS, check_stored, refuse_long
from linprobe.errors import DataError, counted, printable, read_fault, reading
from linprobe.parallel.array_api import Floats, Indices, Mask, Singles

LONGEST_TEXT = 1 << 20  # characters of a text of a description
MOST_CHUNK = 1 << 28  # bytes of one chunk, which is read whole
AT_ONCE = 1 << 28  # bytes of text that one read may make
FEWEST_AT_ONCE = 64
WORTH_A_CALL = 1 << 16  # bytes that are read in about the time of one call
while h5py.h5pl.size():  # a file must not make HDF5 load a library
    h5py.h5pl.remove(0)


def open_hdf5(path: Path, what: str) -> h5py.File:
    """An HDF5 file, opened; `what` is its kind and path. DataError: not HDF5, or torn. LinprobeError: unreadable."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if (fault := read_fault(what, error)) is not None:
            raise fault from None
        if "already open for write" in str(error):
            raise DataError(f"{what} is being written, or its writer was killed; wait, or make it again") from None
        if "truncated" in str(error):
            raise DataError(f"{what} is truncated; make it again") from None
        raise DataError(
            f"{what} is not an HDF5 file; make one with `linprobe import`, or of images with `linprobe extract FOLDER`"
        ) from None


def find(file: h5py.File, path: Path, name: str) -> Any:
    found: Any = file.id
    for part in name.encode().split(b"/"):
        if not isinstance(found, h5py.h5g.GroupID) or not found.links.exists(part):
            return None
        if found.links.get_info(part).type != h5py.h5l.TYPE_HARD:
            raise DataError(f"{path}: {name} is a link; allowed: data in the file itself; copy it in")
        found = h5py.h5o.open(found, part)
    return found


def data_set(file: h5py.File, path: Path, name: str) -> h5py.Dataset | None:
    """The unread data set `name` of a file, or None. DataError: a link, elsewhere, a plug-in, more than is stored."""
    identifier = find(file, path, name)
    if not isinstance(identifier, h5py.h5d.DatasetID):
        return None
    plan, item = identifier.get_create_plist(), identifier.dtype.itemsize
    layout = plan.get_layout()
    if plan.get_external_count() or layout == h5py.h5d.VIRTUAL:
        raise DataError(f"{path}: {name} lies in another file; allowed: data in the file itself; copy it in")
    for code, _, _, filter_name in (plan.get_filter(place) for place in range(plan.get_nfilters())):
        if not h5py.h5z.filter_avail(code):
            called = printable(filter_name.decode("utf-8", "replace"))[:40] or "without a name"
            raise DataError(
                f"{path}: {name} is compressed by HDF5 filter {code} ({called}), which needs a plug-in; allowed: gzip, "
                "lzf, or no compression; write it anew"
            )
    chunk = math.prod(plan.get_chunk()) * item if layout == h5py.h5d.CHUNKED else 0
    if chunk > MOST_CHUNK:
        raise DataError(f"{path}: {name} has chunks of {chunk} bytes; allowed: {MOST_CHUNK}; write smaller ones")
    shape = identifier.shape
    declared, stored = 0 if shape is None else math.prod(shape) * item, identifier.get_storage_size()
    if too_large(declared, stored) or (declared and not stored):
        raise DataError(
            f"{path}: {name} declares {declared} bytes and {stored} are stored; allowed: {MOST_COMPRESSED} times the "
            "stored ones; make the file again"
        )
    return h5py.Dataset(identifier)


def refuse_shared_storage(sets: Mapping[str, h5py.Dataset], path: Path) -> None:
    """DataError if checked data sets, by name, are one, share bytes of the file, or state another size than is read."""
    objects: dict[Any, str] = {}
    stored: list[tuple[int, int, str]] = []
    for name, data_set in sets.items():
        found = data_set.id
        first = objects.setdefault(found, name)
        if first != name:
            raise DataError(f"{path}: {first} and {name} are one data set; allowed: a data set for each; copy one")
        plan, item, unfiltered = found.get_create_plist(), found.get_type().get_size(), list[int]()
        if plan.get_layout() == h5py.h5d.CHUNKED:
            chunks: list[Any] = []
            found.chunk_iter(chunks.append)
            stored += [(chunk.byte_offset, chunk.size, name) for chunk in chunks]
            every = (1 << plan.get_nfilters()) - 1  # bits of the filters that a chunk did not go through
            unfiltered = [chunk.size for chunk in chunks if chunk.filter_mask & every == every]
            shape = plan.get_chunk()
        elif found.get_offset() is not None:
            stored.append((found.get_offset(), found.get_storage_size(), name))
            unfiltered, shape = [found.get_storage_size()], found.shape
        of_variable_length = found.dtype.kind == "O"
        for size in () if of_variable_length else unfiltered:
            if size != math.prod(shape) * item:
                raise DataError(
                    f"{path}: {name} states {size} bytes for numbers of shape {shape}; allowed: "
                    f"{math.prod(shape) * item}; make it again"
                )
    end, last = 0, ""
    for start, size, name in sorted(stored):
        if start < end:
            raise DataError(f"{path}: {last} and {name} lie in the same bytes; allowed: own bytes; make it again")
        end, last = start + size, name


def text_attribute(attributes: h5py.AttributeManager, path: Path, name: str, longest: int = LONGEST_TEXT) -> str:
    """A text attribute, empty if absent. Raises DataError: an array, no UTF-8 text, or over `longest` characters."""
    if name not in attributes:
        return ""
    stored = attributes.get_id(name)
    if stored.shape != ():
        raise DataError(f"{path}: {name} is no single text; make the file again")
    held = np.empty((), stored.dtype)
    stored.read(held)
    value = held[()]
    if not isinstance(value, bytes):
        raise DataError(f"{path}: {name} is {type(value).__name__}; allowed: text; make the file again")
    text = value.decode("utf-8")
    if len(text) > longest:
        raise DataError(f"{path}: {name} has {len(text)} characters; allowed: {longest}; make the file again")
    return text


def texts(found: h5py.Dataset, path: Path, name: str, part: slice) -> list[str]:
    """Record ids of the rows `part` of a checked data set of text. Raises DataError: one longer than LONGEST_ID."""
    start, stop, _ = part.indices(len(found))
    lengths = _stored_lengths(found, start, stop)
    if lengths is not None:
        refuse_long(int(lengths.max(initial=0)), f"{path}: {name}")
        return [str(one) for one in found.asstr()[start:stop]]
    if h5py.check_string_dtype(found.dtype).length is None:
        # one stored text may stand in every row
        step = max(FEWEST_AT_ONCE, AT_ONCE // max(1, path.stat().st_size if path.is_file() else AT_ONCE))
    else:
        refuse_long(found.dtype.itemsize, f"{path}: {name}")
        step = stop - start
    read: list[str] = []
    for first in range(start, stop, max(1, step)):
        some = [str(one) for one in found.asstr()[first : min(stop, first + step)]]
        refuse_long(max(map(len, some)), f"{path}: {name}")
        read += some
    return read


def _stored_lengths(found: h5py.Dataset, start: int, stop: int) -> Any:
    """Lengths of texts of variable length, in bytes, (b,), as the file states them; None if not at hand."""
    contiguous = found.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    offset = found.id.get_offset()
    variable = h5py.check_string_dtype(found.dtype).length is None
    if not contiguous or not variable or offset is None or found.file.driver != "sec2" or not hasattr(os, "pread"):
        return None
    row = np.dtype([("length", "<u4"), ("place", "V12")])
    if found.id.get_storage_size() != row.itemsize * len(found):
        return None
    stored = os.pread(found.file.id.get_vfd_handle(), row.itemsize * (stop - start), offset + row.itemsize * start)
    return np.frombuffer(stored[: len(stored) // row.itemsize * row.itemsize], dtype=row)["length"]


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


def refuse_mixed(groups: Sequence[str], where: str) -> None:
    """DataError for rows without labels beside other groups: nothing would compare them with private rows."""
    if UNLABELLED in groups and len(groups) > 1:
        raise DataError(
            f"{where} the groups {', '.join(groups)}; allowed: {UNLABELLED} alone, rows without labels, or groups with "
            "labels; keep them in files of their own"
        )


def is_hdf5(path: Path) -> bool:
    with reading(str(path), "give another file"):
        return path.is_file() and h5py.is_hdf5(path)


def as_labels(y: NDArray[np.integer]) -> NDArray[np.integer]:
    return y.astype(np.int64 if y.ndim == 1 else np.uint8, copy=False)


class FeatureFile(FeatureReader):
    """A feature file open for reading, with its schema checked; `shown_as`: path for messages, if not `path`."""

    def __init__(self, path: Path, *, shown_as: Path | None = None) -> None:
        super().__init__(path)
        self._sets: dict[str, h5py.Dataset] = {}  # that passed the checks, by name
        self._extents: dict[str, Extents | None] = {}
        self._last_texts: dict[str, tuple[tuple[int, ...], list[str]]] = {}
        self.path = shown_as or path
        if not path.is_file():
            raise _no_file(path)
        self._file = open_hdf5(path, f"feature file {path}")
        self._as_opened = os.fstat(self._file.id.get_vfd_handle())
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
            raise DataError(f"{self.path} has no group 'train'; allowed: train, perhaps test, public; or {UNLABELLED}")
        groups = [name for name in (*GROUPS, UNLABELLED) if name in self._file.id]
        refuse_mixed(groups, f"{self.path} holds")
        shapes = {name: self._check_group(name, n_classes) for name in groups}
        self.sizes = {name: n_rows for name, (n_rows, _) in shapes.items()}
        widths = {width for _, width in shapes.values()}
        if len(widths) != 1:
            raise DataError(f"{self.path}: groups have {sorted(widths)} features; allowed: one width for all")
        self.n_features = widths.pop()
        if "text" in self._file.id:
            text, shape = data_set(self._file, self.path, "text/weights"), (self.n_features, n_classes)
            if text is None or text.shape != shape or text.dtype.kind not in "fiu":
                found = None if text is None else f"shape {text.shape} and type {text.dtype}"
                raise DataError(f"{self.path}: text/weights has {found}; allowed: numbers of shape {shape}")
            self._sets["text/weights"] = text
        refuse_shared_storage(self._sets, self.path)
        self.owned = [group for group in groups if f"{group}/owner" in self._sets]

    def _check_schema(self) -> None:
        attributes = self._file.attrs
        schema = attributes.get("schema_version")
        if not isinstance(schema, int | np.integer):
            raise DataError(f"{self.path} is HDF5 without a whole schema_version; allowed: files of linprobe import")
        if not 1 <= int(schema) <= SCHEMA_VERSION:
            raise DataError(
                f"{self.path} has schema version {schema}; allowed: {SCHEMA_VERSION}; make the file again, or upgrade "
                "linprobe"
            )
        if not attributes.get("complete", False):
            raise DataError(f"{self.path} is incomplete: its writing was interrupted; make it again")

    def _described(self) -> Description:
        texts = {name: text_attribute(self._file.attrs, self.path, name) for name in TEXT_ATTRIBUTES}
        for name, values in (("test_rows", ("public", PRIVATE)), ("task", TASKS), ("test_owners", (APART, SHARED))):
            texts[name] = texts[name] or values[0]
            if texts[name] not in values:
                raise DataError(f"{self.path}: {name} is {texts[name][:40]!r}; allowed: {', '.join(values)}")
        return Description(class_names=self._class_names(), **texts)

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
            raise DataError(f"{self.path} declares {counted(len(names), 'class')}; allowed: at least 2")
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
        if x.shape[:1] == (0,):
            raise DataError(f"{self.path}: there are no {name} rows; allowed: at least 1; make the file again")
        if x.ndim != 2 or min(x.shape) < 1 or x.dtype not in (np.float16, np.float32):
            raise DataError(f"{self.path}: {name}/x has shape {x.shape}, type {x.dtype}; allowed: 2 axes, float16/32")
        if x.id.get_type() != h5py.h5t.py_create(x.dtype):  # whose bytes `Extents` reads
            raise DataError(
                f"{self.path}: {name}/x is stored in another type, of {x.id.get_type().get_size()} bytes, that HDF5 "
                f"turns into {x.dtype}; allowed: float16/32 of IEEE 754; write x.astype('float32')"
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

    def _texts(self, group: str, kind: str, part: slice) -> list[str]:
        """Those of the last call are at hand, unless they were very many: a run asks often."""
        name = f"{group}/{kind}"
        bounds = part.indices(len(self._sets[name]))
        known, found = self._last_texts.get(name, ((), []))
        if known != bounds:
            with self._reading(name):
                found = texts(self._sets[name], self.path, name, part)
            if len(found) <= RECORDS_AT_ONCE:
                self._last_texts[name] = bounds, found
        return found

    def text_weights(self) -> Singles | None:
        if "text/weights" not in self._sets:
            return None
        with self._reading("text/weights"):
            stored = self._sets["text/weights"][:]
        with np.errstate(over="ignore"):
            weights: Singles = np.asarray(stored, dtype=np.float32)
        if (np.isinf(weights) & np.isfinite(stored)).any():
            raise DataError(
                f"{self.path}: text/weights holds {np.abs(stored).max():.3g}, beyond float32; allowed: up to "
                f"{LARGEST:.3g}; scale them"
            )
        return weights

    def rows(self, group: str, part: slice, kept: Mask | None = None) -> Floats:
        with self._reading(f"{group}/x"):
            start, stop, step = part.indices(self.sizes[group])
            if group not in self._extents:
                try:
                    self._extents[group] = Extents.of(self._sets[f"{group}/x"])
                except (RuntimeError, IndexError):  # a damaged file: reading through h5py gives the error message
                    self._extents[group] = None
            extents = self._extents[group]
            if extents is not None and step == 1:
                found = extents.read(start, stop, kept)
            else:
                found = np.asarray(self._sets[f"{group}/x"][part])
                found = found if kept is None else found[kept]
        if _written(os.fstat(self._file.id.get_vfd_handle())) != _written(self._as_opened):
            raise self.changed()  # the rows that were checked, and that a budget book knows, are others
        return found

    def identity(self) -> tuple[int, ...]:
        opened = self._as_opened
        return *_written(opened), opened.st_dev, opened.st_ino, opened.st_ctime_ns

    def fingerprint(self) -> str:
        with self._reading(PRIVATE_LOG):
            log = find(self._file, self.path, PRIVATE_LOG)
            return "" if log is None else text_attribute(h5py.Group(log).attrs, self.path, "fingerprint")

    def image_keys(self, group: str, kind: str = PIXELS) -> NDArray[np.uint8] | None:
        name, n_rows = f"{group}_key" if kind == PIXELS else f"{group}_source_key", self.sizes[group]
        with self._reading(PRIVATE_LOG):
            keys = data_set(self._file, self.path, f"{PRIVATE_LOG}/{name}")
            if keys is None:
                return None
            if keys.shape != (n_rows, IMAGE_KEY_BYTES) or keys.dtype != np.uint8:
                raise DataError(
                    f"{self.path}: {PRIVATE_LOG}/{name} has shape {keys.shape} and type {keys.dtype}; allowed: "
                    f"{IMAGE_KEY_BYTES} bytes for each row; make the file again"
                )
            return np.asarray(keys[:])

    def skipped(self) -> list[tuple[str, str]]:
        with self._reading(PRIVATE_LOG):
            columns = [data_set(self._file, self.path, f"{PRIVATE_LOG}/skipped_{name}") for name in ("id", "reason")]
            if None in columns:
                return []
            return list(zip(*(texts(column, self.path, PRIVATE_LOG, ALL) for column in columns), strict=True))

    def close(self) -> None:
        self._file.close()


def _written(found: os.stat_result) -> tuple[int, int]:
    """Size and time of the last write, which a change of mode and a hard link leave as they are."""
    return found.st_size, found.st_mtime_ns


def _no_file(path: Path) -> DataError:
    wrong = "is not a file" if path.exists() else "does not exist"
    wrong += "; make one with `linprobe extract` or `linprobe import`"
    if path.parts and path.parts[0].endswith(":"):  # of s3://bucket, a path keeps one slash
        wrong = "is an address; allowed: files on this machine; mount the store, or copy the file"
    elif path.is_dir():
        wrong = "is not a file but a folder; make one with `linprobe extract`, or give the shards in it as "
        wrong += f"'{path}/*.h5'"
    return DataError(f"feature file {path} {wrong}")


class Extents:
    """Byte ranges of an uncompressed data set. HDF5 would copy the rows once more, under a lock that blocks threads."""

    def __init__(self, descriptor: int, chunk: int, offsets: Indices, width: int, dtype: np.dtype[Any]) -> None:
        self._descriptor, self._chunk, self._offsets = descriptor, chunk, offsets
        self._width, self._dtype = width, dtype

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Self | None:
        """Extents of a data set of shape (n_rows, n_features); None for rows compressed, in parts, or elsewhere."""
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

    def read(self, start: int, stop: int, kept: Mask | None = None) -> Floats:
        """Rows start:stop, or those of them that are `kept`, shape (b, n_features). OSError: the file is truncated."""
        runs = [(start, max(start, stop))] if kept is None else (start + runs_of(kept)).tolist()
        row_bytes = self._width * self._dtype.itemsize
        if kept is not None and row_bytes * len(kept) < WORTH_A_CALL * len(runs):
            return self.read(start, stop)[kept]
        x = np.empty((sum(last - first for first, last in runs), self._width), dtype=self._dtype)
        view = x.view(np.uint8).reshape(-1).data
        for first, last in runs:
            view = self._fill(view, first, last)
        return x

    def _fill(self, view: memoryview, start: int, stop: int) -> memoryview:
        row_bytes = self._width * self._dtype.itemsize
        chunk_bytes = self._chunk * row_bytes
        while start < stop:
            first = last = start // self._chunk
            while (last + 1) * self._chunk < stop and self._offsets[last + 1] - self._offsets[last] == chunk_bytes:
                last += 1  # adjacent in the file
            end = min(stop, (last + 1) * self._chunk)
            offset = int(self._offsets[first]) + (start - first * self._chunk) * row_bytes
            size = (end - start) * row_bytes
            while size:
                count = os.preadv(self._descriptor, [view[:size]], offset)
                if not count:
                    raise OSError(f"the file ends at byte {offset}, inside its rows")
                view, offset, size = view[count:], offset + count, size - count
            start = end
        return view


OTHER_FILES = 256  # that a process may have open besides shards
ALIKE = ("class_names", "class_names_from", "ids_from", "normalisation", "test_rows", "task", "test_owners", "backbone")


def is_pattern(path: Path) -> bool:
    return glob.has_magic(str(path)) and not path.exists()


def is_there(path: Path) -> bool:
    return path.is_file() or (is_pattern(path) and bool(_matching(path)))


def _allow_open_files(count: int) -> None:
    import resource  # Linux and macOS alone have it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + OTHER_FILES:
        most = count + OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, count + OTHER_FILES)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _matching(pattern: Path) -> list[Path]:
    # Path.glob would find hidden files too, and half-written files are hidden
    return [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207


class ShardedFeatures(FeatureReader):
    """The rows of several alike feature files, one after another, with the digest of one file with these rows."""

    def __init__(self, pattern: Path) -> None:
        super().__init__(pattern)
        self.path = pattern
        self._open = ExitStack()
        paths = _matching(pattern)
        _allow_open_files(len(paths))
        try:
            self._shards = [self._open.enter_context(FeatureFile(path)) for path in paths]
            if not self._shards:
                raise DataError(f"no file matches {pattern}; allowed: feature files; make some with `linprobe extract`")
            for shard in self._shards[1:]:
                _refuse_different(self._shards[0], shard)
            self._settle()
        except BaseException:
            self._open.close()
            raise

    def _settle(self) -> None:
        first = self._shards[0]
        self.description, self.n_features = first.description, first.n_features
        groups = [name for name in (*GROUPS, UNLABELLED) if any(name in shard.sizes for shard in self._shards)]
        self._ends = {name: list(accumulate(shard.sizes.get(name, 0) for shard in self._shards)) for name in groups}
        self.sizes = {name: ends[-1] for name, ends in self._ends.items()}
        refuse_mixed(groups, f"{self.path}: the shards hold")
        for name in groups:
            having = self._having(name)
            without = [shard for shard in having if not shard.has_owners(name)]
            if without and len(without) < len(having):
                raise DataError(
                    f"{without[0].path} does not name the owners of its {name} rows, and other shards of {self.path} "
                    "do; allowed: owners in all or in none"
                )
        self.owned = [name for name in groups if any(shard.has_owners(name) for shard in self._shards)]
        self._text = self._text_weights()

    def identity(self) -> list[tuple[int, ...]]:
        return [shard.identity() for shard in self._shards]

    def _having(self, group: str) -> list[FeatureFile]:
        return [shard for shard in self._shards if group in shard.sizes]

    def _text_weights(self) -> Singles | None:
        stated = [(shard, text) for shard in self._shards if (text := shard.text_weights()) is not None]
        for shard, text in stated[1:]:
            if not np.array_equal(text, stated[0][1]):
                raise DataError(f"{shard.path} has other text weights than {stated[0][0].path}; allowed: the same")
        return stated[0][1] if stated else None

    def _parts(self, group: str, part: slice) -> Iterator[tuple[FeatureFile, slice]]:
        """The shards that hold rows `part` of a group, and where these are in the shard."""
        start, stop, _ = part.indices(self.sizes[group])
        ends = self._ends[group]
        number = bisect_right(ends, start)
        while start < stop:
            first = ends[number] - self._shards[number].sizes.get(group, 0)
            until = min(stop, ends[number])
            if start < until:
                yield self._shards[number], slice(start - first, until - first)
            start, number = until, number + 1

    def _joined(self, group: str, part: slice, read: Callable[[FeatureFile, str, slice], NDArray[Any]]) -> NDArray[Any]:
        parts = list(self._parts(group, part)) or [(self._having(group)[0], slice(0, 0))]
        found = [read(shard, group, here) for shard, here in parts]
        # of the byte order that is in the digest
        return found[0] if len(found) == 1 else np.concatenate(found, dtype=found[0].dtype)

    def rows(self, group: str, part: slice, kept: Mask | None = None) -> Floats:
        left = kept

        def read(shard: FeatureFile, group: str, here: slice) -> Floats:
            nonlocal left
            if left is None:
                return shard.rows(group, here)
            own, left = np.split(left, [here.stop - here.start])
            return shard.rows(group, here, own)

        return self._joined(group, part, read)

    def labels(self, group: str, part: slice = ALL) -> NDArray[Any]:
        return self._joined(group, part, FeatureFile.labels)

    def _texts(self, group: str, kind: str, part: slice) -> list[str]:
        return [text for shard, here in self._parts(group, part) for text in shard._texts(group, kind, here)]

    def text_weights(self) -> Singles | None:
        return self._text

    def image_keys(self, group: str, kind: str = PIXELS) -> NDArray[np.uint8] | None:
        """Digests of all shards; zeros, which equal no image, for rows of a shard that has none."""
        having = [(shard, shard.image_keys(group, kind)) for shard in self._having(group)]
        width = next((found.shape[1] for _, found in having if found is not None), None)
        if width is None:
            return None
        keys = [np.zeros((shard.sizes[group], width), np.uint8) if found is None else found for shard, found in having]
        return np.concatenate(keys)

    def close(self) -> None:
        self._open.close()


def _refuse_different(first: FeatureFile, other: FeatureFile) -> None:
    here, there = first.description, other.description
    facts = {name: (getattr(here, name), getattr(there, name)) for name in ALIKE}
    facts["width"] = first.n_features, other.n_features
    mine, theirs = (str(one.rows(next(iter(one.sizes)), slice(0, 0)).dtype) for one in (first, other))
    facts["type of numbers"] = mine, theirs
    found = ((name.replace("_", " "), *map(shown, pair)) for name, pair in facts.items() if pair[0] != pair[1])
    differs = next(found, None) or first_difference(extraction_of(here), extraction_of(there))
    if differs is not None:
        name, mine, theirs = differs
        raise DataError(
            f"{other.path} has {name} {theirs}, and {first.path} {mine}; make shards alike, or name them apart"
        )
