"""`pixels`: no network; a row is the image's pixel values in [0, 1], flattened."""

from __future__ import annotations

from typing import Any

from torch import nn

from linprobe.errors import UsageError
from linprobe.extraction.backbones._base import Backbone
from linprobe.extraction.transform import ImageTransform


def load(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    """The identity on pixels. Argument `mode`: RGB (default) or L, one grey channel. Raises UsageError."""
    if weights is not None or random:
        raise UsageError("backbone pixels has no weights; leave out --weights and --random-weights")
    mode = arguments.get("mode", "RGB")
    if mode not in ("RGB", "L") or set(arguments) - {"mode"}:
        raise UsageError(f"backbone pixels got {arguments}; allowed: --backbone-arg mode=RGB or mode=L")
    channels = len(mode)
    transform = ImageTransform(None, None, "bilinear", (0.0,) * channels, (1.0,) * channels, mode)
    tensor = "values in [0, 1], flattened as (channel, row, column)"
    return Backbone("pixels", nn.Flatten(), transform, tensor, "", arguments)
