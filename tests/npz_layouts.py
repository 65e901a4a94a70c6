"""Archives of `numpy.savez` in the layouts of several Pythons."""

from __future__ import annotations

import io
import struct
import zipfile


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
