"""`clip:MODEL/PRETRAINED`: open_clip networks; a row is the projected image embedding, before normalisation.

The layer `pre-projection` is its input, from which A. Radford et al., 2021, train linear probes of ViTs. Some weights
were trained with QuickGELU: the pretrained tag decides, as open_clip only warns of a mismatch, which lowers accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import open_clip
import torch
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call

from linprobe.errors import DataError, UsageError, first_line
from linprobe.extraction.backbones import Backbone, build_or_fetch, load_file, name_of_weights, quietly
from linprobe.extraction.images import ImageTransform

DEFAULT_MODEL, DEFAULT_TAG = "RN50", "openai"
LAYER = "pre-projection"
SETTLED = {
    "cache_dir", "device", "force_preprocess_cfg", "force_quick_gelu", "jit", "load_weights", "output_dict",
    "precision", "pretrained", "pretrained_hf", "pretrained_image", "pretrained_image_path", "pretrained_text",
    "pretrained_text_path", "require_pretrained", "weights_only",
}  # fmt: skip


class ImageTower(nn.Module):
    """The image half of a CLIP network: images to projected embeddings, or to the features before that projection."""

    def __init__(self, clip: Any, *, projected: bool = True) -> None:
        super().__init__()
        self.clip, self.projected = clip, projected

    def forward(self, images: Tensor) -> Tensor:
        """(rows, 3, height, width) to (rows, embedding), or to (rows, width of the tower)."""
        tower = self.clip.visual
        if self.projected:
            features: Tensor = self.clip.encode_image(images)
        elif isinstance(tower, TimmModel):
            features = tower.trunk.forward_head(tower.trunk.forward_features(images), pre_logits=True)
        else:
            features = functional_call(tower, {"proj": None}, (images,))  # type: ignore[dict-item]
        return features


def _layers(model: Any, activation: str) -> dict[str, tuple[nn.Module, str]]:
    """The layer `pre-projection`, if a matrix or network after the pooling projects (ResNets do it inside)."""
    tower = model.visual
    if isinstance(tower, TimmModel):
        ends = "pool" not in dict(tower.head.named_children()) and (len(tower.head) > 0 or tower.trunk.num_classes > 0)
    else:
        ends = isinstance(tower, VisionTransformer) and tower.proj is not None and not tower.output_tokens
    tensor = f"image features before the visual projection, not normalised; {activation}"
    return {LAYER: (ImageTower(model, projected=False).eval(), tensor)} if ends else {}


def load(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    model_name, tag, tag_config = _parse(name, has_weights=weights is not None or random)
    own = open_clip.get_model_config(model_name) or {}
    quick = bool(own.get("quick_gelu") or tag_config.get("quick_gelu"))
    settings = {"force_quick_gelu": quick, **_checked(arguments)}
    fetched = tag is not None and weights is None and not random
    preset = {key: tag_config[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in tag_config}
    model = build_or_fetch(
        name,
        arguments,
        lambda: open_clip.create_model(
            model_name,
            pretrained=tag if fetched else None,
            force_preprocess_cfg=preset,
            pretrained_text=False,
            **settings,
        ),
        f"weights {tag} of {name} are not in open_clip's cache" if fetched else "",
        random,
    )
    activation = "QuickGELU" if settings["force_quick_gelu"] else "GELU"
    notes: tuple[str, ...] = ()
    shown = name_of_weights(weights, random, str(tag))
    if weights is not None:
        load_file(model, weights)
        note = f"{model_name} is built with {activation}; if {shown} was trained with the other, name its tag, "
        notes = () if tag else (f"{note}as in clip:{model_name}/openai",)
    model.eval()
    tensor = f"projected image embedding, not normalised; {activation}"
    full = f"clip:{model_name}" + (f"/{tag}" if tag else "")
    encode_text = _text_encoder(name, model_name, model)
    tower = ImageTower(model).eval()
    transform, layers = _transform(full, model), _layers(model, activation)
    return Backbone(full, tower, transform, tensor, shown, arguments, encode_text, notes, layers=layers)


def _checked(arguments: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(set(arguments) & SETTLED)
    if taken:
        raise UsageError(f"backbone argument {taken[0]} is set by linprobe; use the name, --weights, or --mean ...")
    return arguments


def _text_encoder(name: str, model_name: str, model: Any) -> Callable[[list[str]], Tensor]:
    try:
        with quietly():
            tokenizer = open_clip.get_tokenizer(model_name)
    except Exception as error:  # some tokenizers are downloaded, or need another package
        reason = first_line(error)[:200]
        raise DataError(f"the tokenizer of {name} cannot be loaded ({reason}); name another clip:MODEL") from None

    def encode_text(prompts: list[str]) -> Tensor:
        device = next(model.parameters()).device
        with torch.inference_mode():
            encoding: Tensor = model.encode_text(tokenizer(prompts).to(device))
        return encoding.float()

    return encode_text


def _parse(name: str, *, has_weights: bool) -> tuple[str, str | None, dict[str, Any]]:
    """Model name, pretrained tag (None if weights come from a file and no tag is given), and open_clip's tag config."""
    model_name, _, tag = name.partition(":")[2].partition("/")
    model_name = model_name or DEFAULT_MODEL
    if model_name not in open_clip.list_models():
        near = [known for known in open_clip.list_models() if known.startswith(model_name[:5])][:6]
        raise UsageError(
            f"backbone {name} is not a network of open_clip; allowed: clip:MODEL, such as "
            f"{', '.join(near or ['RN50', 'ViT-B-32', 'ViT-B-16', 'ViT-L-14'])}"
        )
    tags = open_clip.list_pretrained_tags_by_model(model_name)
    if not tag and has_weights:
        return model_name, None, {}
    if not tag and DEFAULT_TAG in tags:
        tag = DEFAULT_TAG
    if tag not in tags:
        raise UsageError(
            f"backbone {name} names the weights {tag!r}; allowed for {model_name}: {', '.join(tags) or 'none'}; "
            f"give clip:{model_name}/TAG or --weights FILE"
        )
    tag_config = open_clip.get_pretrained_cfg(model_name, tag)
    if model_name.endswith("-quickgelu") and not tag_config.get("quick_gelu"):
        raise UsageError(
            f"backbone {name} pairs a QuickGELU network with weights trained with GELU; "
            f"name clip:{model_name.removesuffix('-quickgelu')}/{tag}"
        )
    return model_name, tag, tag_config


def _transform(name: str, model: Any) -> ImageTransform:
    config = open_clip.get_model_preprocess_cfg(model)
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    resize_mode = config["resize_mode"]
    if resize_mode not in ("shortest", "squash") or (resize_mode == "shortest" and height != width):
        raise UsageError(f"backbone {name} resizes by {resize_mode!r} to {size}; allowed: shortest (square) and squash")
    resize = (height, width) if resize_mode == "squash" else height
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return ImageTransform(resize, (height, width), config["interpolation"], mean, std)
