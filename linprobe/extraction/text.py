"""Zero-shot text weights: class names in prompt templates, encoded, averaged (AdaMix paper, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linprobe.errors import DataError, UsageError
from linprobe.extraction.backbones import Backbone
from linprobe.extraction.request import read_lines
from linprobe.extraction.sources.base import FOLDER_NAMES, ImageSource

DEFAULT_TEMPLATES = ("a photo of a {}.",)
TEMPLATE_SETS = ("openai-80", "simple-7")
PROMPTS_AT_ONCE = 256


def prompt_parts(
    class_names: Path | None, templates: str | None, source: ImageSource, backbone: Backbone
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Class names for prompts, in label order, and prompt templates; None for a network without a text tower.

    Args:
        class_names: file with one name per line; None to use the class list of the source.
        templates: a name in TEMPLATE_SETS, or a file with one template per line; None for DEFAULT_TEMPLATES.

    Raises:
        UsageError: the network has no text tower, or no such templates. DataError: an unsuitable file.
    """
    if backbone.encode_text is None:
        if class_names is not None or templates is not None:
            raise UsageError(f"backbone {backbone.name} has no text tower; leave out --class-names and --templates")
        return None
    names = source.class_names
    if class_names is not None:
        names = tuple(read_lines(class_names, "list of class names", "one class name"))
        if len(names) != len(source.class_names):
            raise DataError(
                f"{class_names} lists {len(names)} class names; allowed: {len(source.class_names)}, one for "
                "each class in label order"
            )
    elif source.class_names_from == FOLDER_NAMES:
        names = tuple(name.replace("_", " ") for name in names)
    return names, _templates(templates)


def _templates(wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return DEFAULT_TEMPLATES
    if wanted in TEMPLATE_SETS:
        import open_clip

        kept = open_clip.OPENAI_IMAGENET_TEMPLATES if wanted == "openai-80" else open_clip.SIMPLE_IMAGENET_TEMPLATES
        return tuple(template("{}") for template in kept)
    path = Path(wanted)
    if not path.is_file():
        raise UsageError(
            f"templates is {wanted!r}; allowed: {', '.join(TEMPLATE_SETS)}, or a file with one template per line"
        )
    lines = read_lines(path, "template file", "one template")
    for line in lines:
        if "{}" not in line:
            raise DataError(f"template {line!r} in {path} has no {{}} for the class name; put one in")
    return tuple(lines)


def text_weights(
    encode: Callable[[list[str]], Tensor], class_names: Sequence[str], templates: Sequence[str]
) -> NDArray[np.float32]:
    """Text weights, shape (n_features, n_classes): for each class the normalised mean of its normalised encodings."""
    prompts = [template.replace("{}", name) for name in class_names for template in templates]
    parts = [encode(prompts[start : start + PROMPTS_AT_ONCE]) for start in range(0, len(prompts), PROMPTS_AT_ONCE)]
    encodings = torch.nn.functional.normalize(torch.cat(parts).cpu(), dim=1)
    means = encodings.view(len(class_names), len(templates), -1).mean(dim=1)
    return np.ascontiguousarray(torch.nn.functional.normalize(means, dim=1).T.numpy(), dtype=np.float32)
