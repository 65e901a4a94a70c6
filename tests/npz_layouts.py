"""Archives of `numpy.savez` in the layouts of several Pythons."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable


def of_layout(content: bytes, *, earlier: bool = False, windows: bool = False) -> bytes:
    """The archive as Python before 3.11.4 (`earlier`) or on Windows writes it, from that of a later one elsewhere."""
    edited = bytearray(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members, place = archive.infolist(), archive.start_dir
    for member in members:
        if earlier:
            struct.pack_into("<H", edited, member.header_offset + 4, 20)
            struct.pack_into("<2L", edited, member.header_offset + 18, member.compress_size, member.file_size)
            struct.pack_into("<B", edited, place + 4, 20)
            struct.pack_into("<H", edited, place + 6, 20)
        if windows:
            edited[place + 5] = 0
        place += 46 + len(member.filename)
    return bytes(edited)


def with_headers(content: bytes, changed: Callable[[str, bytes], bytes]) -> bytes:
    """An archive of the same arrays whose headers are `changed`, by their names; its checksums fit them."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            array = old.read(name)
            end = 10 + array[8]
            header = changed(name, array[10:end])
            with new.open(name, "w", force_zip64=True) as member:
                member.write(array[:8] + bytes([len(header), 0]) + header + array[end:])
    return stream.getvalue()
