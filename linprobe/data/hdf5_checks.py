"""What an HDF5 file from a stranger must be before its content is read.

HDF5 data may lie in other files: behind external and soft links, in external storage, in virtual data sets. A FIFO
there would never end. A data set may declare far more than the file stores. Test rows may be the bytes of the private
rows. All of it is refused before memory is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from linprobe.data.array_files import MOST_COMPRESSED, too_large
from linprobe.data.owners import LONGEST_ID
from linprobe.errors import DataError, printable, read_fault

LONGEST_TEXT = 1 << 20  # characters of a text of a description
MOST_CHUNK = 1 << 28  # bytes of one chunk, which is read whole
AT_ONCE = 1 << 28  # bytes of text that one read may make
FEWEST_AT_ONCE = 64
while h5py.h5pl.size():  # a file must not make HDF5 load a library
    h5py.h5pl.remove(0)


def open_hdf5(path: Path, what: str) -> h5py.File:
    """An HDF5 file, open for reading; `what` is its kind and path, for messages.

    Raises:
        DataError: not HDF5, truncated, or not closed by its writer. LinprobeError: it cannot be read for a reason
            outside the file.
    """
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if (fault := read_fault(what, error)) is not None:
            raise fault from None
        if "already open for write" in str(error):
            raise DataError(
                f"{what} is being written, or its writer was killed; wait for the writer; if it has ended, make the "
                "file again"
            ) from None
        wrong = "is truncated" if "truncated" in str(error) else "is not an HDF5 file"
        raise DataError(f"{what} {wrong}; make it again with `linprobe import`") from None


def find(file: h5py.File, path: Path, name: str) -> Any:
    """The object `name` of a file, None if there is none.

    Raises:
        DataError: the name is a link, inside the file or out of it.
    """
    found: Any = file
    for part in name.split("/"):
        if not isinstance(found, h5py.Group) or part not in found.id:
            return None
        if not isinstance(found.get(part, getlink=True), h5py.HardLink):
            raise DataError(f"{path}: {name} is a link; allowed: data in the file itself; copy it in")
        found = found[part]
    return found


def data_set(file: h5py.File, path: Path, name: str) -> h5py.Dataset | None:
    """The data set `name` of a file, None if there is none; its content has not been read.

    Raises:
        DataError: it is a link, lies in another file, needs a plug-in, or declares more than the file stores.
    """
    found = find(file, path, name)
    if not isinstance(found, h5py.Dataset):
        return None
    plan = found.id.get_create_plist()
    if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
        raise DataError(f"{path}: {name} lies in another file; allowed: data in the file itself; copy it in")
    for code, _, _, filter_name in (plan.get_filter(place) for place in range(plan.get_nfilters())):
        if not h5py.h5z.filter_avail(code):
            called = printable(filter_name.decode("utf-8", "replace"))[:40] or "without a name"
            raise DataError(
                f"{path}: {name} is compressed by HDF5 filter {code} ({called}), which needs a plug-in; allowed: gzip, "
                "lzf, or no compression; write it anew"
            )
    chunk = int(np.prod(found.chunks, dtype=object)) * found.dtype.itemsize if found.chunks else 0
    if chunk > MOST_CHUNK:
        raise DataError(
            f"{path}: {name} has chunks of {chunk} bytes; allowed: {MOST_CHUNK}; write it with smaller ones"
        )
    declared, stored = int(found.size or 0) * found.dtype.itemsize, found.id.get_storage_size()
    if too_large(declared, stored) or (declared and not stored):
        raise DataError(
            f"{path}: {name} declares {declared} bytes and {stored} are stored; allowed: {MOST_COMPRESSED} times the "
            "stored ones; make the file again"
        )
    return found


def refuse_shared_storage(sets: Mapping[str, h5py.Dataset], path: Path) -> None:
    """Refuse checked data sets, by name, that lie in the same bytes of the file.

    Raises:
        DataError: two of `sets` are one data set, or their bytes overlap.
    """
    objects: dict[Any, str] = {}
    stored: list[tuple[int, int, str]] = []
    for name, data_set in sets.items():
        found = data_set.id
        first = objects.setdefault(found, name)
        if first != name:
            raise DataError(f"{path}: {first} and {name} are one data set; allowed: a data set for each; copy one")
        if found.get_create_plist().get_layout() == h5py.h5d.CHUNKED:
            found.chunk_iter(lambda chunk, name=name: stored.append((chunk.byte_offset, chunk.size, name)))
        elif found.get_offset() is not None:
            stored.append((found.get_offset(), found.get_storage_size(), name))
    end, last = 0, ""
    for start, size, name in sorted(stored):
        if start < end:
            raise DataError(
                f"{path}: {last} and {name} lie in the same bytes; allowed: bytes of its own for each; make it again"
            )
        end, last = start + size, name


def text_attributes(attributes: h5py.AttributeManager, path: Path, names: Iterable[str]) -> dict[str, str]:
    """`text_attribute` of each name."""
    return {name: text_attribute(attributes, path, name) for name in names}


def text_attribute(attributes: h5py.AttributeManager, path: Path, name: str, longest: int = LONGEST_TEXT) -> str:
    """A text attribute, empty if it is absent.

    Raises:
        DataError: an array, another type, text that is not UTF-8, or more than `longest` characters.
    """
    if name not in attributes:
        return ""
    if attributes.get_id(name).shape != ():
        raise DataError(f"{path}: {name} is no single text; make the file again")
    value = attributes[name]
    text = value.decode("utf-8") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise DataError(f"{path}: {name} is {type(value).__name__}; allowed: text; make the file again")
    if len(text) > longest:
        raise DataError(f"{path}: {name} has {len(text)} characters; allowed: {longest}; make the file again")
    text.encode("utf-8")  # h5py returns bytes that are no UTF-8 as surrogates
    return text


def texts(found: h5py.Dataset, path: Path, name: str, part: slice) -> list[str]:
    """Record ids of the rows `part` of a checked data set of text.

    Raises:
        DataError: an id of more than LONGEST_ID bytes.
    """
    start, stop, _ = part.indices(len(found))
    lengths = _stored_lengths(found, start, stop)
    if lengths is not None:
        _refuse_long(int(lengths.max(initial=0)), path, name)
        return [str(one) for one in found.asstr()[start:stop]]
    if h5py.check_string_dtype(found.dtype).length is None:
        # one stored text may stand in every row
        step = max(FEWEST_AT_ONCE, AT_ONCE // max(1, path.stat().st_size if path.is_file() else AT_ONCE))
    else:
        _refuse_long(found.dtype.itemsize, path, name)
        step = stop - start
    read: list[str] = []
    for first in range(start, stop, max(1, step)):
        some = [str(one) for one in found.asstr()[first : min(stop, first + step)]]
        _refuse_long(max(map(len, some)), path, name)
        read += some
    return read


def _stored_lengths(found: h5py.Dataset, start: int, stop: int) -> Any:
    """Lengths of texts of variable length, in bytes, (b,), as the file states them; None if they are not at hand.

    A row of such a data set is the length of its text, 4 bytes, and the place of its text in the file, 12 bytes.
    """
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


def _refuse_long(length: int, path: Path, name: str) -> None:
    if length > LONGEST_ID:
        raise DataError(f"{path}: {name} holds an id of {length} bytes; allowed: {LONGEST_ID}; shorten the ids")
