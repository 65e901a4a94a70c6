"""Backbones by name. Each family has a file of its own with `load(name, weights, random, arguments)`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from linprobe.errors import UsageError
from linprobe.extraction.backbones.weights import UnreachableWeightsError
from linprobe.extraction.images import ImageTransform
from linprobe.extraction.request import family_of

DEFAULT, DEFAULT_WITHOUT_WEIGHTS = "resnet50", "scattering"


@dataclass(frozen=True)
class Backbone:
    """A frozen network that maps each image to one row of features.

    Attributes:
        name: as the user gives it, with defaults filled in.
        model: float images (rows, channels, height, width) to features (rows, n_features), in `eval()` mode.
        transform: its preprocessing; with `transform_for`, replaced once the test images are known.
        tensor: description of the tensor that is a row.
        weights: name of the weights; `random` for random ones, empty for a network without weights.
        arguments: constructor arguments that differ from the defaults.
        encode_text: prompts to encodings (prompts, n_features); None without a text tower.
        notes: facts to tell the user about the network.
        transform_for: preprocessing for test images of the given (mode, height, width); None if it is fixed.
        float32_only: whether it computes in float32 on every device.
        batch_on_cpu: default number of images per batch on a CPU; None for the default of networks.
    """

    name: str
    model: nn.Module
    transform: ImageTransform
    tensor: str
    weights: str
    arguments: dict[str, Any] = field(default_factory=dict)
    encode_text: Callable[[list[str]], Tensor] | None = None
    notes: tuple[str, ...] = ()
    transform_for: Callable[[Collection[tuple[str, int, int]]], ImageTransform] | None = None
    float32_only: bool = False
    batch_on_cpu: int | None = None

    def weights_digest(self) -> str:
        """SHA-256 of parameters and buffers by name, independent of the file; empty for a network without weights."""
        state = self.model.state_dict()
        if not state:
            return ""
        sha = hashlib.sha256()
        for name in sorted(state):
            if not name.endswith("num_batches_tracked"):
                value = state[name].detach().cpu().contiguous()
                sha.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
                sha.update(value.view(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()


def load_backbone(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    """Load the frozen network `name` with its weights, in `eval()` mode on the CPU.

    Args:
        weights: a name that the family defines, or a file; None for the family's default.
        random: use random weights from a fixed seed, for tests.
        arguments: passed to the network's constructor.

    Raises:
        UsageError: no such backbone, weights or argument. DataError: weights missing, damaged, or of another network.
    """
    family = family_of(name)
    if random and weights is not None:
        raise UsageError(f"weights is {weights!r} and --random-weights is on; give one of the two")
    module = import_module(f"linprobe.extraction.backbones.{family}")
    loaded: Backbone = module.load(name, weights, random, arguments)
    return loaded


def load_default(weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    """The backbone where the user names none: `resnet50`, or `scattering` if its weights are out of reach.

    Weights and arguments belong to `resnet50`: with any of them there is no other choice. A note says that `scattering`
    was chosen, and why. Arguments and errors as in `load_backbone`.
    """
    try:
        return load_backbone(DEFAULT, weights, random, arguments)
    except UnreachableWeightsError as error:
        if weights is not None or arguments:
            raise
        reason = str(error).partition(";")[0]
    backbone = load_backbone(DEFAULT_WITHOUT_WEIGHTS, None, False, {})
    note = f"{reason}; the backbone is {backbone.name}, which needs none; --backbone names another"
    return replace(backbone, notes=(note, *backbone.notes))
