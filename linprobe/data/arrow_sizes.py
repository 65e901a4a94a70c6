"""What an Arrow file declares, before it is read: a compressed buffer says how long it is, and may say anything.

pyarrow allocates what a buffer declares, so the lengths are read here first, from the flatbuffers of each message
(https://arrow.apache.org/docs/format/Columnar.html, Message.fbs).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linprobe.data.limits import MOST_COMPRESSED, too_large
from linprobe.errors import DataError

MAGIC, FIRST_MESSAGE = b"ARROW1", 8  # of the file format, which is a stream with a footer
WORD = 8  # bytes of a number as it is read
LENGTH = struct.Struct("<q")  # before the bytes of a compressed buffer; -1 if these are not compressed
PAIR = struct.Struct("<qq")  # of a node: its length and nulls; of a buffer: its offset and length
HEADER, DATA = 2, 1  # fields of a message, and of a dictionary
NODES, BUFFERS, COMPRESSION = 1, 2, 3  # fields of a record batch


def arrow_table(arrow: Any, stream: Any, stored: int, where: Path) -> Any:
    """The table in an Arrow file, or in an Arrow stream, as `datasets` writes it.

    Args:
        stream: open file. stored: its size in bytes.

    Raises:
        DataError: it declares more bytes than its own can stand for.
    """
    start = FIRST_MESSAGE if stream.read(len(MAGIC)) == MAGIC else 0
    stream.seek(start)
    declared = 0
    for message in arrow.ipc.MessageReader.open_stream(stream):
        if message.type in ("record batch", "dictionary"):
            declared += sum(_lengths(memoryview(message.metadata), message.body, message.type))
    if too_large(declared, stored):
        raise DataError(
            f"{where} declares {declared} bytes of values and has {stored}; allowed: {MOST_COMPRESSED} times as many; "
            "write it again"
        )
    stream.seek(start)
    return arrow.ipc.open_stream(stream).read_all()


def _lengths(metadata: memoryview, body: Any, kind: str) -> Iterator[int]:
    """The bytes that each column and each buffer of a message have in memory.

    Raises:
        ValueError: a damaged message.
    """
    try:
        (root,) = struct.unpack_from("<I", metadata)
        batch = _follow(metadata, _field(metadata, root, HEADER))
        if kind == "dictionary":
            batch = _follow(metadata, _field(metadata, batch, DATA))
        compressed = _field(metadata, batch, COMPRESSION) is not None
        for length, _ in _pairs(metadata, _field(metadata, batch, NODES)):
            yield WORD * max(0, length)
        for offset, length in _pairs(metadata, _field(metadata, batch, BUFFERS)):
            inside = LENGTH.unpack_from(body, offset)[0] if compressed and length >= LENGTH.size else -1
            yield max(length, inside)
    except struct.error as error:
        raise ValueError(f"damaged message: {error}") from None


def _field(metadata: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table is; None if the table lacks it."""
    entries = table - struct.unpack_from("<i", metadata, table)[0]
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", metadata, entries)[0]:
        return None
    (offset,) = struct.unpack_from("<H", metadata, entries + place)
    return table + offset if offset else None


def _follow(metadata: memoryview, place: int | None) -> int:
    """Where the reference at `place` leads."""
    if place is None:
        raise ValueError("a message lacks its content")
    return int(place + struct.unpack_from("<I", metadata, place)[0])


def _pairs(metadata: memoryview, place: int | None) -> Iterator[tuple[int, int]]:
    """The structs of two numbers in the vector at `place`."""
    if place is None:
        return
    start = _follow(metadata, place)
    (count,) = struct.unpack_from("<I", metadata, start)
    for number in range(count):
        yield PAIR.unpack_from(metadata, start + 4 + number * PAIR.size)
