"""Every image file decodes to what a viewer shows, or is reported as unreadable with the reason."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from linprobe.extraction import images
from linprobe.extraction.images import decode
from linprobe.extraction.sources.base import UnreadableImage
from tests.extraction.samples import encoded, photo

ORIENTATION = 0x0112
Turn = Image.Transpose
# how a camera stores an upright picture that it marks with this orientation
STORED_AS = {
    2: Turn.FLIP_LEFT_RIGHT,
    3: Turn.ROTATE_180,
    4: Turn.FLIP_TOP_BOTTOM,
    5: Turn.TRANSPOSE,
    6: Turn.ROTATE_90,
    7: Turn.TRANSVERSE,
    8: Turn.ROTATE_270,
}


def made(content: bytes, mode: str = "RGB") -> np.ndarray:
    """Pixels of the decoded image."""
    image = decode(content, mode)
    assert image.mode == mode
    return np.asarray(image)


def reason(content: bytes) -> str:
    with pytest.raises(UnreadableImage) as caught:
        decode(content, "RGB")
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP", "JPEG", "JPEG2000"])
def test_every_format_gives_the_pixels_that_were_stored(kind: str) -> None:
    image = photo(0) if kind != "GIF" else photo(0).quantize(16)
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}.get(kind, {})
    pixels = made(encoded(image, kind, **options))
    difference = np.abs(pixels.astype(int) - np.asarray(image.convert("RGB")))
    assert difference.mean() <= (5 if kind == "JPEG" else 0)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_print_colours_look_as_on_a_screen(kind: str) -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (200, 120, 40)]
    for colour in colours:
        pixels = made(encoded(Image.new("RGB", (16, 16), colour).convert("CMYK"), kind))
        assert np.abs(pixels.astype(int) - colour).max() <= 6


def test_palette_with_transparency_keeps_the_colours_of_the_palette() -> None:
    image = Image.new("P", (4, 2))
    image.putpalette([10, 20, 30, 200, 100, 50, 0, 255, 0, 255, 255, 255])
    indices = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], dtype=np.uint8)
    image.frombytes(indices.tobytes())
    expected = np.array([[10, 20, 30], [200, 100, 50], [0, 255, 0], [255, 255, 255]])[indices]
    for transparency in (1, bytes([255, 0, 128, 255])):
        pixels = made(encoded(image, "PNG", transparency=transparency))
        assert np.array_equal(pixels, expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_keeps_its_gradient(kind: str) -> None:
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    pixels = made(encoded(Image.fromarray(values), kind))
    assert np.array_equal(pixels, np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2))


def grey_tiff(order: str, bits: int, photometric: int) -> bytes:
    """A TIFF file of 4 x 3 pixels of 12 or 16 bits; `order` of bytes is < or >."""
    rows = b"".join(struct.pack(f"{order}4H", *(row * 256 + column * 16384 for column in range(4))) for row in range(3))
    entries = [
        *((256, 3, 4), (257, 3, 3), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 8)),
        *((278, 3, 3), (279, 4, bits * 12 // 8)),
    ]
    tags = b"".join(
        struct.pack(f"{order}HHI{'I' if kind == 4 else 'HH'}", tag, kind, 1, *([value] if kind == 4 else [value, 0]))
        for tag, kind, value in entries
    )
    start = struct.pack(f"{order}2sHI", b"MM" if order == ">" else b"II", 42, 32)
    return start + rows + struct.pack(f"{order}H", len(entries)) + tags + bytes(4)


def test_big_endian_sixteen_bit_grey_is_read_by_its_own_byte_order() -> None:
    pixels = made(grey_tiff(">", 16, 1))
    assert pixels[..., 0].tolist() == [[0, 64, 128, 192], [1, 65, 129, 193], [2, 66, 130, 194]]


@pytest.mark.parametrize("orientation", STORED_AS)
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_turned_photographs_come_out_upright(orientation: int, kind: str) -> None:
    upright = photo(3)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(upright.transpose(STORED_AS[orientation]), kind, exif=exif, **options)
    pixels = made(content)
    assert np.array_equal(pixels, np.asarray(upright))


def test_a_jpeg_turned_by_its_camera_comes_out_upright() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    pixels = made(encoded(photo(3).transpose(Turn.ROTATE_90), "JPEG", exif=exif, quality=95))
    assert pixels.shape == np.asarray(photo(3)).shape
    assert np.abs(pixels.astype(int) - np.asarray(photo(3))).mean() < 12


@pytest.mark.parametrize("orientation", [0, 1, 9, 200])
def test_orientations_without_a_turn_change_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    assert np.array_equal(made(encoded(photo(3), exif=exif)), np.asarray(photo(3)))


def test_one_image_may_need_several_conversions() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 3
    pixels = made(encoded(photo(3).convert("CMYK"), "JPEG", exif=exif, quality=95))
    assert np.abs(pixels.astype(int) - np.asarray(photo(3).rotate(180))).mean() < 12


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "RGB"])
def test_plain_modes_become_colour_or_grey(mode: str) -> None:
    image = photo(5).convert(mode)
    for wanted in ("RGB", "L"):
        pixels = made(encoded(image), wanted)
        assert np.array_equal(pixels, np.asarray(image.convert(wanted)))


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3), (6, 5, 4)])
def test_arrays_are_taken_as_they_are(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = decode(values, "RGB")
    expected = np.repeat(values[..., None], 3, axis=2) if len(shape) == 2 else values[..., :3]
    assert np.array_equal(np.asarray(image), expected)


def bomb(side: int) -> bytes:
    """A PNG file of a few bytes whose header declares side x side pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def floats() -> bytes:
    return encoded(Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)), "TIFF")


