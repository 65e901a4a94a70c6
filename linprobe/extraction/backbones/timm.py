"""`timm:NAME`: any timm network with a classifier; a row is the features before the classifier."""

from __future__ import annotations

import math
from typing import Any

import timm
from timm.data.config import resolve_model_data_config

from linprobe.errors import UsageError
from linprobe.extraction.backbones import Backbone, build_or_fetch, load_file, name_of_weights
from linprobe.extraction.images import ImageTransform


def load(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    """A timm network. Default weights are downloaded into the Hugging Face cache; `weights` gives a file instead."""
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
    )
    if weights is not None:
        head = model.pretrained_cfg.get("classifier") or ()
        load_file(model, weights, (head,) if isinstance(head, str) else head)
    model.reset_classifier(0)
    shown = name_of_weights(weights, random, str(model.pretrained_cfg.get("tag") or wanted))
    tensor = "pooled features before the classifier"
    return Backbone(name, model.eval(), _transform(name, model), tensor, shown, arguments)


def _transform(name: str, model: Any) -> ImageTransform:
    """Preprocessing for evaluation, from the network's own configuration."""
    config: Any = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    height, width = config["input_size"][1:]
    share = config["crop_pct"]
    scaled = (math.floor(height / share), math.floor(width / share))
    if config["crop_mode"] not in ("center", "squash"):
        raise UsageError(
            f"backbone {name} crops by {config['crop_mode']!r}; allowed: networks that crop by center or squash"
        )
    if config["crop_mode"] == "center" and height != width:
        raise UsageError(f"backbone {name} wants {height} x {width} pixels by centre crop; allowed: square networks")
    whole = config["crop_mode"] == "squash"
    return ImageTransform(
        scaled if whole else scaled[0],
        (height, width),
        config["interpolation"],
        tuple(config["mean"]),
        tuple(config["std"]),
    )
