"""The feature file: HDF5 with `train`, `test`, optional `public` rows and optional text weights.

The schema is documented in `features/README.md`. Files are written under a temporary name and renamed when complete;
rows are read in blocks, so that memory does not grow with their number.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from linprobe._version import __version__
from linprobe.data.extents import Extents
from linprobe.data.rows import BLOCK_ROWS
from linprobe.errors import DataError

SCHEMA_VERSION = 1
GROUPS = ("train", "test", "public")
CHUNK_BYTES = 1 << 19
RECORDS_AT_ONCE = 1 << 16
ALL = slice(None)
PRIVATE_LOG = "private_log"


@dataclass(frozen=True)
class Description:
    """What a feature file says about itself.

    Attributes:
        class_names: names in label order; declared, never read off the private labels.
        backbone, weights, weights_digest, preprocessing, normalisation, source: free text, empty if unknown.
        tensor: which tensor of the network a row is.
        extraction: how `linprobe extract` made the file, as JSON. extraction_digest: SHA-256 of what decides whether
            two files' rows can be compared: network, weights, tensor, preprocessing.
        class_names_from: where the list of classes came from.
    """

    class_names: tuple[str, ...]
    backbone: str = ""
    weights: str = ""
    weights_digest: str = ""
    preprocessing: str = ""
    normalisation: str = "none"
    source: str = ""
    tensor: str = ""
    extraction: str = ""
    extraction_digest: str = ""
    class_names_from: str = "declared"
    tool_version: str = field(default=__version__)


class _FailureKeepingFile(io.FileIO):
    """A file that never fails under h5py, whose library crashes on a full disk, but keeps the failure for later."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`, or remember why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while self.failure is None and len(view):
                view = view[super().write(view) :]
        except OSError as error:
            self.failure = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Truncate, or remember why not."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


