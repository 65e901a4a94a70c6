"""The bytes of `model.npz`, the same on every Python and NumPy: an archive of float32 arrays, stored and undated.

A release must carry nothing but the arrays. So a reader makes the archive anew and compares every byte.

`numpy.savez` leaves the headers to `zipfile`, which changed them. The archive here is that of Python 3.11.4 and later,
on a system other than Windows. `is_float_archive` also accepts those of earlier Pythons and of Windows.

Formats: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (ZIP and ZIP64),
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (.npy).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FLOAT32 = "<f4"
NPY_MAGIC, NPY_PREFIX, NPY_ALIGNMENT = b"\x93NUMPY\x01\x00", 10, 64  # the prefix is magic and length of the header
GROWTH = 21  # characters that NumPy leaves for the length of the first axis
WINDOWS, UNIX = 0, 3  # systems that made a member
PLAIN, ZIP64 = 20, 45  # versions of the format that a reader needs
ZIP64_FIELD = 1
UNSTATED = 0xFFFFFFFF  # the ZIP64 field states the number
MOST_PLAIN = (1 << 31) - 1  # bytes; `zipfile` states larger numbers in ZIP64 fields
OLDEST_DATE = 0x0021  # 1980-01-01
OWNER_MAY_READ_AND_WRITE = 0o600 << 16  # external attributes


class _Member(NamedTuple):
    name: bytes
    header: bytes
    data: memoryview
    checksum: int


def float_archive(arrays: Mapping[str, NDArray[np.float32]]) -> Iterator[bytes | memoryview]:
    """The parts of an .npz file of float32 arrays (any shape, at least one value), in the given order."""
    return _archive([_member(*named) for named in arrays.items()], UNIX, ZIP64)


def is_float_archive(content: bytes, arrays: Mapping[str, NDArray[np.float32]]) -> bool:
    """Whether `content` is an archive of these arrays by `float_archive`, or by `numpy.savez` on any Python."""
    members = [_member(*named) for named in arrays.items()]
    layouts = product((UNIX, WINDOWS), (ZIP64, PLAIN))
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
    return header, memoryview(data).cast("B")


def _archive(members: list[_Member], system: int, version: int) -> Iterator[bytes | memoryview]:
    """The parts of the archive. With `version` ZIP64 only the ZIP64 field of a local header states the sizes."""
    listed, place = b"", 0
    for name, header, data, checksum in members:
        size = len(header) + len(data)
        needed = ZIP64 if size > MOST_PLAIN else version
        common = (0, 0, 0, OLDEST_DATE, checksum)  # flags, method, time, date
        sizes = [UNSTATED if needed == ZIP64 else size] * 2
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
    return number if number <= MOST_PLAIN else UNSTATED


def _end(count: int, length: int, place: int) -> bytes:
    """The end of the archive: how many members its list has, the length of the list in bytes, and its place."""
    end = b""
    if place > MOST_PLAIN:
        end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, ZIP64, ZIP64, 0, 0, count, count, length, place)
        end += struct.pack("<4sLQL", b"PK\x06\x07", 0, place + length, 1)
    return end + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, length, min(place, UNSTATED), 0)