def whole_numbers(value: int) -> bytes:
    return encoded(Image.fromarray(np.full((4, 4), value, dtype=np.int32)), "TIFF")


UNREADABLE: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "no bytes": (lambda: b"", ["empty"]),
    "text": (lambda: b"<html><body>Not found</body></html>", ["not JPEG, PNG"]),
    "a program": (lambda: b"\x7fELF" + bytes(200), ["not JPEG, PNG"]),
    "a vector graphic": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", ["not JPEG, PNG"]),
    "the first bytes of a JPEG": (lambda: encoded(photo(0), "JPEG")[:20], []),
    "half a JPEG": (lambda: encoded(photo(0, 64, 64), "JPEG")[:700], ["damaged", "truncated"]),
    "half a PNG": (lambda: encoded(photo(0, 64, 64))[:3000], ["damaged", "truncated"]),
    "half a GIF": (lambda: encoded(photo(0, 64, 64), "GIF")[:1500], ["damaged"]),
    "half a TIFF": (lambda: encoded(photo(0, 64, 64), "TIFF")[:5000], ["damaged"]),
    "half a WebP": (lambda: encoded(photo(0, 64, 64), "WEBP")[:200], ["damaged"]),
    "more pixels than any photograph": (lambda: bomb(30_000), ["pixels", "100,000,000"]),
    "just too many pixels": (lambda: bomb(10_001), ["10001 x 10001 pixels", "100,000,000"]),
    "floating-point pixels": (floats, ["floating-point"]),
    "32-bit pixels": (lambda: whole_numbers(70_000), ["32-bit"]),
    "32-bit pixels of 8 bits, which 16 bits would make black": (lambda: whole_numbers(200), ["32-bit"]),
    "12-bit grey": (lambda: grey_tiff("<", 12, 1), ["12 bits", "16 bits"]),
    "16-bit grey where zero is white": (lambda: grey_tiff("<", 16, 0), ["photometric 0", "black is 0"]),
    "negative pixels": (lambda: whole_numbers(-1), ["32-bit"]),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_cannot_be_shown_is_unreadable_with_the_reason(case: str) -> None:
    make, words = UNREADABLE[case]
    text = reason(make())
    assert all(word in text for word in words), text


def test_the_limit_on_pixels_is_the_last_size_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 400)
    assert made(encoded(photo(0, 20, 20))).shape == (20, 20, 3)
    assert "21 x 20 pixels" in reason(encoded(photo(0, 21, 20)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF"])
def test_damage_anywhere_gives_an_image_or_a_reason_and_nothing_else(kind: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    options = {} if kind in ("BMP", "GIF", "PPM") else {"exif": exif}
    whole, rng = encoded(photo(0), kind, **options), np.random.default_rng(0)
    outcomes = set()
    for _ in range(80):
        content = bytearray(whole)
        for _ in range(int(rng.integers(1, 6))):
            place = int(rng.integers(0, min(len(content), int(rng.choice([60, 300, len(content)])))))
            content[place] = int(rng.choice([0, 255, rng.integers(256)]))
        try:
            outcomes.add(decode(bytes(content), "RGB").mode)
        except UnreadableImage as error:
            outcomes.add(f"unreadable: {error}"[:12])
    assert "unreadable: " in outcomes
    assert outcomes <= {"RGB", "unreadable: "}
