"""`scattering`: second-order wavelet scattering with group normalisation of each image; no weights.

J. Bruna and S. Mallat, "Invariant Scattering Convolution Networks", 2013, normalised as in F. Tramer and D. Boneh,
"Differentially Private Learning Needs Better Features (or Much More Data)", 2021, arXiv 2011.11660. Filters, padding
and order of the coefficients follow kymatio 0.3.0, so that numbers agree.

For each channel x of an image, reflected at its borders:

1. U1 = |x * psi(j, l)| for the scales j = 0, 1 and the angles l = 0..7.
2. U2 = |U1(0, l) * psi(1, m)| for the angles l, m = 0..7. Other pairs of scales hold next to no energy.
3. S = x * phi, U1 * phi and U2 * phi, every 4th pixel: 1 + 16 + 64 = 81 maps.
4. Over all channels, divide the maps into 27 groups of neighbours. In each, subtract the mean over maps and pixels,
   and divide by sqrt(variance + 1e-5).

| symbol | code | meaning |
| --- | --- | --- |
| J, L | `SCALES`, `ANGLES` | number of scales and angles |
| psi(j, l) | `wavelets` | Morlet wavelet of scale 2^j and angle (3 - l) pi / 8, in the Fourier domain |
| phi | `low_pass` | Gaussian of standard deviation 0.8 * 2^(J - 1) pixels, a product of a row and a column filter |

Every step uses one image and public constants, so no row depends on another image."""

from __future__ import annotations

import math
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from linprobe.errors import UsageError
from linprobe.extraction.backbones import Backbone
from linprobe.extraction.images import ImageTransform

SCALES, ANGLES = 2, 8
STEP = 2**SCALES
MAPS = 1 + SCALES * ANGLES + ANGLES**2
GROUPS, VARIANCE_FLOOR = 27, 1e-5
LARGEST_KEPT, SIDE = 64, 32
BATCH_ON_CPU = 256
PIXELS_ON_CPU, PIXELS_ON_GPU = 1 << 14, 1 << 19  # transformed at once; on a CPU, more would leave the cache
SMALLEST_SIDE = STEP + 1
_PI_OF_THE_NORM = 3.1415  # kymatio rounds pi in the norm of its filters
_COPIES = np.arange(-2, 3)  # copies of a filter that are added up, to make it periodic


