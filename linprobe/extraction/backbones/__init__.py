"""Backbones by name. Each family has a file of its own with `load(name, weights, random, arguments)`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from linprobe.errors import UsageError
from linprobe.extraction.backbones._base import RANDOM, SUFFIXES, Backbone, UnreachableWeightsError
from linprobe.extraction.request import family_of

__all__ = ["RANDOM", "SUFFIXES", "Backbone", "load_backbone", "load_default"]

DEFAULT, DEFAULT_WITHOUT_WEIGHTS = "resnet50", "scattering"


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
    was chosen, and why. Arguments and errors are those of `load_backbone`.
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
