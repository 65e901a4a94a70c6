"""What a Parquet file declares, before it is read: footer and pages say how long they are, and may say anything.

pyarrow allocates what the header of a page declares. The headers are Thrift structs in the compact protocol
(https://github.com/apache/parquet-format, PageHeader).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linprobe.data.limits import MOST_COMPRESSED, too_large
from linprobe.errors import DataError

WORD = 8  # bytes of a number as it is read
UNCOMPRESSED, COMPRESSED = 2, 3  # fields of a page header
STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
NUMBERS = (4, 5, 6)


def check_parquet(arrow: Any, source: Path) -> None:
    """Raise DataError if a Parquet file declares more bytes than its own can stand for; ValueError if it is damaged."""
    footer, stored = arrow.parquet.read_metadata(source), source.stat().st_size
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    n_bytes = sum(max(WORD * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks)
    if not too_large(n_bytes, stored):
        with source.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            n_bytes = sum(size for chunk in chunks for size in _pages(content, chunk))
    if too_large(n_bytes, stored):
        raise DataError(
            f"{source} declares {n_bytes} bytes of values and has {stored}; allowed: {MOST_COMPRESSED} times as many; "
            "write it again"
        )


def _pages(content: mmap.mmap, chunk: Any) -> Iterator[int]:
    """The bytes that each page of a column chunk has once it is decompressed."""
    place = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < place:
        place = chunk.dictionary_page_offset
    end = place + chunk.total_compressed_size
    while place < end:
        fields: dict[int, int] = {}
        start = _struct(content, place, fields)
        skipped = fields.get(COMPRESSED, -1)
        if place < 0 or skipped < 0 or UNCOMPRESSED not in fields:
            raise ValueError("damaged header of a page")
        yield fields[UNCOMPRESSED]
        place = start + skipped


def _struct(content: mmap.mmap, place: int, fields: dict[int, int]) -> int:
    """Read a struct; puts its numbers into `fields`, and returns where it ends."""
    number = 0
    while (kind := content[place]) & 15 != STOP:
        place += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, place = _whole(content, place)
        if kind & 15 in NUMBERS:
            fields[number], place = _whole(content, place)
        elif kind & 15 not in (TRUE, FALSE):  # these are in the kind
            place = _skipped(content, place, kind & 15)
    return place + 1


def _skipped(content: mmap.mmap, place: int, kind: int) -> int:
    """Where a value ends."""
    if kind in (TRUE, FALSE, BYTE):
        return place + 1
    if kind in NUMBERS:
        return _whole(content, place)[1]
    if kind == DOUBLE:
        return place + 8
    if kind == BINARY:
        length, place = _varint(content, place)
        return place + length
    if kind in (LIST, SET):
        head = content[place]
        count, place = (head >> 4, place + 1) if head >> 4 < 15 else _varint(content, place + 1)
        for _ in range(count):
            place = _skipped(content, place, head & 15)
        return place
    if kind == STRUCT:
        return _struct(content, place, {})
    raise ValueError(f"damaged header of a page: type {kind}")


def _whole(content: mmap.mmap, place: int) -> tuple[int, int]:
    """A signed number in zigzag form, and where it ends."""
    value, place = _varint(content, place)
    return (value >> 1) ^ -(value & 1), place


def _varint(content: mmap.mmap, place: int) -> tuple[int, int]:
    value = shift = 0
    while content[place] & 128:
        value |= (content[place] & 127) << shift
        place, shift = place + 1, shift + 7
        if shift > 63:
            raise ValueError("damaged header of a page: a number of more than 10 bytes")
    return value | content[place] << shift, place + 1
