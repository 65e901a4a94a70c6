"""Array files and tables that a stranger may have made: no pickles, and no more memory than their bytes can stand for.

pyarrow allocates what the header of a Parquet page says of its length, and no option limits it, so these lengths are
read here first: https://github.com/apache/parquet-format (PageHeader, in Thrift's compact protocol).

`float_archive` makes `model.npz`. A release must carry nothing but the arrays, so a reader makes the archive anew and
compares every byte. `numpy.savez` leaves the headers to `zipfile`, which changed them. The archive here is that of
Python 3.11.4 and later, on a system other than Windows, and the same on every Python and NumPy. `is_float_archive`
also accepts those of earlier Pythons and of Windows.

Formats: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (ZIP and ZIP64),
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (.npy).
"""

from __future__ import annotations

import math
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from io import SEEK_END, BufferedReader
from itertools import product
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import DataError, reading, require

Arrays = dict[str, NDArray[Any]]

MOST_COMPRESSED = 100  # times that stored bytes may grow when they are read; rows of features shrink to a tenth at best
SMALL = 1 << 26  # bytes that may come from fewer stored ones, whatever the ratio: labels compress very well
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)
LONGEST_HEADER = 10_000  # bytes; NumPy's own limit
ZIP_MAGIC = b"PK\x03\x04"
WORD = 8  # bytes of a number of a table as it is read
PARQUET_UNCOMPRESSED, PARQUET_COMPRESSED = 2, 3  # fields of a page header: lengths
THRIFT_BOOLEANS, THRIFT_NUMBERS, THRIFT_BINARY, THRIFT_STRUCT = (1, 2), (4, 5, 6), 8, 12  # types of fields

FLOAT32 = "<f4"
NPY_MAGIC, NPY_PREFIX, NPY_ALIGNMENT = b"\x93NUMPY\x01\x00", 10, 64  # the prefix is magic and length of the header
GROWTH = 21  # characters that NumPy leaves for the length of the first axis
WINDOWS, UNIX = 0, 3  # systems that made a member
PLAIN_ZIP, ZIP64 = 20, 45  # versions of the format that a reader needs
ZIP64_FIELD = 1
IN_ZIP64 = 0xFFFFFFFF  # the ZIP64 field states the number
MOST_PLAIN = (1 << 31) - 1  # bytes; `zipfile` states larger numbers in ZIP64 fields
DOS_DATE = 0x0021  # 1980-01-01
OWNER_MAY_READ_AND_WRITE = 0o600 << 16  # external attributes


def too_large(declared: int, stored: int) -> bool:
    """Whether `declared` bytes are more than `stored` bytes of a file can stand for."""
    return declared > max(SMALL, MOST_COMPRESSED * stored)


def check_float32(x: NDArray[Any], where: str, rows: Sequence[int] | NDArray[np.integer] | None = None) -> None:
    """DataError for NaN, infinity, a number beyond float32, or a row of `x` (b, n_features) that float32 makes zero."""
    rows = range(len(x)) if rows is None else rows
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if bad.size:
        raise DataError(
            f"{where} has rows with NaN or infinity, first at row {rows[bad[0]]}; allowed: finite; repair or remove it"
        )
    if x.dtype.kind != "f" or x.dtype.itemsize <= np.dtype(np.float32).itemsize:
        return
    largest = np.abs(x).max(axis=1, initial=0)
    for row in np.flatnonzero(largest > LARGEST)[:1].tolist():
        column = int(np.abs(x[row]).argmax())
        raise DataError(
            f"{where} holds {x[row, column]:.3g} at row {rows[row]}, column {column}, beyond {LARGEST:.3g}, "
            "the largest float32; scale the features"
        )
    for row in np.flatnonzero((largest > 0) & (largest.astype(np.float32) == 0))[:1].tolist():
        raise DataError(
            f"{where} holds no value above {largest[row]:.3g} at row {rows[row]}, so float32, whose smallest number is "
            f"{SMALLEST:.3g}, makes the row zero; scale the features"
        )


