"""Image bytes to pixels, without surprises: every file either decodes fully or is named as unreadable.

Odd but whole images are converted to what a person sees: CMYK and palette images to RGB, 16-bit ones to 8 bits, turned
ones upright by their EXIF tag. Each conversion is reported, so that a file says how many of its rows had one.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO")
MAX_PIXELS = 100_000_000
MAX_BYTES = 1 << 29
CONVERSIONS = ("cmyk", "palette", "16-bit", "rotated")
_ORIENTATION = 0x0112


class UnreadableImage(Exception):  # noqa: N818 - a fact about one file, not an error of the program
    """One image that cannot be decoded; the text says why."""


def decode(content: bytes | NDArray[np.uint8] | Image.Image, mode: str) -> tuple[Image.Image, int]:
    """Decode one image; returns it in `mode` (RGB or L) and the conversions made, bit k for CONVERSIONS[k].

    Args:
        content: the bytes of a file, an array (height, width) or (height, width, 3 or 4), or a decoded image.

    Raises:
        UnreadableImage: no bytes, no image, damaged, truncated, more than MAX_PIXELS, or values of unknown range.
    """
    if isinstance(content, np.ndarray):
        return Image.fromarray(content).convert(mode), 0
    if isinstance(content, Image.Image):
        return _to_mode(content, mode)
    if not content:
        raise UnreadableImage("the file is empty")
    Image.init()
    known = tuple(name for name in FORMATS if name in Image.OPEN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an oversized image is refused below, by a limit of our own
        try:
            image: Any = Image.open(io.BytesIO(content), formats=known)
            if image.width * image.height > MAX_PIXELS:
                raise UnreadableImage(f"{image.width} x {image.height} pixels; allowed: {MAX_PIXELS:,}")
            image.load()
            return _to_mode(image, mode)
        except UnidentifiedImageError:
            raise UnreadableImage("not an image of a known format") from None
        except Image.DecompressionBombError:
            raise UnreadableImage(f"too many pixels; allowed: {MAX_PIXELS:,}") from None
        except (UnreadableImage, MemoryError):  # memory is no property of the image
            raise
        except Exception as error:  # decoders of damaged files raise nearly anything
            raise UnreadableImage(f"damaged: {str(error) or type(error).__name__}") from None


def _to_mode(image: Image.Image, mode: str) -> tuple[Image.Image, int]:
    made = set()
    if image.getexif().get(_ORIENTATION, 1) not in (0, 1):
        image = ImageOps.exif_transpose(image)
        made.add("rotated")
    if image.mode == "F":
        raise UnreadableImage("floating-point pixels, whose range is not known")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise UnreadableImage("32-bit pixels, whose range is not known")
        image = Image.fromarray((values >> 8).astype(np.uint8))
        made.add("16-bit")
    if image.mode == "CMYK":
        made.add("cmyk")
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # so that a transparent colour is not mistaken for another
        made.add("palette")
    if image.mode != mode:
        image = image.convert(mode)
    return image, sum(1 << CONVERSIONS.index(name) for name in made)