def padding(side: int) -> tuple[int, int]:
    """Pixels added before and after a side of `side` pixels, so that the length is a multiple of 2^J."""
    added = ((side + STEP) // STEP + 1) * STEP - side
    return added // 2, (added + 1) // 2


def gabor(
    height: int, width: int, sigma: float, angle: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """A periodic Gabor filter (height, width): a wave of `frequency` radians per pixel under a slanted Gaussian."""
    rows = (np.arange(height)[:, None] + height * _COPIES).reshape(height, 1, -1, 1)
    columns = (np.arange(width)[:, None] + width * _COPIES).reshape(1, width, 1, -1)
    along = rows * math.cos(angle) + columns * math.sin(angle)
    across = columns * math.cos(angle) - rows * math.sin(angle)
    wave = np.exp(1j * frequency * along - (along**2 + (slant * across) ** 2) / (2 * sigma**2))
    periodic: NDArray[np.complex128] = wave.sum(axis=(2, 3)) * slant / (2 * _PI_OF_THE_NORM * sigma**2)
    return periodic


def wavelets(height: int, width: int, scale: int) -> NDArray[np.float64]:
    """Transforms of one scale's Morlet wavelets, Gabor filters of sum zero, real, (ANGLES, height, width)."""
    bank = []
    for number in range(ANGLES):
        angle = (ANGLES // 2 - 1 - number) * math.pi / ANGLES
        shape = (height, width, 0.8 * 2**scale, angle)
        wave = gabor(*shape, 0.75 * math.pi / 2**scale, 4 / ANGLES)
        envelope = gabor(*shape, 0.0, 4 / ANGLES)
        bank.append(np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real)
    return np.stack(bank)


def low_pass(side: int, scale: int) -> NDArray[np.float64]:
    """The matrix (side / 2^J - 2, side / 2^scale) of the low-pass filter along an axis, at every 2^J-th pixel."""
    sigma = 0.8 * 2 ** (SCALES - 1)
    places = np.arange(side)[:, None] + side * _COPIES
    kernel = np.exp(-(places**2) / (2 * sigma**2)).sum(axis=1) / math.sqrt(2 * _PI_OF_THE_NORM * sigma**2)
    kept = side >> scale  # a subsampled input has the lowest frequencies alone
    spectrum = np.fft.fft(kernel).real
    kernel = np.fft.ifft(np.concatenate([spectrum[: kept // 2], spectrum[side - kept // 2 :]])).real
    centres = np.arange(1, side // STEP - 1)[:, None] * (STEP >> scale)
    return np.asarray(kernel[(centres - np.arange(kept)) % kept])


@lru_cache(maxsize=2)
class _Filters:
    """Filters for images of one size on one device, float32."""

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        def tensor(values: NDArray[np.float64]) -> Tensor:
            return torch.from_numpy(values).to(device, torch.float32)

        (top, bottom), (left, right) = padding(height), padding(width)
        self.margins = (left, right, top, bottom)
        self.height, self.width = height + top + bottom, width + left + right
        self.fine = tensor(wavelets(self.height, self.width, 0))
        # Half the resolution: the four quarters of the spectrum are averaged.
        coarse = wavelets(self.height, self.width, 1) / 4
        self.coarse = tensor(coarse.reshape(ANGLES, 2, self.height // 2, 2, self.width // 2))
        self.rows = [tensor(low_pass(self.height, scale)) for scale in range(SCALES)]
        self.columns = [tensor(low_pass(self.width, scale).T.copy()) for scale in range(SCALES)]

    def smooth(self, images: Tensor, scale: int) -> Tensor:
        """Images (..., height / 2^scale, width / 2^scale) * phi, every 2^J-th pixel."""
        return self.rows[scale] @ images @ self.columns[scale]

    def coarse_modulus(self, spectra: Tensor, angle: int) -> Tensor:
        """|u * psi(1, angle)|, every second pixel, for spectra (..., height, width) of u."""
        quarters = spectra.view(*spectra.shape[:-2], *self.coarse.shape[1:]) * self.coarse[angle]
        halves = quarters[..., 0, :, :, :] + quarters[..., 1, :, :, :]
        modulus: Tensor = torch.fft.ifft2(halves[..., 0, :] + halves[..., 1, :]).abs()
        return modulus


class Scattering(nn.Module):
    """Images (rows, channels, height, width) to features (rows, channels * MAPS * (height // 4) * (width // 4))."""

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if min(height, width) < SMALLEST_SIDE:
            raise ValueError(f"allowed: {SMALLEST_SIDE} x {SMALLEST_SIDE} or more")
        on_cpu = images.device.type == "cpu"
        most = PIXELS_ON_CPU if on_cpu else PIXELS_ON_GPU
        parts = torch.split(images.contiguous(), max(1, most // images[0].numel()))
        if not on_cpu or len(parts) == 1:
            return torch.cat([_normalised(part) for part in parts])
        # One thread for each part: torch's own threads would meet after each of some hundred small operations.
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            rows = torch.cat(list(pool.map(_normalised, parts)))
        torch.set_num_threads(threads)  # the threads above have changed the default of new threads
        return rows


@torch.inference_mode()
def _normalised(images: Tensor) -> Tensor:
    maps = coefficients(images).flatten(1, 2)
    return functional.group_norm(maps, GROUPS, eps=VARIANCE_FLOOR).flatten(1)


def coefficients(images: Tensor) -> Tensor:
    """Images to maps (rows, channels, MAPS, height // 4, width // 4), in kymatio's order: order, scales, angles."""
    filters = _Filters(images.shape[2], images.shape[3], images.device)
    padded = functional.pad(images, filters.margins, mode="reflect")
    spectra = torch.fft.fft2(padded)
    fine = torch.fft.ifft2(spectra[:, :, None] * filters.fine).abs()
    fine_spectra = torch.fft.fft2(fine)
    first, second = 1 + ANGLES, 1 + SCALES * ANGLES
    zeroth = filters.smooth(padded, 0)
    maps = zeroth.new_empty((*zeroth.shape[:2], MAPS, *zeroth.shape[2:]))
    maps[:, :, 0] = zeroth
    maps[:, :, 1:first] = filters.smooth(fine, 0)
    for angle in range(ANGLES):
        maps[:, :, first + angle] = filters.smooth(filters.coarse_modulus(spectra, angle), 1)
        maps[:, :, second + angle :: ANGLES] = filters.smooth(filters.coarse_modulus(fine_spectra, angle), 1)
    return maps


def load(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    """`scattering`, by default in the mode of the test images, or `pixels`; without weights. Argument: `mode`."""
    if weights is not None or random:
        raise UsageError(f"backbone {name} has no weights; leave out --weights and --random-weights")
    mode = arguments.get("mode")
    if mode not in (None, "RGB", "L") or set(arguments) - {"mode"}:
        raise UsageError(f"backbone {name} got {arguments}; allowed: --backbone-arg mode=RGB or mode=L")
    if name == "pixels":
        tensor = "values in [0, 1], flattened as (channel, row, column)"
        return Backbone(name, nn.Flatten(), _transform(None, None, mode or "RGB"), tensor, "", arguments)

    def transform_for(shapes: Collection[tuple[str, int, int]]) -> ImageTransform:
        modes = {shape[0] for shape in shapes}
        sizes = {shape[1:] for shape in shapes}
        chosen = mode or ("L" if modes == {"L"} else "RGB")
        kept = len(sizes) == 1 and max(max(size) for size in sizes) <= LARGEST_KEPT
        return _transform(None, None, chosen) if kept else _transform(SIDE, (SIDE, SIDE), chosen)

    tensor = (
        f"second-order scattering, J={SCALES}, L={ANGLES}, flattened as (channel, map, row, column); "
        f"each image normalised in {GROUPS} groups"
    )
    return Backbone(
        name,
        Scattering(),
        transform_for(()),
        tensor,
        "",
        arguments,
        transform_for=transform_for,
        float32_only=True,
        batch_on_cpu=BATCH_ON_CPU,
    )


def _transform(resize: int | None, crop: tuple[int, int] | None, mode: str) -> ImageTransform:
    return ImageTransform(resize, crop, "bilinear", (0.0,) * len(mode), (1.0,) * len(mode), mode)
