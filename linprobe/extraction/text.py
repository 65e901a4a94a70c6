"""Zero-shot text weights: class names in prompt templates, encoded, averaged (AdaMix paper, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DEFAULT_TEMPLATES = ("a photo of a {}.",)
PROMPTS_AT_ONCE = 256


def text_weights(
    encode: Callable[[list[str]], Tensor], class_names: Sequence[str], templates: Sequence[str]
) -> NDArray[np.float32]:
    """One column a class, shape (n_features, n_classes): the mean of its normalised encodings, normalised again."""
    prompts = [template.replace("{}", name) for name in class_names for template in templates]
    parts = [encode(prompts[start : start + PROMPTS_AT_ONCE]) for start in range(0, len(prompts), PROMPTS_AT_ONCE)]
    encodings = torch.nn.functional.normalize(torch.cat(parts).cpu(), dim=1)
    means = encodings.view(len(class_names), len(templates), -1).mean(dim=1)
    return np.ascontiguousarray(torch.nn.functional.normalize(means, dim=1).T.numpy(), dtype=np.float32)
