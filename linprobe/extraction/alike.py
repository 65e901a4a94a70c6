"""The network and the preprocessing that made the rows of a run or feature file, for `--like`."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from linprobe.errors import DataError, UsageError
from linprobe.extraction.backbones import RANDOM, SUFFIXES, Backbone, load_backbone
from linprobe.extraction.request import ExtractRequest, Recipe
from linprobe.extraction.transform import ImageTransform

# arguments that do not change how an image becomes a row
FREE = {
    "source", "out", "weights", "device", "precision", "batch_size", "workers", "compile", "dtype", "on_error",
    "timeout", "overwrite", "like", "root",
}  # fmt: skip


def check_alone(request: ExtractRequest) -> None:
    """Refuse options that the run or file of `--like` settles.

    Raises:
        UsageError: such an option was given.
    """
    if request.like is None:
        return
    plain = ExtractRequest(request.source)
    for entry in fields(ExtractRequest):
        if entry.name not in FREE and getattr(request, entry.name) != getattr(plain, entry.name):
            raise UsageError(
                f"option --{entry.name.replace('_', '-')} does nothing with --like {request.like.name}, which settles "
                "network, preprocessing and classes; leave one of the two out"
            )


def backbone_like(recipe: Recipe, weights: str | None) -> Backbone:
    """The network of the recipe, with its weights and preprocessing.

    Args:
        weights: a file, or a name of the family; None for the name in the recipe.

    Raises:
        UsageError: the weights were a file, and none is given. DataError: other weights, or those of `load_backbone`.
    """
    random = recipe.weights == RANDOM
    if weights is None and not random and Path(recipe.weights).suffix in SUFFIXES:
        raise UsageError(f"{recipe.name} was made with weights from the file {recipe.weights}; give --weights FILE")
    # the names of clip and timm networks contain that of their weights
    named = recipe.weights if recipe.weights and not random and ":" not in recipe.backbone else None
    wanted = named if weights is None else weights
    backbone = load_backbone(recipe.backbone, wanted, random and weights is None, recipe.arguments)
    digest = backbone.weights_digest()
    if digest != recipe.weights_digest:
        raise DataError(
            f"weights {wanted or backbone.weights} have digest {digest[:16]}, and {recipe.name} was made with "
            f"{recipe.weights_digest[:16]} ({recipe.weights}); give those weights with --weights"
        )
    stored: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in recipe.preprocessing.items()
    }
    try:
        transform = ImageTransform(**stored)
    except TypeError as error:
        raise DataError(
            f"{recipe.name} has preprocessing that this linprobe does not know ({error}); give --backbone in "
            "place of --like"
        ) from None
    # the name of the weights is that of the recipe: a file may have been renamed
    return replace(backbone, transform=transform, transform_for=None, weights=recipe.weights)