def array_names(path: Path) -> list[str]:
    with reading(f"array file {path}", "write it again"), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_archive(path: Path, wanted: Collection[str] | None = None, opened: IO[bytes] | None = None) -> Arrays:
    """The arrays of an .npz file, only those `wanted` if given. DataError: damaged, a pickle, or beyond its bytes."""
    arrays: Arrays = {}
    with (
        reading(f"array file {path}", "write it again"),
        path.open("rb") if opened is None else nullcontext(opened) as file,
        zipfile.ZipFile(file) as archive,
    ):
        longest = file.seek(0, SEEK_END)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if wanted is not None and name not in wanted:
                continue
            if name in arrays:
                raise ValueError(f"it holds {name} twice")
            if too_large(member.file_size, member.compress_size):
                raise ValueError(
                    f"{name} grows from {member.compress_size} to {member.file_size} bytes; allowed: "
                    f"{MOST_COMPRESSED} times as many"
                )
            with archive.open(member) as stream:
                _header(stream, member.file_size, name, longest)
            with archive.open(member) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                stream.read(1)  # at the end of a member, zipfile compares its checksum
    return arrays


class _Member(NamedTuple):
    name: bytes
    header: bytes
    data: memoryview
    checksum: int


def float_archive(arrays: Mapping[str, NDArray[np.float32]]) -> list[bytes | memoryview]:
    """The parts of an .npz file of float32 arrays (any shape, at least one value), in the given order."""
    return list(_archive([_member(*named) for named in arrays.items()], UNIX, ZIP64))


def is_float_archive(content: bytes, arrays: Mapping[str, NDArray[np.float32]]) -> bool:
    """Whether `content` is an archive of these arrays by `float_archive`, or by `numpy.savez` on any Python."""
    members = [_member(*named) for named in arrays.items()]
    layouts = product((UNIX, WINDOWS), (ZIP64, PLAIN_ZIP))
    return any(_consists_of(content, _archive(members, system, version)) for system, version in layouts)


def _consists_of(content: bytes, parts: Iterator[bytes | memoryview]) -> bool:
    place = 0
    for part in parts:
        if not content.startswith(part, place):
            return False
        place += len(part)
    return place == len(content)


def _member(name: str, array: NDArray[np.float32]) -> _Member:
    header, data = _npy(array)
    return _Member(f"{name}.npy".encode(), header, data, zlib.crc32(data, zlib.crc32(header)))


def _npy(array: NDArray[Any]) -> tuple[bytes, memoryview]:
    """The header and the data of an .npy file, version 1.0."""
    by_column = array.flags.f_contiguous and not array.flags.c_contiguous
    stated = f"{{'descr': '{FLOAT32}', 'fortran_order': {by_column}, 'shape': {array.shape}, }}"
    stated += " " * (GROWTH - len(str(array.shape[-1 if by_column else 0])))
    length = len(stated) + 1
    length += NPY_ALIGNMENT - (NPY_PREFIX + length) % NPY_ALIGNMENT
    data = np.ascontiguousarray(array.T if by_column else array, dtype=FLOAT32)
    header = NPY_MAGIC + struct.pack("<H", length) + stated.ljust(length - 1).encode() + b"\n"
    return header, data.data.cast("B")


def _archive(members: list[_Member], system: int, version: int) -> Iterator[bytes | memoryview]:
    """The parts of the archive. With `version` ZIP64 only the ZIP64 field of a local header states the sizes."""
    listed, place = b"", 0
    for name, header, data, checksum in members:
        size = len(header) + len(data)
        needed = ZIP64 if size > MOST_PLAIN else version
        common = (0, 0, 0, DOS_DATE, checksum)  # flags, method, time, date
        sizes = [IN_ZIP64 if needed == ZIP64 else size] * 2
        local = struct.pack("<4s5H3L2H", b"PK\x03\x04", needed, *common, *sizes, len(name), 20)
        local += name + struct.pack("<2H2Q", ZIP64_FIELD, 16, size, size)
        large = [number for number in (size, size, place) if number > MOST_PLAIN]
        extra = struct.pack(f"<2H{len(large)}Q", ZIP64_FIELD, 8 * len(large), *large) if large else b""
        needed = ZIP64 if large else needed
        lengths = (_stated(size), _stated(size), len(name), len(extra))
        listed += struct.pack("<4s2B5H3L2H", b"PK\x01\x02", needed, system, needed, *common, *lengths)
        listed += struct.pack("<3H2L", 0, 0, 0, OWNER_MAY_READ_AND_WRITE, _stated(place)) + name + extra
        yield from (local, header, data)
        place += len(local) + size
    yield listed
    yield _end(len(members), len(listed), place)


def _stated(number: int) -> int:
    return number if number <= MOST_PLAIN else IN_ZIP64


def _end(count: int, length: int, place: int) -> bytes:
    """The end of the archive: how many members its list has, the length of the list in bytes, and its place."""
    end = b""
    if place > MOST_PLAIN:
        end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, ZIP64, ZIP64, 0, 0, count, count, length, place)
        end += struct.pack("<4sLQL", b"PK\x06\x07", 0, place + length, 1)
    return end + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, length, min(place, IN_ZIP64), 0)


