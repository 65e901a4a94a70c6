"""`linprobe extract`: images to a feature file. What can be refused without PyTorch is refused before its import."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from linprobe.atomic_files import check_place
from linprobe.errors import DataError, LinprobeError, Progress, UsageError, advice, reading, require
from linprobe.extraction.request import DEFAULT, LAYERS, ExtractRequest, Recipe, check_layer, family_of
from linprobe.options.declaration import declared
from linprobe.parallel.available_memory import check_limit

# arguments that do not change how an image becomes a row
FREE = {
    "source", "out", "weights", "device", "precision", "batch_size", "workers", "dtype", "on_error", "overwrite",
    "like", "as_json", "unlabelled",
}  # fmt: skip
OF_LABELLED = (
    "classes", "test_fraction", "private_test", "owners_on_both_sides", "table", "owners", "owner_regex", "class_names",
    "templates",
)  # fmt: skip


def extract(request: ExtractRequest, progress: Progress) -> dict[str, Any] | None:
    """Make the feature file of a request, resuming an interrupted run; under torchrun, rank 0 reports."""
    recipe = _checked(request)
    from linprobe.extraction.sources import listed_source

    try:
        source = listed_source(request, recipe)
        check_limit()  # again: PyTorch needs as much, and ends with a segmentation fault if a thread gets no memory
        # torch and torchvision take seconds to import
        if os.environ.get("RANK", "0") == "0":  # torchrun starts several processes
            progress.note(f"{request.images}: loading PyTorch and the network")
        from linprobe.extraction.run import run_extraction

        return run_extraction(request, recipe, source, progress)
    except ConnectionError:  # between processes
        raise
    except OSError as error:
        raise LinprobeError(f"the extraction to {request.out} stopped ({error}); {advice(error)}") from None


def _checked(request: ExtractRequest) -> Recipe | None:
    backbone = request.backbone or DEFAULT
    family = family_of(backbone)
    if request.like is None:
        check_layer(backbone, request.layer, LAYERS.get(family, ()))
    require("extract", "extract")
    recipe = None if request.like is None else _recipe(request.like)
    _check_out(request)
    if recipe is not None:
        settled = [name for name in declared(ExtractRequest) if name not in FREE]
        _refuse_idle(request, settled, f"--like {recipe.name}, which settles network, preprocessing and classes")
    elif request.unlabelled:
        _refuse_idle(request, OF_LABELLED, "--unlabelled, which makes rows without labels")
    return recipe


def _check_out(request: ExtractRequest) -> None:
    from linprobe.data.feature_file import is_hdf5
    from linprobe.runs.run_folder import inputs_of

    out = request.out
    if out is None:
        return
    check_place(out, "feature file")
    if out.is_dir():
        raise UsageError(f"feature file {out} is a folder; give --out a file name")
    if not out.exists():
        return
    like = () if request.like is None else (request.like, *inputs_of(request.like))
    for given in (request.images, request.weights, *like):
        if given is not None and Path(given).exists() and out.samefile(given):
            raise UsageError(f"feature file {out} would replace an input of the command; give --out another name")
    if request.overwrite and not is_hdf5(out):
        raise UsageError(f"{out} is no feature file, and --overwrite would replace it; give --out another name")


def _refuse_idle(request: ExtractRequest, idle: Iterable[str], beside: str) -> None:
    for name in idle:
        one = declared(ExtractRequest)[name]
        if getattr(request, name) != one.default:
            raise UsageError(f"option {one.spellings[0]} does nothing with {beside}; leave one of the two out")


def _recipe(path: Path) -> Recipe:
    from linprobe.data.feature_file import FeatureFile
    from linprobe.data.feature_reader import extraction_of
    from linprobe.runs.run_folder import RunFolder

    if not path.exists():
        raise DataError(
            f"run or feature file {path} does not exist; give --like the run folder that `linprobe train` printed, or "
            "a feature file of `linprobe extract`"
        )
    if path.is_dir():
        manifest = RunFolder(path).manifest
        extraction, class_names = manifest.extraction or {}, manifest.class_names
    else:
        with FeatureFile(path) as features:
            extraction, class_names = extraction_of(features.description), list(features.description.class_names)
    preprocessing, size = extraction.get("preprocessing"), extraction.get("image_size")
    if not extraction.get("extraction_digest") or not isinstance(preprocessing, dict) or not size:
        raise DataError(
            f"{path} does not say how its rows were made, so --like cannot use its settings; give a run or feature "
            "file whose rows came from linprobe extract, or give --backbone"
        )
    with reading(f"{path}: how its rows were made", "give --backbone"):
        return Recipe(
            name=str(path),
            class_names=tuple(class_names),
            backbone=extraction["backbone"],
            weights=extraction["weights"],
            weights_digest=extraction["weights_digest"],
            arguments=dict(extraction["arguments"] or {}),
            layer=extraction.get("layer"),
            preprocessing=preprocessing,
            image_size=(int(size[0]), int(size[1])),
            extraction_digest=extraction["extraction_digest"],
        )
