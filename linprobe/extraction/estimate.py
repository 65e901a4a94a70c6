"""What an extraction would do, and how long it would take, from one batch of its images."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linprobe.extraction.alike import check_alone
from linprobe.extraction.extract import describe, made_already, pending, planned, rows_of_batches
from linprobe.extraction.network import Network, workers_of
from linprobe.extraction.partial import bytes_on_disk, continues
from linprobe.extraction.plan import Plan, check
from linprobe.extraction.request import ExtractRequest
from linprobe.progress import Progress


def estimate(request: ExtractRequest, progress: Progress) -> dict[str, Any]:
    """Check a request as far as that is possible without writing, and pass one batch of its images through the network.

    The network is loaded, so weights that are not in the cache are downloaded; images are not.

    Returns: source, images (number of rows of each group), n_classes, backbone, weights, image_size, n_features, dtype,
        device, precision, batch_size, workers; out, exists (it was made with these settings); done (images that an
        unfinished extraction keeps); file_bytes, working_bytes (beside it until it is complete), free_bytes (of the
        disk); seconds.

    Raises:
        LinprobeError: as `extract`, before the first image is read.
    """
    check(request)
    check_alone(request)
    if request.download:
        progress.note("a dry run downloads no images")
    plan = planned(replace(request, download=False))
    describe(plan, progress)
    exists = made_already(plan, request)
    continued = not exists and continues(
        plan.folder, plan.settings, plan.sizes, plan.width, plan.dtype, overwrite=request.overwrite
    )
    todo = {
        name: pending(batches, np.fromfile(plan.folder / f"{name}.status", dtype=np.uint8))
        if continued
        else list(range(len(batches)))
        for name, batches in plan.batches.items()
    }
    n_images = sum(plan.sizes.values())
    left = 0 if exists else sum(rows_of_batches(plan.batches[name], numbers) for name, numbers in todo.items())
    return {
        "source": plan.source.name,
        "images": plan.sizes,
        "n_classes": len(plan.source.class_names),
        "backbone": plan.backbone.name,
        "weights": plan.backbone.weights,
        "image_size": plan.settings["image_size"],
        "n_features": plan.width,
        "dtype": str(plan.dtype),
        "device": plan.device.type,
        "precision": plan.precision,
        "batch_size": plan.settings["batch_size"],
        "workers": workers_of(request, plan.device, 1),
        "out": str(plan.out),
        "exists": exists,
        "done": n_images - left if continued or exists else 0,
        "file_bytes": n_images * plan.width * plan.dtype.itemsize,
        "working_bytes": 0 if exists else bytes_on_disk(plan.sizes, plan.width, plan.dtype),
        "free_bytes": shutil.disk_usage(_existing(plan.out)).free,
        "seconds": 0.0 if not left else left * _seconds_an_image(plan, request),
    }


def _existing(path: Path) -> Path:
    """The nearest folder above `path` that exists."""
    return next(folder for folder in path.absolute().parents if folder.is_dir())


def _seconds_an_image(plan: Plan, request: ExtractRequest) -> float:
    """Seconds to decode an image and pass it through the network, from one batch of the first group."""
    network = Network(plan, compiled=request.compile, shrink=request.batch_size is None)
    batches = plan.batches.get("test", next(iter(plan.batches.values())))
    started = time.perf_counter()
    pixels = batches[0][1]
    decoding = time.perf_counter() - started
    network(pixels)  # the first pass is slower
    computing = _seconds(lambda: network(pixels).cpu())
    workers = workers_of(request, plan.device, 1)
    # without workers, one thread decodes and computes by turns
    return (max(decoding / workers, computing) if workers else decoding + computing) / len(pixels)


def _seconds(call: Callable[[], torch.Tensor]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
