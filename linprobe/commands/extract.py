"""`linprobe extract`: images to a feature file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from linprobe.commands._dry_run import DryRun, bytes_in_words, counted, listed, time_line
from linprobe.errors import DataError, LinprobeError, UsageError, advice, reading
from linprobe.extraction.request import ExtractOutcome, Recipe, family_of
from linprobe.extraction.request import ExtractRequest as ExtractRequest
from linprobe.progress import Progress


def extract(request: ExtractRequest, progress: Progress, like: Path | None = None) -> ExtractOutcome | None:
    """Extract features of images to a feature file; None in every process but the first of several.

    Args:
        like: run folder or feature file. The images then have no labels, and become rows in the way of its rows.
    """
    request = _checked(request, progress, like)
    from linprobe.extraction.extract import extract as run_extraction

    try:
        return run_extraction(request, progress)
    except ConnectionError:  # between processes
        raise
    except OSError as error:
        raise LinprobeError(f"the extraction to {request.out} stopped ({error}); {advice(error)}") from None


def dry_run(request: ExtractRequest, progress: Progress, like: Path | None = None) -> DryRun:
    """What `extract` would read and write, without an image of it on the disk.

    Returns: as `linprobe.extraction.estimate.estimate`.

    Raises:
        LinprobeError: as `extract`, before the first image is read.
    """
    request = _checked(request, progress, like)
    from linprobe.extraction.estimate import estimate

    facts = estimate(request, progress)
    images = ", ".join(
        f"{count:,} {'unlabelled' if name == 'rows' else name}" for name, count in facts["images"].items()
    )
    height, width = facts["image_size"]
    lines = [
        ("reads", f"{facts['source']}: {images} images of {counted(facts['n_classes'], 'class')}"),
        ("network", f"{facts['backbone']}, {facts['weights'] or 'no'} weights, {width} x {height} pixels"),
        ("", f"{facts['device']}, {facts['precision']}, batches of {facts['batch_size']}, {facts['workers']} workers"),
        ("spends", "nothing; training on the rows does"),
    ]
    if facts["exists"]:
        return DryRun(facts, [*lines, ("writes", f"nothing: {facts['out']} exists, made with the same settings")])
    if facts["done"]:
        lines.append(("resumes", f"{facts['done']:,} images are done"))
    rows = f"rows of {facts['n_features']} features as {facts['dtype']}, {bytes_in_words(facts['file_bytes'])}"
    beside, free = (bytes_in_words(facts[name]) for name in ("working_bytes", "free_bytes"))
    lines += time_line(facts["seconds"], "the images that are left")
    lines += listed("writes", [f"{facts['out']}: {rows}", f"{beside} beside it until it is complete; {free} are free"])
    return DryRun(facts, lines)


def _checked(request: ExtractRequest, progress: Progress, like: Path | None) -> ExtractRequest:
    """The request with what `like` says. A wrong name or path is told before anything slow."""
    if request.backbone is not None:
        family_of(request.backbone)
    from linprobe.extraction.images import located
    from linprobe.extraction.sources.folders import check_unlabelled

    if like is None:
        located(request.source)
    else:
        check_unlabelled(Path(request.source))
        request = replace(request, like=_recipe(like))
        _check_kept(request, like)
    # torch and torchvision take seconds to import
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several processes
        progress.note(f"{request.source}: loading PyTorch and the network")
    return request


def _check_kept(request: ExtractRequest, like: Path) -> None:
    """UsageError if the output would replace the file of `like`, or the feature file that the run was trained on."""
    out = request.out
    if out is None or not request.overwrite or not out.exists():
        return
    from linprobe.commands._output import inputs_of

    for path in (like, *inputs_of(like)):
        if path.exists() and path.samefile(out):
            raise UsageError(f"feature file {out} would replace an input of the command; give --out another name")


def _recipe(path: Path) -> Recipe:
    """How the rows of a run or a feature file were made.

    Raises:
        DataError: neither of the two, or rows that `linprobe extract` did not make.
    """
    from linprobe.data.feature_file import FeatureFile
    from linprobe.data.feature_reader import extraction_of
    from linprobe.runs.manifest import read_manifest
    from linprobe.runs.run_files import RunFiles

    if path.is_dir():
        manifest = read_manifest(RunFiles(path))
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
