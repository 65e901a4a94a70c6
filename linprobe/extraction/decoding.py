"""Image bytes to pixels. Every file either decodes completely or is reported as unreadable.

Unusual but valid images are converted to what a viewer shows: CMYK and palette images to RGB, 16-bit images to 8 bits,
rotated images upright by their EXIF tag. Conversions are reported, so that the feature file can count them.
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
MAX_SIDE = 1_000_000  # Pillow holds several rows of an image beside it
MAX_BYTES = 1 << 29
CONVERSIONS = ("cmyk", "palette", "16-bit", "rotated")
_ORIENTATION = 0x0112
_GREY = ("1", "L", "LA", "La")


class UnreadableImage(Exception):  # noqa: N818 - about one file, not an error of the program
    """An image cannot be decoded; the text gives the reason."""


def decode(content: bytes | NDArray[np.uint8] | Image.Image, mode: str | None) -> tuple[Image.Image, int]:
    """Decode one image.

    Args:
        content: bytes of a file, an array (height, width) or (height, width, 3 or 4), or a decoded image.
        mode: RGB or L, of the returned image; None for L if the image is grey, else RGB.

    Returns:
        The image, and the conversions made as a bit mask: bit k stands for CONVERSIONS[k].

    Raises:
        UnreadableImage: empty, no image, damaged, truncated, more than MAX_PIXELS, or pixel values of unknown range.
    """
    if isinstance(content, np.ndarray):
        return _to_mode(Image.fromarray(content), mode)
    if isinstance(content, Image.Image):
        return _to_mode(content, mode)
    if not content:
        raise UnreadableImage("the file is empty")
    Image.init()
    known = tuple(name for name in FORMATS if name in Image.OPEN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of oversized images; MAX_PIXELS refuses them below
        try:
            image: Any = Image.open(io.BytesIO(content), formats=known)
            if image.width * image.height > MAX_PIXELS:
                raise UnreadableImage(f"{image.width} x {image.height} pixels; allowed: {MAX_PIXELS:,}")
            if max(image.size) > MAX_SIDE:
                raise UnreadableImage(f"{image.width} x {image.height} pixels; allowed: {MAX_SIDE:,} a side")
            image.load()
            return _to_mode(image, mode)
        except UnidentifiedImageError:
            raise UnreadableImage("not an image of a known format") from None
        except Image.DecompressionBombError:
            raise UnreadableImage(f"too many pixels; allowed: {MAX_PIXELS:,}") from None
        except (UnreadableImage, MemoryError):  # out of memory does not mean a bad image
            raise
        except Exception as error:  # Pillow's decoders raise many types for damaged files
            raise UnreadableImage(f"damaged: {str(error) or type(error).__name__}") from None


def _to_mode(image: Image.Image, mode: str | None) -> tuple[Image.Image, int]:
    made = set()
    if image.getexif().get(_ORIENTATION, 1) not in (0, 1):
        image = ImageOps.exif_transpose(image)
        made.add("rotated")
    if image.mode == "F":
        raise UnreadableImage("floating-point pixels, whose range is not known")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise UnreadableImage("32-bit pixels, whose range is not known")
        image = Image.fromarray((values >> 8).astype(np.uint8))
        made.add("16-bit")
    if image.mode == "CMYK":
        made.add("cmyk")
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # a direct conversion could confuse the transparent colour with another
        made.add("palette")
    wanted = mode or ("L" if image.mode in _GREY else "RGB")
    if image.mode != wanted:
        image = image.convert(wanted)
    return image, sum(1 << CONVERSIONS.index(name) for name in made)
