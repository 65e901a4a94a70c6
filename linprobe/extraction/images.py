"""Image files to batches of pixels: decode, preprocess, batch. A file either decodes or is reported as unreadable.

CMYK and palette images become RGB, 16-bit images 8 bits, images rotated by their EXIF tag upright. A transparent pixel
has the colour that is stored for it.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as transforms

from linprobe.data.feature_reader import IMAGE_KEY_BYTES
from linprobe.errors import ParameterError
from linprobe.extraction.partial import DONE, KEY_BYTES, PIXEL_KEY, SKIPPED, SOURCE_KEY
from linprobe.extraction.sources.base import Members, UnreadableImage

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO")
MAX_PIXELS = 100_000_000
MAX_SIDE = 1_000_000  # Pillow holds several rows of an image beside it
_ORIENTATION = 0x0112
_BITS, _PHOTOMETRIC = 258, 262  # tags of TIFF
_GREY = ("1", "L", "LA", "La")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
SHIFTS_PER_SIDE = 16
# (down, right, mirrored): where a view is, in steps of a sixteenth of its side, at least a pixel, from the centre crop.
# The order alternates corners and mirror images, so that few views already see both sides; all are the ten-crop test.
VIEWS = (
    (0, 0, False), (0, 0, True), (-1, -1, False), (1, 1, True), (-1, 1, False), (1, -1, True), (1, 1, False),
    (-1, -1, True), (1, -1, False), (-1, 1, True),
)  # fmt: skip


def decode(content: bytes | NDArray[np.uint8], mode: str | None) -> Image.Image:
    """Decode bytes or an array (height, width[, 3 or 4]) to RGB, or L if the image is grey and `mode` None."""
    if isinstance(content, np.ndarray):
        return _to_mode(Image.fromarray(content), mode)
    if not content:
        raise UnreadableImage("the file is empty")
    Image.init()
    known = tuple(name for name in FORMATS if name in Image.OPEN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of oversized images; MAX_PIXELS refuses them below
        try:
            image: Any = Image.open(io.BytesIO(content), formats=known)
            if image.width * image.height > MAX_PIXELS or max(image.size) > MAX_SIDE:
                allowed = f"{MAX_PIXELS:,}, and {MAX_SIDE:,} a side"
                raise UnreadableImage(f"{image.width} x {image.height} pixels; allowed: {allowed}")
            image.load()
            return _to_mode(image, mode)
        except UnidentifiedImageError:
            raise UnreadableImage(f"not {', '.join(known[:-1])} or {known[-1]}") from None
        except Image.DecompressionBombError:
            raise UnreadableImage(f"too many pixels; allowed: {MAX_PIXELS:,}") from None
        except (UnreadableImage, MemoryError):  # out of memory does not mean a bad image
            raise
        except Exception as error:  # Pillow's decoders raise many types for damaged files
            raise UnreadableImage(f"damaged: {str(error) or type(error).__name__}") from None


def _to_mode(image: Image.Image, mode: str | None) -> Image.Image:
    if image.mode == "F":
        raise UnreadableImage("floating-point pixels, whose range is not known")
    if image.mode == "I" and image.format != "PPM":  # Pillow scales a PGM to 16 bits by the range that the file states
        raise UnreadableImage("32-bit or signed pixels, whose range is not known")
    if isinstance(image, TiffImageFile) and image.mode.startswith("I;16"):  # Pillow scales and inverts no such pixels
        (bits, *_), photometric = image.tag_v2[_BITS], image.tag_v2.get(_PHOTOMETRIC, 0)
        if (bits, photometric) != (16, 1):
            raise UnreadableImage(
                f"grey TIFF of {bits} bits with photometric {photometric}; allowed: 8 bits, or 16 bits where black is 0"
            )
    if image.getexif().get(_ORIENTATION, 1) not in (0, 1):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # a direct conversion could confuse the transparent colour with another
    wanted = mode or ("L" if image.mode in _GREY else "RGB")
    return image if image.mode == wanted else image.convert(wanted)


@dataclass(frozen=True)
class ImageTransform:
    """A network's preprocessing. ParameterError: a value out of range, or not one mean and std for each channel."""

    resize: int | tuple[int, int] | None  # the short side, or exact (height, width); None to keep the size
    crop: tuple[int, int] | None  # (height, width) of the centre crop; None for no crop
    interpolation: str
    mean: tuple[float, ...]  # of each channel, for values in [0, 1]
    std: tuple[float, ...]
    mode: str = "RGB"  # or L, one grey channel
    views: int = 1  # of an image, the first ones of VIEWS

    def __post_init__(self) -> None:
        if self.views not in range(1, len(VIEWS) + 1):
            raise ParameterError(f"views is {self.views}; allowed: whole numbers from 1 to {len(VIEWS)}")
        self._check_sizes()
        if self.interpolation not in INTERPOLATIONS:
            raise ParameterError(f"interpolation is {self.interpolation!r}; allowed: {', '.join(INTERPOLATIONS)}")
        channels = len(self.mode)  # "RGB" or "L"
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                raise ParameterError(f"{name} has {len(values)} values; allowed: {channels}, one per channel, or one")
        if any(not abs(value) <= 1e3 for value in self.mean):
            raise ParameterError(f"mean is {self.mean}; allowed: numbers from -1000 to 1000")
        if any(not 1e-6 <= value <= 1e6 for value in self.std):
            raise ParameterError(f"std is {self.std}; allowed: numbers from 1e-06 to 1e+06")

    def _check_sizes(self) -> None:
        sides = (self.resize,) if isinstance(self.resize, int) else (self.resize or ())
        if any(side < 1 for side in (*sides, *(self.crop or ()))):
            raise ParameterError(f"resize is {self.resize} and crop {self.crop}; allowed: whole numbers above 0")
        if self.crop is not None and isinstance(self.resize, int) and max(self.crop) > self.resize:
            raise ParameterError(f"crop is {self.crop} and resize {self.resize}; allowed: a crop no larger than it")

    def overridden(
        self,
        resize: int | None,
        crop: int | None,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        interpolation: str | None,
    ) -> ImageTransform:
        """A copy with what is given: one mean or std for all channels; 0 for `resize` or `crop` turns the step off."""
        channels = len(self.mode)
        mean, std = (each * channels if each is not None and len(each) == 1 else each for each in (mean, std))
        return replace(
            self,
            resize=self.resize if resize is None else resize or None,
            crop=self.crop if crop is None else (crop, crop) if crop else None,
            interpolation=interpolation or self.interpolation,
            mean=mean or self.mean,
            std=std or self.std,
        )

    @property
    def text(self) -> str:
        fields = {name: value for name, value in asdict(self).items() if (name, value) != ("views", 1)}
        return json.dumps(fields, sort_keys=True)

    @property
    def output_size(self) -> tuple[int, int] | None:
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def shown(self, image: Image.Image) -> NDArray[np.uint8]:
        """Resized and cropped pixels of all views, uint8 (views, height, width, channels), reflected at the borders."""
        if self.resize is not None:
            size = [self.resize] if isinstance(self.resize, int) else list(self.resize)
            scale = size[0] / min(image.size)
            if len(size) == 1 and image.width * image.height * scale**2 > MAX_PIXELS:
                raise UnreadableImage(
                    f"{image.width} x {image.height} pixels, so narrow that resizing gives more than {MAX_PIXELS:,}"
                )
            image = transforms.resize(image, size, InterpolationMode(self.interpolation))
        if self.crop is not None and (image.height < self.crop[0] or image.width < self.crop[1]):
            raise UnreadableImage(
                f"{image.width} x {image.height} pixels, smaller than the crop of {self.crop[1]} x {self.crop[0]}; "
                "give --resize"
            )
        height, width = self.crop or (image.height, image.width)
        top, left = round((image.height - height) / 2), round((image.width - width) / 2)
        down, right = (max(1, side // SHIFTS_PER_SIDE) if self.views > 1 else 0 for side in (height, width))
        whole = np.atleast_3d(np.asarray(image, dtype=np.uint8))  # also for one channel
        padded = np.pad(whole, ((down, down), (right, right), (0, 0)), mode="reflect")
        views = np.empty((self.views, height, width, whole.shape[2]), dtype=np.uint8)
        for view, (rows, columns, mirrored) in zip(views, VIEWS, strict=False):
            start, first = top + (1 + rows) * down, left + (1 + columns) * right
            shown = padded[start : start + height, first : first + width]
            view[:] = shown[:, ::-1] if mirrored else shown
        return views

    def normaliser(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Function from uint8 pixels (rows, channels, height, width) on `device` to normalised float32 images."""
        mean = torch.tensor(self.mean, device=device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=device).view(-1, 1, 1)
        scale, shift = 1 / (255 * std), mean / std
        return lambda pixels: pixels.float().mul_(scale).sub_(shift)


# number, pixels (rows * views, channels, height, width), status (rows,), keys (rows, KEY_BYTES), reasons of unread rows
Batch = tuple[int, Tensor, Tensor, Tensor, list[tuple[int, str]]]


class Batches(Dataset[Batch]):
    """The batches of one group: batch k starts at row k * batch_size; `size` (height, width) is that of every image."""

    def __init__(self, members: Members, transform: ImageTransform, batch_size: int, size: tuple[int, int]) -> None:
        self.members, self.transform, self.batch_size, self.size = members, transform, batch_size, size

    def rows(self, batch: int) -> range:
        start = batch * self.batch_size
        return range(start, min(start + self.batch_size, len(self.members)))

    def __getitem__(self, batch: int) -> Batch:
        rows = self.rows(batch)
        # channels last: the layout of decoded images and of the fastest convolutions
        # NumPy, because torch would start threads in every worker
        shape = (len(rows), self.transform.views, *self.size, len(self.transform.mean))
        pixels = np.zeros(shape, dtype=np.uint8)
        status = np.full(len(rows), DONE, dtype=np.uint8)
        keys = np.zeros((len(rows), KEY_BYTES), dtype=np.uint8)
        unread: list[tuple[int, str]] = []
        for place, row in enumerate(rows):
            try:
                content = self.members.read(row)
                pixels[place] = self._pixels(content)
                whole = content if isinstance(content, bytes) else np.ascontiguousarray(content).data
                keys[place, SOURCE_KEY] = _key_of(whole)
                keys[place, PIXEL_KEY] = _key_of(pixels[place, 0].data)
            except UnreadableImage as error:
                status[place] = SKIPPED
                unread.append((row, str(error)))
        images = torch.from_numpy(pixels).flatten(0, 1).permute(0, 3, 1, 2)
        return batch, images, torch.from_numpy(status), torch.from_numpy(keys), unread

    def _pixels(self, content: Any) -> NDArray[np.uint8]:
        pixels = self.transform.shown(decode(content, self.transform.mode))
        height, width = pixels.shape[1:3]
        if (height, width) != self.size:
            raise UnreadableImage(
                f"{width} x {height} pixels where the first test image has {self.size[1]} x {self.size[0]}; "
                "give --resize and --crop"
            )
        return pixels


def _key_of(content: bytes | memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.blake2b(content, digest_size=IMAGE_KEY_BYTES).digest(), dtype=np.uint8)


def _decoded(members: Members, count: int, mode: str | None) -> Iterator[Image.Image]:
    for row in range(min(count, len(members))):
        with suppress(UnreadableImage):
            yield decode(members.read(row), mode)


def first_size(members: Members, transform: ImageTransform) -> tuple[int, int] | None:
    shapes = (transform.shown(image).shape for image in _decoded(members, len(members), transform.mode))
    return next(((int(height), int(width)) for _, height, width, _ in shapes), None)


def first_shapes(members: Members, count: int) -> set[tuple[str, int, int]]:
    """(mode, height, width) of the readable ones among the first `count` images; the mode is L if grey, else RGB."""
    return {(image.mode, image.height, image.width) for image in _decoded(members, count, None)}
