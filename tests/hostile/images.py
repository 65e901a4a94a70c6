"""Hostile images and weights for `extract`."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.case import Case
from tests.hostile.features import mutated

FOLDER = (("extract", "images", "--backbone", "pixels", "--resize", "8", "--crop", "8", "--out", "e.h5"),)
WEIGHTS = "w.pt", "w.safetensors"
NETWORK = ("extract", "images", "--backbone", "wrn-16-4", "--out", "e.h5", "--weights")


def _png(width: int = 8, height: int = 8, value: int = 0) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (width, height), (value, value, 7)).save(stream, "PNG")
    return stream.getvalue()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _declared_png(width: int, height: int, depth: int = 8, kind: int = 2, rows: int = 0) -> bytes:
    """A PNG of a declared size that holds `rows` rows of zeros."""
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[kind]
    row = bytes(1 + (width * channels * depth + 7) // 8)
    compressor = zlib.compressobj(9)
    body = b"".join(compressor.compress(row) for _ in range(rows)) + compressor.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    palette = _chunk(b"PLTE", bytes(range(9))) if kind == 3 else b""
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + palette + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _members() -> list[tuple[str, bytes]]:
    """Names and contents of images of two classes."""
    names = [f"{group}/{name}/{row}.png" for group in ("train", "test") for name in ("ant", "bee") for row in (0, 1)]
    return [(name, _png(value=place)) for place, name in enumerate(names)]


def _images(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for member, good in _members():
            path = folder / "images" / member
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(good)
        (folder / "images" / name).write_bytes(content if isinstance(content, bytes) else content())

    return make


def _encoded(form: str, mode: str = "RGB", **options: Any) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new(mode, (64, 48), 3).save(stream, form, **options)
    return stream.getvalue()


IMAGES: dict[str, bytes | Callable[[], bytes]] = {
    "10^12 pixels": _declared_png(10**6, 10**6),
    "100 million pixels and no rows": _declared_png(10_000, 10_000),
    "100 million pixels": partial(_declared_png, 10_000, 10_000, rows=10_000),
    "100 million pixels of 16 bits": partial(_declared_png, 10_000, 10_000, 16, 0, rows=10_000),
    "100 million pixels of a palette": partial(_declared_png, 10_000, 10_000, 8, 3, rows=10_000),
    "one row of 100 million pixels": partial(_declared_png, 100_000_000, 1, rows=1),
    "no pixels": _declared_png(0, 0),
    "floats": _encoded("TIFF", "F"),
    "32 bits": _encoded("TIFF", "I"),
    "a script": b"<?php system('touch planted'); ?>",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(planted) (w) file closefile\n",
    "an SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "nothing": b"",
    "100 MB of zeros": bytes(100_000_000),
}
IMAGES_READABLE = {name for name in IMAGES if name.startswith(("100 million", "one row"))} | {"32 bits"}


def _weights(name: str, make_value: Callable[[Any], Any]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import torch

        _images("train/ant/0.png", _png(value=99))(folder)
        value = make_value(torch)
        if isinstance(value, bytes):
            (folder / name).write_bytes(value)
        else:
            torch.save(value, folder / name)

    return make


class _Planted:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch planted",)


def _safetensors(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a name with control characters": ("w.pt", lambda torch: {"\x1b[31mred\x07": torch.zeros(1)}),
    "names of 10 MB": ("w.pt", lambda torch: {"a" * 10**7: torch.zeros(1)}),
    "a tensor larger than the file": ("w.pt", lambda torch: {"fc.weight": torch.zeros(1).expand(10**6, 10**6)}),
    "planted code": ("w.pt", lambda torch: {"a": _Planted()}),
    "a list": ("w.pt", lambda torch: [torch.zeros(1)]),
    "deep wrappers": ("w.pt", lambda torch: {"model": {"model": {"model": 3}}}),
    "numbers as names": ("w.pt", lambda torch: {1: torch.zeros(1)}),
    "nothing": ("w.pt", lambda torch: b""),
    "no header": ("w.safetensors", lambda torch: b"\xff" * 8),
    "a header of 2^62 bytes": ("w.safetensors", lambda torch: struct.pack("<Q", 2**62)),
    "a deep header": ("w.safetensors", lambda torch: _safetensors(b"[" * 100_000)),
    "offsets above the file": (
        "w.safetensors",
        lambda torch: _safetensors(b'{"a": {"dtype": "F32", "shape": [1000000000], "data_offsets": [0, 4000000000]}}'),
    ),
    "a shape of 2^80": (
        "w.safetensors",
        lambda torch: _safetensors(b'{"a": {"dtype": "F32", "shape": [%d], "data_offsets": [0, 4]}}' % 2**80, bytes(4)),
    ),
    "a name with control characters in safetensors": (
        "w.safetensors",
        lambda torch: _safetensors(
            b'{"\\u001b[31m": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', bytes(4)
        ),
    ),
}  # fmt: skip


def cases(mutations: int) -> Iterator[Case]:
    """Made files, then changed bytes."""
    for name, content in IMAGES.items():
        wanted = {0, 3} if name in IMAGES_READABLE else {3}
        quick = "million" not in name
        yield Case(f"image: {name}", _images("train/ant/0.png", content), FOLDER, frozenset(wanted), quick)
    for name, (file, make_value) in STATES.items():
        yield Case(f"weights: {name}", _weights(file, make_value), ((*NETWORK, file),), quick=file == "w.safetensors")
    either = frozenset({0, 3})
    samples = [_png(), _encoded("JPEG"), _encoded("GIF", "P"), _encoded("TIFF"), _encoded("WEBP"), _encoded("BMP")]
    samples += [_encoded("JPEG2000"), _encoded("PPM"), _encoded("TIFF", compression="tiff_lzw")]
    for number in range(mutations):
        content = mutated(samples[number % len(samples)], number)
        yield Case(f"image: mutation {number}", _images("train/ant/0.png", content), FOLDER, either, number < 2)
    for number in range(mutations // 4):
        name = WEIGHTS[number % 2]
        yield Case(f"weights: mutation {number}", _mutated_weights(name, number), ((*NETWORK, name),), either)


def _mutated_weights(name: str, number: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import torch
        from safetensors.torch import save

        _images("train/ant/0.png", _png(value=99))(folder)
        state = {f"layer{place}.weight": torch.from_numpy(np.ones((3, 4), np.float32)) for place in range(8)}
        stream = io.BytesIO()
        torch.save(state, stream)
        (folder / name).write_bytes(mutated(save(state) if "safe" in name else stream.getvalue(), number))

    return make
