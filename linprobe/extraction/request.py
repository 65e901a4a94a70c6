"""What `linprobe extract` knows of backbones, recipes and its outcome. Imports neither torch nor NumPy."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.atomic_files import given_text
from linprobe.errors import DataError, UsageError
from linprobe.options.requests import BACKBONES
from linprobe.options.requests import ExtractRequest as ExtractRequest

FAMILIES = {
    "resnet50": "resnet",
    "wide-resnet50-2": "resnet",
    "clip": "clip",
    "wrn-16-4": "wrn",
    "wrn-40-4": "wrn",
    "wrn-28-10": "wrn",
    "timm": "timm",
    "pixels": "scattering",
    "scattering": "scattering",
}
DEFAULT, DEFAULT_WITHOUT_WEIGHTS = "resnet50", "scattering"  # the second if the weights of the first are out of reach
LAYERS = {"clip": ("pre-projection",), "timm": ("last4+avg",)}  # by family; no network has another choice of layer
WITH_NAMES = {name.partition(":")[0] for name in BACKBONES if ":" in name}


@dataclass(frozen=True)
class Recipe:
    """How rows were made, for `--like`: new images become rows in the same way."""

    name: str  # of the run or feature file
    class_names: tuple[str, ...]
    backbone: str
    weights: str  # a name, or the name of a file
    weights_digest: str
    arguments: dict[str, Any]
    layer: str | None
    preprocessing: dict[str, Any]  # fields of `ImageTransform`
    image_size: tuple[int, int]  # (height, width) of the network's input
    extraction_digest: str


def family_of(backbone: str) -> str:
    """The module of a backbone's family in `linprobe.extraction.backbones`. Raises UsageError: no such backbone."""
    family = backbone.partition(":")[0]
    if family not in FAMILIES or ((":" in backbone) != (family in WITH_NAMES) and backbone != "clip"):
        raise UsageError(f"backbone is {backbone!r}; allowed: {', '.join(BACKBONES)}")
    return FAMILIES[family]


def check_layer(backbone: str, layer: str | None, allowed: Collection[str]) -> None:
    if layer is not None and layer not in allowed:
        raise UsageError(
            f"layer is {layer!r}; allowed for backbone {backbone}: {', '.join(allowed) or 'none'}; leave out --layer "
            "for the output of the network"
        )


CLASS = "one class name"


def read_lines(path: Path, what: str, one: str) -> list[str]:
    """The non-blank lines of a file of an option; `what` and `one` are for messages. DataError: unreadable, empty."""
    try:
        lines = [line.strip() for line in given_text(path, "utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what} {path} cannot be read ({error}); give {one} per line") from None
    if not lines:
        raise DataError(f"{what} {path} is empty; give {one} per line")
    return lines


def read_class_names(given: Path | None) -> list[str] | None:
    """The class names that --classes declares: A,B,C, or a file with one name per line. Raises as `read_lines`."""
    if given is None:
        return None
    names = [name.strip() for name in str(given).split(",")]
    named = len(names) > 1 and all(names) and not os.path.exists(given)  # noqa: PTH110  # Path.exists raises for long lists
    return names if named else read_lines(given, "class list", CLASS)
