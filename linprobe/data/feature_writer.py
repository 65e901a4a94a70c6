"""Write a feature file under a temporary name, check it, and rename it when it is complete."""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from linprobe.atomic_files import open_private
from linprobe.data.feature_file import PRIVATE_LOG, SCHEMA_VERSION, TEXT_ATTRIBUTES, FeatureFile, as_labels
from linprobe.data.feature_reader import IMAGE_KEY_BYTES, Description
from linprobe.data.row_checks import check_rows
from linprobe.errors import DataError
from linprobe.parallel.array_api import Floats

CHUNK_BYTES = 1 << 19


class _FailureKeepingFile(io.FileIO):
    """A file whose writes never fail: the HDF5 library crashes on a full disk. `failure` keeps the first error."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while self.failure is None and len(view):
                view = view[super().write(view) :]
        except OSError as error:
            self.failure = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


class FeatureWriter:
    """A feature file being written, mode 0600, and checked at the end; on an error, `path` is unchanged."""

    def __init__(self, path: Path, description: Description, *, shown_as: Path | None = None) -> None:
        self._path, self._shown = path, shown_as or path
        self.note: str | None = None
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        if not path.parent.is_dir():
            raise DataError(f"folder {path.parent} does not exist; make it, or give --out another place")
        self._stream = _FailureKeepingFile(self._temporary, "w+", opener=open_private)
        self._file = h5py.File(self._stream, "w")
        try:
            self._file.attrs["schema_version"] = SCHEMA_VERSION
            self._file.attrs["complete"] = False
            self._file.attrs["class_names"] = json.dumps(list(description.class_names))
            for name in TEXT_ATTRIBUTES:
                # a file name may contain bytes that are not UTF-8
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
        y: NDArray[np.integer] | None,
        ids: Iterable[str],
        dtype: type[np.floating] = np.float32,
        owners: Sequence[str] | None = None,
    ) -> None:
        """Write `n_rows` rows in `blocks` (b, n_features), labels or None, ids, which are read last, and owners."""
        if n_rows < 1 or n_features < 1:
            raise DataError(f"{self._shown}: {name} has {n_rows} rows of {n_features} features; allowed: 1 or more")
        group = self._file.create_group(name)
        chunk = max(1, min(n_rows, CHUNK_BYTES // (n_features * np.dtype(dtype).itemsize)))
        x = group.create_dataset("x", (n_rows, n_features), dtype=dtype, chunks=(chunk, n_features))
        start = 0
        for block in blocks:
            x[start : start + len(block)] = block
            start += len(block)
            if self._stream.failure is not None:
                raise self._stream.failure
        if start != n_rows:
            raise DataError(f"{self._shown}: {name} got {start} rows; allowed: {n_rows}, the number given")
        if y is not None:
            group.create_dataset("y", data=as_labels(np.asarray(y)))
        for part, values in (("id", ids), ("owner", owners)):
            if values is None:
                continue
            texts = list(values)
            try:
                group.create_dataset(part, data=texts, dtype=h5py.string_dtype("utf-8"))
            except ValueError:  # HDF5 ends a text at a NUL
                raise DataError(f"{self._shown}: an {part} of {name} holds NUL or is no Unicode; rename it") from None

    def write_private_log(
        self, fingerprint: str, skipped: Sequence[tuple[str, str]], keys: Mapping[str, NDArray[np.uint8]]
    ) -> None:
        """Store skipped images, and for each group digests of every image's pixels and of the image before."""
        group = self._file.create_group(PRIVATE_LOG)
        group.attrs["fingerprint"] = fingerprint
        for name, digests in keys.items():
            group.create_dataset(f"{name}_key", data=digests[:, :IMAGE_KEY_BYTES])
            group.create_dataset(f"{name}_source_key", data=digests[:, IMAGE_KEY_BYTES:])
        text = h5py.string_dtype("utf-8")
        group.create_dataset("skipped_id", data=[name for name, _ in skipped], dtype=text)
        group.create_dataset("skipped_reason", data=[reason for _, reason in skipped], dtype=text)

    def write_text_weights(self, weights: Floats) -> None:
        self._file.create_dataset("text/weights", data=np.asarray(weights, dtype=np.float32))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                return
            self._file.attrs["complete"] = True
            self._file.close()
            if self._stream.failure is not None:
                raise self._stream.failure
            try:
                os.fsync(self._stream.fileno())
            except OSError as error:  # which has no name of a file
                raise OSError(error.errno, error.strerror, str(self._path)) from None
            with FeatureFile(self._temporary, shown_as=self._shown) as written:
                check_rows(written)
                self.note = None if written.equal is None else written.equal.note
            self._temporary.replace(self._path)
        finally:
            self._discard()
