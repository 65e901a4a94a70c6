"""`timm:NAME`: any timm network with a classifier; a row is the features before the classifier.

The layer `last4+avg` of ViTs is what M. Oquab et al., "DINOv2", 2023, probe: class tokens of the last four blocks and
the mean patch token of the last, each after the final normalisation.
"""

from __future__ import annotations

import math
from inspect import signature
from typing import Any

import timm
import torch
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

from linprobe.errors import UsageError
from linprobe.extraction.backbones import Backbone, build_or_fetch, load_file, name_of_weights
from linprobe.extraction.images import ImageTransform

BLOCKS = 4
LAYER = f"last{BLOCKS}+avg"


class LastBlocks(nn.Module):
    """Class tokens of the last blocks of a vision transformer, and its mean patch token, without registers."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """(rows, 3, height, width) to (rows, (BLOCKS + 1) * width)."""
        blocks = self.network.forward_intermediates(
            images, indices=BLOCKS, return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
        )
        return torch.cat([*(prefix[:, 0] for _, prefix in blocks), blocks[-1][0].mean(dim=1)], dim=1)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """The weights under the names of the network, so that their digest is the same at every layer."""
        return self.network.state_dict(*arguments, **options)


def _layers(model: Any) -> dict[str, tuple[nn.Module, str]]:
    """The layer `last4+avg`, if the network is a transformer with a class token and enough blocks."""
    takes = getattr(model, "forward_intermediates", None)
    normalised = not isinstance(getattr(model, "norm", nn.Identity()), nn.Identity)
    if (
        takes is None
        or "return_prefix_tokens" not in signature(takes).parameters
        or getattr(model, "cls_token", None) is None
        or not normalised
        or len(model.blocks) < BLOCKS
    ):
        return {}
    tensor = f"class tokens of the last {BLOCKS} blocks and mean patch token of the last, after the final normalisation"
    return {LAYER: (LastBlocks(model).eval(), tensor)}


def load(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    wanted = name.removeprefix("timm:")
    if not timm.is_model(wanted):
        near = timm.list_models(f"*{wanted.split('.')[0].split('_')[0]}*")[:5] or timm.list_models()[:5]
        raise UsageError(f"backbone {name} is not a network of timm; allowed: timm:NAME, such as {', '.join(near)}")
    fetched = not random and weights is None
    tags = timm.list_pretrained(wanted.split(".")[0])
    if fetched and "." in wanted and wanted not in tags:
        raise UsageError(f"backbone {name} names no weights of timm; allowed: {', '.join(tags[:6]) or 'none'}")
    model = build_or_fetch(
        name,
        arguments,
        lambda: timm.create_model(wanted, pretrained=fetched, **arguments),
        f"weights of {name} are not in the Hugging Face cache" if fetched else "",
        random,
    )
    if weights is not None:
        head = model.pretrained_cfg.get("classifier") or ()
        load_file(model, weights, (head,) if isinstance(head, str) else head)
    model.reset_classifier(0)
    shown = name_of_weights(weights, random, str(model.pretrained_cfg.get("tag") or wanted))
    tensor = "pooled features before the classifier"
    return Backbone(name, model.eval(), _transform(name, model), tensor, shown, arguments, layers=_layers(model))


def _transform(name: str, model: Any) -> ImageTransform:
    config: Any = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    height, width = config["input_size"][1:]
    share = config["crop_pct"]
    scaled = (math.floor(height / share), math.floor(width / share))
    if config["crop_mode"] not in ("center", "squash"):
        raise UsageError(f"backbone {name} crops by {config['crop_mode']!r}; allowed: center, squash")
    if config["crop_mode"] == "center" and height != width:
        raise UsageError(f"backbone {name} takes a centre crop of {height} x {width} pixels; allowed: square networks")
    resize = scaled if config["crop_mode"] == "squash" else scaled[0]
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return ImageTransform(resize, (height, width), config["interpolation"], mean, std)