def checked_arrays(path: Path, arrays: Arrays, **wanted: tuple[int, str]) -> list[NDArray[Any]]:
    """The wanted arrays, each with its number of axes and kind. Raises DataError: others in `arrays`, from `path`."""
    for name, (axes, kind) in wanted.items():
        found = arrays.get(name)
        if found is None or found.ndim != axes or found.dtype.kind != kind:
            described = "missing" if found is None else f"of shape {found.shape} and type {found.dtype}"
            raise DataError(f"{path}: {name} is {described}; restore it from a copy")
    return [arrays[name] for name in wanted]


class NpyRows:
    """The array of an .npy file, read row by row: one mapped into memory ends the process if its file is cut short.

    `array[rows]` reads the rows of a slice or of an array of numbers, and `np.asarray(array)` all. DataError: a file
    damaged, or written to since it was opened; a pickle.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as stream:
            self._as_opened = _written(stream)
            self.shape, self._by_column, self.dtype = _header(stream, path.stat().st_size, path.name)
            self._start = stream.tell()
        self.ndim = len(self.shape)

    @contextmanager
    def _opened(self) -> Iterator[BufferedReader]:
        with reading(f"array file {self._path}", "write it again"):
            if not self._path.exists():
                raise DataError(f"array file {self._path} does not exist; give a file that exists")
            with self._path.open("rb") as stream:
                yield stream

    def _check(self, stream: BufferedReader, *, whole: bool = True) -> None:
        if not whole or _written(stream) != self._as_opened:
            raise DataError(
                f"array file {self._path} was written to after it was opened; stop what writes to it, then run again"
            )

    def _fill(self, stream: BufferedReader, place: int, values: NDArray[Any]) -> None:
        """Read contiguous `values` from a place, counted in values."""
        stream.seek(self._start + place * self.dtype.itemsize)
        if stream.readinto(values.reshape(-1).view(np.uint8).data) != values.nbytes:
            self._check(stream, whole=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: int | slice | NDArray[np.integer]) -> NDArray[Any]:
        if isinstance(key, int | np.integer):
            return np.asarray(self[key : key + 1][0])
        rows = np.arange(*key.indices(len(self))) if isinstance(key, slice) else key
        found = np.empty((len(rows), *self.shape[1:]), self.dtype, order="F" if self._by_column else "C")
        if not found.size:
            return found
        width, first = math.prod(self.shape[1:]), int(rows.min())
        with self._opened() as stream:
            if self._by_column:
                column = np.empty(int(rows.max()) + 1 - first, self.dtype)
                for place, values in enumerate(found.T.reshape(width, len(rows))):
                    self._fill(stream, place * len(self) + first, column)
                    values[:] = column[rows - first]
            else:
                ends = np.flatnonzero(np.diff(rows, append=-1) != 1) + 1  # of runs of rows in the file
                for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
                    self._fill(stream, int(rows[start]) * width, found[start:end])
            self._check(stream)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        with self._opened() as stream:
            self._check(stream)
            found = np.load(stream, allow_pickle=False)
            self._check(stream)
        return np.asarray(found, dtype=dtype)


def _written(stream: IO[bytes]) -> tuple[int, ...]:
    """Which file is open, its size, and the time of the last write."""
    found = os.fstat(stream.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def open_array(path: Path, *, by_row: bool = True) -> NDArray[Any]:
    """The array of an .npy file, as `NpyRows` or in memory. DataError: as there."""
    stored = NpyRows(path)
    return cast("NDArray[Any]", stored) if by_row else np.asarray(stored)


def _header(stream: IO[bytes], size: int, name: str, longest: int = 0) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether by column, and type of an .npy file.

    ValueError unless plain values fill `size` bytes of `stream`, no axis longer than that or `longest`.
    """
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} has version {version} of the .npy format; allowed: (1, 0), (2, 0)")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(stream, max_header_size=LONGEST_HEADER)
    if dtype.hasobject:
        raise DataError(
            f"array {name} holds Python objects, not numbers or text; save features as x.astype('float32'), and labels "
            "and ids as np.array(labels, dtype=str)"
        )
    held, declared = size - stream.tell(), math.prod(shape) * dtype.itemsize
    if any(length < 0 for length in shape) or declared != held or max(shape, default=0) > max(size, longest):
        raise ValueError(f"{name} declares shape {shape} of {dtype}, {declared} bytes, and holds {held}")
    return shape, by_column, dtype