class FeatureWriter:
    """Write a feature file; it appears under its own name only when the `with` block ends without an error.

    Args:
        path: the file to make; replaced if it exists.
        description: class names and provenance.
    """

    def __init__(self, path: Path, description: Description) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        if not path.parent.is_dir():
            raise DataError(f"folder {path.parent} does not exist; make it, or give --out another place")
        self._stream = _FailureKeepingFile(self._temporary, "w+")
        self._file = h5py.File(self._stream, "w")
        try:
            self._file.attrs["schema_version"] = SCHEMA_VERSION
            self._file.attrs["complete"] = False
            self._file.attrs["class_names"] = json.dumps(list(description.class_names))
            for name in _TEXT_ATTRIBUTES:
                # a file name may hold bytes that are no text
                self._file.attrs[name] = getattr(description, name).encode("utf-8", "replace").decode()
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        self._file.close()
        self._stream.close()
        self._temporary.unlink(missing_ok=True)

    def write_group(
        self,
        name: str,
        n_rows: int,
        n_features: int,
        blocks: Iterable[NDArray[Any]],
        y: NDArray[np.integer],
        ids: Iterable[str],
        dtype: type[np.floating] = np.float32,
    ) -> None:
        """Write group `name`: `blocks` of rows in order, labels `y` (n_rows,), and one stable id a row."""
        if n_rows < 1 or n_features < 1:
            raise DataError(
                f"{self._path}: {name} has {n_rows} rows of {n_features} features; allowed: at least 1 of each"
            )
        group = self._file.create_group(name)
        itemsize = np.dtype(dtype).itemsize
        chunk = max(1, min(n_rows, CHUNK_BYTES // max(1, n_features * itemsize)))
        x = group.create_dataset("x", (n_rows, n_features), dtype=dtype, chunks=(chunk, n_features))
        start = 0
        for block in blocks:
            x[start : start + len(block)] = block
            start += len(block)
            if self._stream.failure is not None:
                raise self._stream.failure
        if start != n_rows:
            raise DataError(f"{self._path}: {name} got {start} rows; allowed: the {n_rows} that were announced")
        group.create_dataset("y", data=np.asarray(y, dtype=np.int64))
        group.create_dataset("id", data=list(ids), dtype=h5py.string_dtype("utf-8"))

    def write_private_log(
        self,
        fingerprint: str,
        converted: str,
        skipped: Sequence[tuple[str, str]],
        keys: Mapping[str, NDArray[np.uint8]],
    ) -> None:
        """Store what `extract` notes about the images: a fingerprint, conversions, skipped ids with the reason, and
        for each group a digest of every image's pixels, shape (n_rows, bytes), zero for augmented views."""
        group = self._file.create_group(PRIVATE_LOG)
        group.attrs["fingerprint"] = fingerprint
        group.attrs["converted"] = converted
        for name, digests in keys.items():
            group.create_dataset(f"{name}_key", data=digests)
        text = h5py.string_dtype("utf-8")
        group.create_dataset("skipped_id", data=[name for name, _ in skipped], dtype=text)
        group.create_dataset("skipped_reason", data=[reason for _, reason in skipped], dtype=text)

    def write_text_weights(self, weights: NDArray[np.floating]) -> None:
        """Store class-name encodings, shape (n_features, n_classes)."""
        self._file.create_dataset("text/weights", data=np.asarray(weights, dtype=np.float32))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.attrs["complete"] = True
            self._file.close()
            if kind is None and self._stream.failure is not None:
                raise self._stream.failure
            if kind is None:
                os.fsync(self._stream.fileno())
                with FeatureFile(self._temporary, shown_as=self._path) as written:
                    written.scan()
                self._temporary.replace(self._path)
        finally:
            self._discard()


_TEXT_ATTRIBUTES = (
    "backbone",
    "weights",
    "weights_digest",
    "preprocessing",
    "normalisation",
    "source",
    "tensor",
    "extraction",
    "extraction_digest",
    "class_names_from",
    "tool_version",
)


def common_keys(private: NDArray[np.uint8], public: NDArray[np.uint8]) -> bool:
    """Whether two sets of image keys, each of shape (rows, bytes), have one in common, zeros aside."""
    first, second = ({row.tobytes() for row in keys if row.any()} for keys in (private, public))
    return not first.isdisjoint(second)


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 files do."""
    return path.is_file() and h5py.is_hdf5(path)


class FeatureReader(ABC):
    """A feature file's rows, wherever they are.

    Attributes:
        path: as shown to people. description: what the file says about itself.
        sizes: number of rows of each group. n_features: their width.
    """

    path: Path
    description: Description
    sizes: dict[str, int]
    n_features: int

    def __init__(self) -> None:
        self._digests: dict[tuple[str, bytes], str] = {}

    @abstractmethod
    def rows(self, group: str, part: slice) -> NDArray[np.floating]:
        """Raw rows of a group, shape (b, n_features)."""

    @abstractmethod
    def labels(self, group: str, part: slice = ALL) -> NDArray[np.int64]:
        """Class indices of a group, shape (b,)."""

    @abstractmethod
    def ids(self, group: str, part: slice = ALL) -> list[str]:
        """Record ids of a group, in row order."""

    @abstractmethod
    def text_weights(self) -> NDArray[np.float32] | None:
        """Class-name encodings, shape (n_features, n_classes), or None."""

    @abstractmethod
    def image_keys(self, group: str) -> NDArray[np.uint8] | None:
        """A digest of every image's pixels, shape (n_rows, bytes); None if `extract` did not make the file. Private."""

    def blocks(
        self, group: str, keep: NDArray[np.bool_] | None = None, block_rows: int = BLOCK_ROWS
    ) -> Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]:
        """Blocks `(x, y)` of a group in row order, only the rows where `keep` (n_rows,) is true if given.

        A block of which no row is kept is not read.
        """
        labels_start, labels = 0, np.empty(0, dtype=np.int64)
        for start in range(0, self.sizes[group], block_rows):
            part = slice(start, min(start + block_rows, self.sizes[group]))
            if keep is not None and not keep[part].any():
                continue
            if part.stop > labels_start + len(labels):
                labels_start, labels = start, self.labels(group, slice(start, start + max(block_rows, RECORDS_AT_ONCE)))
            kept = ALL if keep is None or keep[part].all() else keep[part]
            yield self.rows(group, part)[kept], labels[part.start - labels_start : part.stop - labels_start][kept]

    def id_batches(self, group: str, keep: NDArray[np.bool_] | None = None) -> Iterator[list[str]]:
        """The ids of a group in row order, some at a time, only those where `keep` (n_rows,) is true if given."""
        for start in range(0, self.sizes[group], RECORDS_AT_ONCE):
            part = slice(start, start + RECORDS_AT_ONCE)
            if keep is None:
                yield self.ids(group, part)
            elif keep[part].any():
                yield list(compress(self.ids(group, part), keep[part]))

    def digest(self, group: str, keep: NDArray[np.bool_] | None = None) -> str:
        """SHA-256 of a group's ids, labels and rows with the class names, streamed once. Of `train`: private."""
        mask = b"" if keep is None else hashlib.sha256(np.packbits(keep).data).digest()
        if (group, mask) not in self._digests:
            self._digests[group, mask] = self._digest(group, keep)
        return self._digests[group, mask]

    def _digest(self, group: str, keep: NDArray[np.bool_] | None) -> str:
        sha = hashlib.sha256(json.dumps(self.description.class_names).encode())
        separator = ""
        for ids in self.id_batches(group, keep):
            sha.update((separator + "\0".join(ids)).encode())
            separator = "\0"
        for rows, labels in self.blocks(group, keep):
            sha.update(str((rows.shape, rows.dtype)).encode())
            sha.update(np.ascontiguousarray(rows).data)
            sha.update(labels.astype("<i8").tobytes())
        return sha.hexdigest()


class FeatureFile(FeatureReader):
    """A feature file opened for reading and checked: schema, shapes, labels, classes. Use as a context manager.

    Raises:
        DataError: no such file, not HDF5, truncated, incomplete, a newer schema, a missing group, wrong shapes,
            labels outside the declared classes, an empty class list.
    """

    def __init__(self, path: Path, *, shown_as: Path | None = None) -> None:
        super().__init__()
        self._extents: dict[str, Extents | None] = {}
        self.path = shown_as or path
        if not path.is_file():
            raise DataError(
                f"feature file {path} does not exist; make one with `linprobe extract` or `linprobe import`"
            )
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            what = "is truncated" if "truncated" in str(error) else "is not an HDF5 file"
            raise DataError(f"feature file {path} {what}; make it again with `linprobe import`") from None
        try:
            self._check()
        except BaseException:
            self._file.close()
            raise

    def _check(self) -> None:
        attributes = self._file.attrs
        schema = attributes.get("schema_version")
        if not isinstance(schema, int | np.integer):
            raise DataError(
                f"{self.path} is HDF5 but has no whole-number schema_version; allowed: files made by linprobe import"
            )
        if int(schema) > SCHEMA_VERSION:
            raise DataError(
                f"{self.path} has schema version {schema}; this linprobe reads up to {SCHEMA_VERSION}; upgrade linprobe"
            )
        if not attributes.get("complete", False):
            raise DataError(f"{self.path} is incomplete: its writing was interrupted; make it again")
        try:
            listed = json.loads(attributes["class_names"])
            if not isinstance(listed, list):
                raise TypeError(f"not a JSON list but {listed!r}")
            names = tuple(str(name) for name in listed)
            texts = {name: str(attributes.get(name, "")) for name in _TEXT_ATTRIBUTES}
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"{self.path} has no readable class_names ({error}); make it again") from None
        if len(names) < 2 or len(set(names)) != len(names):
            raise DataError(f"{self.path} declares {len(names)} classes; allowed: at least 2, all different")
        self.description = Description(class_names=names, **texts)
        self.sizes: dict[str, int] = {}
        widths = set()
        for name in GROUPS:
            if name not in self._file:
                if name == "public":
                    continue
                raise DataError(f"{self.path} has no group {name!r}; it needs train and test")
            self.sizes[name] = self._check_group(name, len(names))
            widths.add(self._file[name]["x"].shape[1])
        if len(widths) != 1:
            raise DataError(f"{self.path}: groups have {sorted(widths)} features; allowed: one width for all")
        self.n_features = int(widths.pop())
        text = self._file.get("text/weights")
        if text is not None and text.shape != (self.n_features, len(names)):
            raise DataError(
                f"{self.path}: text/weights has shape {text.shape}; allowed: {(self.n_features, len(names))}"
            )

    def _check_group(self, name: str, n_classes: int) -> int:
        group = self._file[name]
        for part in ("x", "y", "id"):
            if not isinstance(group, h5py.Group) or not isinstance(group.get(part), h5py.Dataset):
                raise DataError(f"{self.path}: group {name!r} has no data set {part!r}; make the file again")
        x, y, ids = group["x"], group["y"], group["id"]
        if x.shape[:1] == (0,):
            raise DataError(f"{self.path}: there are no {name} rows; allowed: at least 1; make the file again")
        if x.ndim != 2 or min(x.shape) < 1 or x.dtype not in (np.float16, np.float32):
            raise DataError(
                f"{self.path}: {name}/x has shape {x.shape} and type {x.dtype}; allowed: (rows, features), float16/32"
            )
        if y.shape != (x.shape[0],) or ids.shape != (x.shape[0],):
            raise DataError(
                f"{self.path}: {name} has {x.shape[0]} rows, {y.size} labels and {ids.size} ids; "
                "allowed: one of each a row"
            )
        if y.dtype.kind not in "iu" or h5py.check_string_dtype(ids.dtype) is None:
            raise DataError(
                f"{self.path}: {name} labels have type {y.dtype} and its id {ids.dtype}; allowed: integers, and text"
            )
        labels = y[:]
        wrong = np.flatnonzero((labels < 0) | (labels >= n_classes))
        if wrong.size:
            raise DataError(
                f"{self.path}: {name} has {wrong.size} labels outside the {n_classes} declared classes, first at row "
                f"{wrong[0]} (label {labels[wrong[0]]}); allowed: 0 to {n_classes - 1}"
            )
        return int(x.shape[0])

    def labels(self, group: str, part: slice = ALL) -> NDArray[np.int64]:
        """Class indices of a group, shape (b,)."""
        return np.asarray(self._file[group]["y"][part], dtype=np.int64)

    def ids(self, group: str, part: slice = ALL) -> list[str]:
        """Record ids of a group, in row order."""
        return [str(name) for name in self._file[group]["id"].asstr()[part]]

    def text_weights(self) -> NDArray[np.float32] | None:
        """Class-name encodings, shape (n_features, n_classes), or None."""
        text = self._file.get("text/weights")
        return None if text is None else np.asarray(text[:], dtype=np.float32)

    def rows(self, group: str, part: slice) -> NDArray[np.floating]:
        """Raw rows of a group, shape (b, n_features)."""
        start, stop, step = part.indices(self.sizes[group])
        if group not in self._extents:
            try:
                self._extents[group] = Extents.of(self._file[group]["x"])
            except (RuntimeError, IndexError):  # damaged, as reading it will tell
                self._extents[group] = None
        extents = self._extents[group]
        if extents is None or step != 1:
            return np.asarray(self._file[group]["x"][part])
        return extents.read(start, stop)

    def fingerprint(self) -> str:
        """The fingerprint of the images this file was made from; empty if it was not made by `extract`. Private."""
        log = self._file.get(PRIVATE_LOG)
        return "" if log is None else str(log.attrs.get("fingerprint", ""))

    def image_keys(self, group: str) -> NDArray[np.uint8] | None:
        """A digest of every image's pixels, shape (n_rows, bytes); None if `extract` did not make the file. Private."""
        log = self._file.get(PRIVATE_LOG)
        return None if log is None or f"{group}_key" not in log else np.asarray(log[f"{group}_key"][:], dtype=np.uint8)

    def skipped(self) -> list[tuple[str, str]]:
        """Images that `extract` left out, as (id, reason). Private."""
        log = self._file.get(PRIVATE_LOG)
        if log is None:
            return []
        return list(zip(log["skipped_id"].asstr()[:], log["skipped_reason"].asstr()[:], strict=True))

    def converted(self) -> dict[str, int]:
        """Images that `extract` converted, by conversion. Private."""
        log = self._file.get(PRIVATE_LOG)
        return {} if log is None else dict(json.loads(log.attrs["converted"]))

    def scan(self) -> None:
        """Read every row once and refuse NaN, infinities, repeated ids, and ids both private and public.

        Raises:
            DataError: with the number of bad rows and the first of them.
        """
        hashes: dict[str, NDArray[np.int64]] = {}
        for group in self.sizes:
            bad: list[int] = []
            start = 0
            try:
                for rows, _ in self.blocks(group):
                    finite = np.isfinite(rows).all(axis=1)
                    bad.extend((start + np.flatnonzero(~finite)).tolist())
                    start += len(rows)
            except OSError as error:
                raise DataError(f"{self.path}: {group}/x cannot be read ({error}); make the file again") from None
            if bad:
                raise DataError(
                    f"{self.path}: {group} has {len(bad)} rows with NaN or infinity, first at rows {bad[:5]}; "
                    "allowed: finite features; remove or repair those rows"
                )
            hashes[group] = self._id_hashes(group)
            if repeated := self._repeated(group, hashes[group]):
                raise DataError(f"{self.path}: {group} has {repeated} repeated ids; a record has one")
            if group == "public" and self._share_ids(group, "train", np.intersect1d(hashes[group], hashes["train"])):
                raise DataError(f"{self.path}: some ids are both in train and in public; a record is private or public")
        text = self.text_weights()
        if text is not None and not np.isfinite(text).all():
            raise DataError(f"{self.path}: text/weights holds NaN or infinity; allowed: finite numbers; make it again")

    def _id_hashes(self, group: str) -> NDArray[np.int64]:
        """A 64-bit hash of each id of a group, sorted, shape (n_rows,)."""
        ids = (name for batch in self.id_batches(group) for name in batch)
        hashes = np.fromiter(map(hash, ids), dtype=np.int64, count=self.sizes[group])
        hashes.sort()
        return hashes

    def _with_hash(self, group: str, hashes: NDArray[np.int64]) -> list[str]:
        """The ids of a group that have one of some sorted hashes."""
        wanted = set(hashes.tolist())
        return [name for batch in self.id_batches(group) for name in batch if hash(name) in wanted]

    def _repeated(self, group: str, hashes: NDArray[np.int64]) -> int:
        """How many ids of a group repeat another; equal hashes alone do not count."""
        equal = hashes[1:][hashes[1:] == hashes[:-1]]
        names = self._with_hash(group, equal) if equal.size else []
        return len(names) - len(set(names))

    def _share_ids(self, group: str, other: str, hashes: NDArray[np.int64]) -> bool:
        """Whether two groups have an id in common, given the hashes they have in common."""
        if not hashes.size:
            return False
        return not set(self._with_hash(group, hashes)).isdisjoint(self._with_hash(other, hashes))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoadedFeatures(FeatureReader):
    """A feature file read into memory once, to be used many times and by other processes."""

    def __init__(self, features: FeatureReader) -> None:
        super().__init__()
        self.path, self.description = features.path, features.description
        self.sizes, self.n_features = dict(features.sizes), features.n_features
        self._rows = {group: features.rows(group, slice(None)) for group in self.sizes}
        self._labels = {group: features.labels(group) for group in self.sizes}
        self._ids = {group: features.ids(group) for group in self.sizes}
        self._keys = {group: features.image_keys(group) for group in self.sizes}
        self._text = features.text_weights()

    def rows(self, group: str, part: slice) -> NDArray[np.floating]:
        """Raw rows of a group, shape (b, n_features)."""
        return self._rows[group][part]

    def labels(self, group: str, part: slice = ALL) -> NDArray[np.int64]:
        """Class indices of a group, shape (b,)."""
        return self._labels[group][part]

    def ids(self, group: str, part: slice = ALL) -> list[str]:
        """Record ids of a group, in row order."""
        return self._ids[group][part]

    def text_weights(self) -> NDArray[np.float32] | None:
        """Class-name encodings, shape (n_features, n_classes), or None."""
        return self._text

    def image_keys(self, group: str) -> NDArray[np.uint8] | None:
        """A digest of every image's pixels, shape (n_rows, bytes); None if `extract` did not make the file. Private."""
        return self._keys[group]
