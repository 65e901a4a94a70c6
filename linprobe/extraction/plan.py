"""Decisions before the first image is read: checked options, device, network of `--like`, prompts, sizes, settings."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linprobe.data.feature_file import UNLABELLED
from linprobe.data.feature_reader import PRIVATE, weights_from_file
from linprobe.data.labels import SHARED, id_hashes
from linprobe.errors import DataError, UsageError, counted, first_line
from linprobe.extraction.backbones import RANDOM, Backbone, load_backbone
from linprobe.extraction.images import Batches, ImageTransform, first_shapes, first_size
from linprobe.extraction.partial import Partial
from linprobe.extraction.request import ExtractRequest, Recipe, read_lines
from linprobe.extraction.sources.base import FOLDER_NAMES, ImageSource, Members

DEFAULT_TEMPLATES = ("a photo of a {}.",)
TEMPLATE_SETS = ("openai-80", "simple-7")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BATCH_ON_GPU, BATCH_ON_CPU = 512, 8  # larger batches are slower on a CPU: see benchmarks/extraction
COMPARED = ("backbone", "weights_digest", "arguments", "tensor", "transform", "image_size")
LOOKED_AT = 100  # test images that decide the preprocessing of a backbone that takes any image


def backbone_like(recipe: Recipe, weights: str | None) -> Backbone:
    """The network of the recipe, with its preprocessing, and its weights by name or from the file `weights`."""
    random = recipe.weights == RANDOM
    if weights is None and weights_from_file(recipe.weights):
        raise UsageError(f"{recipe.name} was made with weights from the file {recipe.weights}; give --weights FILE")
    # the names of clip and timm networks contain the name of their weights
    named = recipe.weights if recipe.weights and not random and ":" not in recipe.backbone else None
    wanted = named if weights is None else weights
    backbone = load_backbone(recipe.backbone, wanted, random and weights is None, recipe.arguments, recipe.layer)
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
        raise DataError(f"{recipe.name} has unknown preprocessing ({error}); give --backbone, not --like") from None
    # keep the name of the weights in the recipe: a file may have been renamed
    return replace(backbone, transform=transform, transform_for=None, weights=recipe.weights)


def prompt_parts(
    class_names: Path | None, templates: str | None, source: ImageSource, backbone: Backbone
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    if backbone.encode_text is None or not source.class_names:
        if class_names is not None or templates is not None:
            of = f"layer {backbone.layer} of" if backbone.layer else "backbone"
            raise UsageError(f"{of} {backbone.name} has no text tower; leave out --class-names and --templates")
        return None
    names = source.class_names
    if class_names is not None:
        names = tuple(read_lines(class_names, "list of class names", "one class name"))
        if len(names) != len(source.class_names):
            raise DataError(
                f"{class_names} lists {len(names)} class names; allowed: {len(source.class_names)}, in label order"
            )
        mine, theirs = ([_prompt(name).casefold() for name in each] for each in (names, source.class_names))
        if mine != theirs and sorted(mine) == sorted(theirs):
            place = next(place for place, name in enumerate(mine) if name != theirs[place])
            raise DataError(
                f"{class_names} lists {names[place]!r} as class {place}, where the class list has "
                f"{source.class_names[place]!r}; allowed: names in label order; sort the lines"
            )
    elif source.class_names_from == FOLDER_NAMES:
        names = tuple(map(_prompt, names))
    return names, _templates(templates)


def _prompt(name: str) -> str:
    return name.replace("_", " ")


def _templates(wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return DEFAULT_TEMPLATES
    if wanted in TEMPLATE_SETS:
        import open_clip

        kept = open_clip.OPENAI_IMAGENET_TEMPLATES if wanted == "openai-80" else open_clip.SIMPLE_IMAGENET_TEMPLATES
        return tuple(template("{}") for template in kept)
    path = Path(wanted)
    if not path.is_file():
        raise UsageError(f"templates is {wanted!r}; allowed: {', '.join(TEMPLATE_SETS)}, or a file of templates")
    lines = read_lines(path, "template file", "one template")
    for line in lines:
        if "{}" not in line:
            raise DataError(f"template {line!r} in {path} has no {{}} for the class name; put one in")
    return tuple(lines)


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device for auto, cpu, cuda:1, ...; processes of a machine share its GPUs. Raises UsageError: no such."""
    available = ["cpu"]
    if torch.cuda.is_available():
        available = ["cuda", "cpu"]
    elif torch.backends.mps.is_available():
        available = ["mps", "cpu"]
    try:
        device = torch.device(available[0] if wanted == "auto" else wanted)
    except RuntimeError:
        raise UsageError(f"device is {wanted!r}; allowed here: auto, {', '.join(available)}") from None
    if device.type not in available or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UsageError(f"device is {wanted!r}, which torch does not find; allowed here: auto, {', '.join(available)}")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return device