def load_torch(path: Path) -> Any:
    """What torch reads from a .pt file, running no code, perhaps larger: `tensor_fits`. DataError: damaged, or more."""
    require("torch", f"file {path}")
    import torch

    with reading(f"file {path}", "save plain tensors or model.state_dict() again"):
        with path.open("rb") as stream:
            zipped = stream.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        if zipped:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise ValueError("it declares more bytes than it has")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of old formats and of sparse tensors
                return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:  # torch's message advises to run the code in the file
            raise ValueError("it holds more than tensors, or is damaged") from None


def tensor_fits(tensor: Any, path: Path) -> bool:
    """Whether a tensor is dense, real, in memory, and not larger than the file it came from."""
    import torch

    dense = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_complex() or tensor.is_quantized)
    return bool(dense and tensor.numel() * tensor.element_size() <= path.stat().st_size)


def parquet_table(source: Path) -> Any:
    """The table in a Parquet file, text in dictionaries. DataError: it declares more than its bytes can stand for."""
    require("arrow", "a Parquet file")
    from pyarrow import parquet, types

    with parquet.ParquetFile(source) as file:
        footer, fields = file.metadata, file.schema_arrow
    refuse_twice(fields.names, str(source))
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    _refuse_large(sum(max(WORD * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks), source)
    with source.open("rb") as stream:
        _refuse_large(sum(size for chunk in chunks for size in _page_sizes(stream, chunk)), source)
    texts = [field.name for field in fields if types.is_string(field.type) or types.is_binary(field.type)]
    return parquet.read_table(source, read_dictionary=texts, use_threads=False)


def refuse_twice(columns: Sequence[str], where: str) -> None:
    counts = Counter(columns)
    for place, name in enumerate(columns, 1):
        if counts[name] > 1:
            raise DataError(f"{where}, column {place}: {counts[name]} columns are named {name!r}; allowed: one")


def _refuse_large(declared: int, source: Path) -> None:
    stored = source.stat().st_size
    if too_large(declared, stored):
        raise DataError(
            f"{source} declares {declared} bytes and has {stored}; allowed: {MOST_COMPRESSED} times; write it again"
        )


def _byte(content: IO[bytes], place: int) -> int:
    """The byte of a buffered file at a place. A map of a file that is cut off meanwhile would end the process."""
    content.seek(place)
    return content.read(1)[0]


def _page_sizes(content: IO[bytes], chunk: Any) -> Iterator[int]:
    """The bytes that each page of a column chunk has once it is decompressed. ValueError for a damaged header."""
    place = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < place:
        place = chunk.dictionary_page_offset
    end = place + chunk.total_compressed_size
    while place < end:
        fields, start = _thrift_struct(content, place)
        compressed = fields.get(PARQUET_COMPRESSED, -1)
        if place < 0 or compressed < 0 or PARQUET_UNCOMPRESSED not in fields:
            raise ValueError("damaged header of a page")
        yield fields[PARQUET_UNCOMPRESSED]
        place = start + compressed


def _thrift_struct(content: IO[bytes], place: int) -> tuple[dict[int, int], int]:
    """The whole numbers of a struct by field, and where it ends. ValueError for types that no page header has."""
    fields: dict[int, int] = {}
    number = 0
    while _byte(content, place) & 15:
        step, kind = divmod(_byte(content, place), 16)
        place += 1
        if step:
            number += step
        else:
            number, place = _thrift_number(content, place)
        if kind in THRIFT_NUMBERS:
            fields[number], place = _thrift_number(content, place)
        elif kind == THRIFT_BINARY:
            length, place = _varint(content, place)
            place += length
        elif kind == THRIFT_STRUCT:
            _, place = _thrift_struct(content, place)
        elif kind not in THRIFT_BOOLEANS:  # their value is in the type
            raise ValueError(f"damaged header of a page: type {kind}")
    return fields, place + 1


def _thrift_number(content: IO[bytes], place: int) -> tuple[int, int]:
    value, place = _varint(content, place)
    return (value >> 1) ^ -(value & 1), place


def _varint(content: IO[bytes], place: int) -> tuple[int, int]:
    value = shift = 0
    while _byte(content, place) & 128:
        value |= (_byte(content, place) & 127) << shift
        place, shift = place + 1, shift + 7
        if shift > 63:
            raise ValueError("damaged header of a page: a number of more than 10 bytes")
    return value | _byte(content, place) << shift, place + 1
