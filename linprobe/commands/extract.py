"""`linprobe extract`: images to a feature file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from linprobe.errors import DataError, LinprobeError, advice, reading
from linprobe.extraction.request import ExtractOutcome, Recipe, family_of
from linprobe.extraction.request import ExtractRequest as ExtractRequest
from linprobe.progress import Progress


def extract(request: ExtractRequest, progress: Progress, like: Path | None = None) -> ExtractOutcome | None:
    """Extract features of images to a feature file; None in every process but the first of several.

    Args:
        like: run folder or feature file. The images then have no labels, and become rows in the way of its rows.
    """
    if request.backbone is not None:
        family_of(request.backbone)  # a wrong name is told before anything slow
    if like is not None:
        request = replace(request, like=_recipe(like))
    # torch and torchvision take seconds to import
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several processes
        progress.note(f"{request.source}: loading PyTorch and the network")
    from linprobe.extraction.extract import extract as run_extraction

    try:
        return run_extraction(request, progress)
    except ConnectionError:  # between processes
        raise
    except OSError as error:
        raise LinprobeError(f"the extraction to {request.out} stopped ({error}); {advice(error)}") from None


def _recipe(path: Path) -> Recipe:
    """How the rows of a run or a feature file were made.

    Raises:
        DataError: neither of the two, or rows that `linprobe extract` did not make.
    """
    from linprobe.data.feature_file import FeatureFile
    from linprobe.data.provenance import extraction_of
    from linprobe.runs.manifest import read_manifest

    if path.is_dir():
        manifest = read_manifest(path)
        return _of(path, manifest.get("extraction") or {}, manifest["class_names"])
    with FeatureFile(path) as features:
        return _of(path, extraction_of(features.description), features.description.class_names)


def _of(path: Path, extraction: dict[str, Any], class_names: Sequence[str]) -> Recipe:
    preprocessing, size = extraction.get("preprocessing"), extraction.get("image_size")
    if not extraction.get("extraction_digest") or not isinstance(preprocessing, dict) or not size:
        raise DataError(
            f"{path} does not say how its rows were made, so --like cannot make rows alike; give a run or feature file "
            "whose rows came from linprobe extract, or give --backbone"
        )
    with reading(f"{path}: how its rows were made", "give --backbone"):
        return Recipe(
            name=str(path),
            class_names=tuple(class_names),
            backbone=extraction["backbone"],
            weights=extraction["weights"],
            weights_digest=extraction["weights_digest"],
            arguments=dict(extraction["arguments"] or {}),
            preprocessing=preprocessing,
            image_size=(int(size[0]), int(size[1])),
            extraction_digest=extraction["extraction_digest"],
        )