@dataclass(frozen=True)
class ExtractionPlan:
    """Everything decided before the first image is read."""

    out: Path
    source: ImageSource
    backbone: Backbone
    batches: dict[str, Batches]  # of each group
    width: int  # features per row
    device: torch.device
    prompts: tuple[tuple[str, ...], tuple[str, ...]] | None  # class names and templates, for a text tower
    settings: dict[str, Any]  # all that decides the rows; only a run with equal settings may resume this one

    @property
    def sizes(self) -> dict[str, int]:
        return {group: len(batches.members) for group, batches in self.batches.items()}

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.settings["dtype"]))

    @property
    def folder(self) -> Path:
        return self.out.with_name(f"{self.out.name}.partial")

    def partial(self, rank: int = 0) -> Partial:
        return Partial(self.folder, self.sizes, self.width, self.dtype, rank)

    @property
    def extraction_digest(self) -> str:
        """SHA-256 of network, weights, tensor and preprocessing: rows of two files are comparable if it is equal."""
        compared = {name: self.settings[name] for name in COMPARED}
        return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()

    @property
    def public_settings(self) -> dict[str, Any]:
        """The settings that the feature file states openly: without fingerprint and number of images."""
        return {name: value for name, value in self.settings.items() if name not in ("fingerprint", "images")}


def make_plan(
    request: ExtractRequest, recipe: Recipe | None, source: ImageSource, backbone: Backbone, device: torch.device
) -> ExtractionPlan:
    backbone = _with_transform(request, source, backbone)
    transform = backbone.transform
    default = BATCH_ON_GPU if device.type == "cuda" else backbone.batch_on_cpu or BATCH_ON_CPU
    batch_size = request.batch_size or max(1, default // transform.views)
    precision = _precision(request.precision, backbone, device)
    size = transform.output_size or (_test_size(request, source, transform) if recipe is None else recipe.image_size)
    batches = {group: Batches(members, transform, batch_size, size) for group, members in source.groups.items()}
    _refuse_repeated_ids(source)
    width = _width(backbone, size)
    prompts = None if recipe else prompt_parts(request.class_names, request.templates, source, backbone)
    stamps = "".join(f"{group}\0{members.fingerprint()}\0" for group, members in source.groups.items())
    settings = {
        "backbone": backbone.name,
        "weights": backbone.weights,
        "weights_digest": backbone.weights_digest(),
        "arguments": backbone.arguments,
        "tensor": backbone.tensor,
        **({} if backbone.layer is None else {"layer": backbone.layer}),
        "transform": json.loads(transform.text),
        "image_size": size,
        "source": source.name,
        "images": {group: len(members) for group, members in source.groups.items()},
        "fingerprint": hashlib.sha256(stamps.encode()).hexdigest(),
        "classes": source.class_names,
        "prompts": prompts,
        "device": device.type,
        "precision": precision,
        "batch_size": batch_size,
        "dtype": request.dtype,
        "torch": torch.__version__,
        **({"test_rows": PRIVATE} if request.private_test else {}),
        **({"test_owners": SHARED} if request.owners_on_both_sides else {}),
    }
    named = re.sub(r"[^\w.-]", "-", backbone.name)
    out = request.out or Path("features") / f"{Path(source.name).stem}-{named}.h5"
    plan = ExtractionPlan(out, source, backbone, batches, width, device, prompts, settings)
    if recipe is not None and plan.extraction_digest != recipe.extraction_digest:
        raise DataError(f"{recipe.name} was made by a linprobe with another {backbone.name}; install that version")
    return plan


def _with_transform(request: ExtractRequest, source: ImageSource, backbone: Backbone) -> Backbone:
    transform = backbone.transform
    if backbone.transform_for is not None:
        # test images are public: a private image must not decide the preprocessing
        looked_at = set() if request.private_test else first_shapes(_public_images(request, source), LOOKED_AT)
        transform = backbone.transform_for(looked_at)
    transform = transform.overridden(request.resize, request.crop, request.mean, request.std, request.interpolation)
    return replace(backbone, transform=transform if request.like else replace(transform, views=request.views))


def _public_images(request: ExtractRequest, source: ImageSource) -> Members:
    return source.groups[UNLABELLED if request.unlabelled else "test"]


def _precision(wanted: str, backbone: Backbone, device: torch.device) -> str:
    if wanted == "auto":
        return "bfloat16" if device.type == "cuda" and not backbone.float32_only else "float32"
    if backbone.float32_only and wanted != "float32":
        raise UsageError(f"precision is {wanted!r}; allowed for backbone {backbone.name}: auto, float32")
    return wanted


def _test_size(request: ExtractRequest, source: ImageSource, transform: ImageTransform) -> tuple[int, int]:
    if request.private_test:
        raise UsageError("images have no fixed size, and no private test image may decide it; give --resize and --crop")
    size = first_size(_public_images(request, source), transform)
    if size is None:
        raise DataError(f"{source.name}: no test image can be read; allowed: at least one whole image")
    return size


def _refuse_repeated_ids(source: ImageSource) -> None:
    for group, members in source.groups.items():
        hashes = id_hashes(map(members.id, range(len(members))), 0)
        _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        if (counts > 1).any():
            name = members.id(int(first[np.argmax(counts > 1)]))
            raise DataError(f"{group} has {counted(int((counts > 1).sum()), 'repeated id')}, first {name!r}; rename it")


def _width(backbone: Backbone, size: tuple[int, int]) -> int:
    """Features per row, measured on one black image."""
    image = torch.zeros((1, len(backbone.transform.mean), *size))
    try:
        with torch.inference_mode():
            features = backbone.model(image)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = first_line(error)
        raise UsageError(
            f"backbone {backbone.name} cannot take images of {size[0]} x {size[1]} pixels ({reason}); "
            "change --resize, --crop or --backbone-arg"
        ) from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UsageError(f"backbone {backbone.name} gives {shape} for one image; allowed: one vector; name another")
    return int(features.shape[1])
