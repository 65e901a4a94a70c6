"""Image preprocessing: resize, centre crop, scale to [0, 1], subtract the mean, divide by the standard deviation.

All numbers are public constants of the network; none is computed from the images.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as transforms

from linprobe.errors import ParameterError
from linprobe.extraction.decoding import MAX_PIXELS, UnreadableImage

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
AUGMENT_SCALE, AUGMENT_RATIO = (0.5, 1.0), (3 / 4, 4 / 3)


@dataclass(frozen=True)
class ImageTransform:
    """A network's preprocessing.

    Attributes:
        resize: length of the short side, or exact (height, width), in pixels; None to keep the size.
        crop: (height, width) of the centre crop, in pixels; None for no crop.
        interpolation: one of INTERPOLATIONS.
        mean, std: one number per channel, for values in [0, 1].
        mode: RGB, or L for one grey channel.

    Raises:
        ParameterError: a value out of range, or another number of means or stds than of channels.
    """

    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mode: str = "RGB"

    def __post_init__(self) -> None:
        sides = (self.resize,) if isinstance(self.resize, int) else (self.resize or ())
        if any(side < 1 for side in (*sides, *(self.crop or ()))):
            raise ParameterError(f"resize is {self.resize} and crop {self.crop}; allowed: whole numbers above 0")
        if self.crop is not None and isinstance(self.resize, int) and max(self.crop) > self.resize:
            raise ParameterError(
                f"crop is {self.crop} and resize {self.resize}; allowed: a crop no larger than the resized image"
            )
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

    def overridden(
        self,
        resize: int | None,
        crop: int | None,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        interpolation: str | None,
    ) -> ImageTransform:
        """A copy with every argument that is not None replaced.

        One mean or std applies to all channels; 0 for `resize` or `crop` turns that step off.

        Raises:
            ParameterError: as for the constructor.
        """
        channels = len(self.mode)
        changes: dict[str, Any] = {
            "resize": resize or None,
            "mean": mean * channels if mean is not None and len(mean) == 1 else mean,
            "std": std * channels if std is not None and len(std) == 1 else std,
            "interpolation": interpolation,
        }
        changes = {name: value for name, value in changes.items() if value is not None}
        if resize == 0:
            changes["resize"] = None
        if crop is not None:
            changes["crop"] = (crop, crop) if crop else None
        return replace(self, **changes)

    @property
    def text(self) -> str:
        """All fields as JSON, for the feature file and its digest."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of the network's input, or None if it depends on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """Resized and cropped pixels, uint8 (height, width, channels).

        Raises:
            UnreadableImage: the image is smaller than the crop, or so narrow that resizing exceeds MAX_PIXELS.
        """
        if self.resize is not None:
            size = [self.resize] if isinstance(self.resize, int) else list(self.resize)
            scale = size[0] / min(image.size)
            if len(size) == 1 and image.width * image.height * scale**2 > MAX_PIXELS:
                raise UnreadableImage(
                    f"{image.width} x {image.height} pixels, so narrow that resizing gives more than {MAX_PIXELS:,}"
                )
            image = transforms.resize(image, size, InterpolationMode(self.interpolation))
        if self.crop is not None:
            if image.height < self.crop[0] or image.width < self.crop[1]:
                raise UnreadableImage(
                    f"{image.width} x {image.height} pixels, smaller than the crop of {self.crop[1]} x {self.crop[0]}; "
                    "give --resize"
                )
            image = transforms.center_crop(image, list(self.crop))
        return _array(image)

    def augmented(self, image: Image.Image, size: tuple[int, int], seed: int) -> NDArray[np.uint8]:
        """A random resized crop of `size`, mirrored with probability 1/2; only `seed` decides. Shape as of `pixels`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            top, left, height, width = RandomResizedCrop.get_params(image, list(AUGMENT_SCALE), list(AUGMENT_RATIO))
            mirrored = bool(torch.rand(1) < 0.5)
        mode = InterpolationMode(self.interpolation)
        image = transforms.resized_crop(image, top, left, height, width, list(size), mode)
        return _array(transforms.hflip(image) if mirrored else image)

    def normaliser(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Function from uint8 pixels (rows, channels, height, width) on `device` to normalised float32 images."""
        mean = torch.tensor(self.mean, device=device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=device).view(-1, 1, 1)
        scale, shift = 1 / (255 * std), mean / std
        return lambda pixels: pixels.float().mul_(scale).sub_(shift)


def _array(image: Image.Image) -> NDArray[np.uint8]:
    """Pixels with a channel axis, shape (height, width, channels), also for one channel."""
    return np.atleast_3d(np.asarray(image, dtype=np.uint8))
