"""Test accuracy and processor time of `linprobe extract --views K`, with private training and without.

    python benchmarks/extraction/views.py SOURCE --backbone timm:mobilenetv2_100 --weights FILE [--like-flowers]
        [--views 1 2 4 8] [--seeds 3] [--methods METHOD ...] [--precision P] [--timed 64]
        [--json benchmarks/extraction/views.json]

SOURCE is extracted once in one thread, and every method of `METHODS` is trained on the rows of each number of views. A
seed chooses the public shots of adamix; noise is fresh in every run, so the one figure without noise, that of
`non-private`, has no spread. Seconds are of the processor, decoding and network together, for JPEG files of the size of
photographs. With `--json`, the result joins the results of other sources in that file.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import torch
from run import write_jpegs
from torch import Tensor

from linprobe.errors import Silent
from linprobe.extraction.extract import extract
from linprobe.extraction.request import ExtractRequest
from linprobe.extraction.run import Network
from linprobe.options.requests import TrainRequest
from linprobe.training.train import train_run

METHODS: dict[str, dict[str, Any]] = {
    "non-private": {"method": "non-private"},
    "adamix, 2 public shots": {"method": "adamix", "public_shots": 2, "per_record": False},
    "noisy-gd": {"method": "noisy-gd", "per_record": False},
}
EPSILONS = (0.5, 1.0, 3.0)
# of the weights `mobilenetv2_100_same.safetensors`, which were trained with other constants than timm's
FLOWERS: dict[str, Any] = {
    "arguments": {"pad_type": "same"},
    "resize": 256,
    "crop": 224,
    "mean": (0.50196078,),
    "std": (0.50196078,),
    "interpolation": "bicubic",
}


def accuracies(features: Path, request: dict[str, Any], epsilon: float | None, seeds: int) -> list[float]:
    """Test accuracy of each seed; of one run, without epsilon."""
    found = []
    for seed in range(seeds if epsilon else 1):
        with tempfile.TemporaryDirectory() as folder:
            place = {"out": Path(folder) / "run", "book": Path(folder) / "book"}
            asked = TrainRequest(features=features, epsilon=epsilon, split_seed=seed, **place, **request)
            found.append(round(float(train_run(asked, Silent())["test_accuracy"]), 4))
    return found


def extracted(request: ExtractRequest) -> dict[str, Any]:
    """The outcome of an extraction in this process."""
    outcome = extract(request, Silent())
    if outcome is None:
        raise SystemExit("run this benchmark in one process")
    return outcome


def files_by_views(request: ExtractRequest, counts: list[int]) -> dict[int, Path]:
    """A feature file for each number of views, from one extraction with the largest.

    The first views of many are the views of fewer, so the rows of K views are the means of the first K features of each
    image, which the network gives one after the other.
    """
    parts, forward = [], Network._forward

    def recorded(network: Network, pixels: Tensor) -> Tensor:
        features = forward(network, pixels)
        parts.append(features.numpy())
        return features

    with patch.object(Network, "_forward", recorded):
        outcome = extracted(request)
    features = np.concatenate(parts).reshape(outcome["extracted"], request.views, outcome["n_features"])
    found = {}
    for count in counts:
        found[count] = Path(outcome["file"]).with_name(f"{count}.h5")
        shutil.copy(outcome["file"], found[count])
        start = 0
        with h5py.File(found[count], "a") as file:
            for group, n_rows in outcome["rows"].items():
                file[group]["x"][:] = features[start : start + n_rows, :count].mean(axis=1)
                start += n_rows
    with h5py.File(outcome["file"]) as whole, h5py.File(found[max(counts)]) as made:
        if max(counts) == request.views and np.abs(whole["test/x"][:] - made["test/x"][:]).max() > 0.01:
            raise SystemExit("the features are not in the order of the rows")
    return found


def seconds(request: ExtractRequest, count: int, jpegs: Path) -> float:
    """Processor seconds of `extract --views count` for each JPEG file of the size of a photograph."""
    asked = replace(request, source=str(jpegs), views=count, out=jpegs.with_suffix(".h5"), overwrite=True)
    started = time.process_time()
    outcome = extracted(asked)
    return (time.process_time() - started) / outcome["extracted"]


def main() -> None:
    """Measure, print a line for each figure, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("--backbone", default="scattering")
    parser.add_argument("--weights")
    parser.add_argument("--like-flowers", action="store_true", help="preprocess as the weights of the flowers need it")
    parser.add_argument("--views", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="beginnings of names of `METHODS`")
    parser.add_argument("--precision", default="auto", help="of the network")
    parser.add_argument("--timed", type=int, default=64, help="number of JPEG files that are timed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, Any] = {"torch": torch.__version__, "precision": given.precision, "machine": platform.machine()}
    with tempfile.TemporaryDirectory() as folder:
        shared = FLOWERS if given.like_flowers else {}
        request = ExtractRequest(
            source=given.source,
            backbone=given.backbone,
            weights=given.weights,
            views=max(given.views),
            out=Path(folder) / "whole.h5",
            device="cpu",
            workers=0,
            precision=given.precision,
            **shared,
        )
        measured["views"] = {count: {} for count in given.views}
        if given.timed:
            jpegs = write_jpegs(Path(folder) / "jpegs", given.timed)
            seconds(request, 1, jpegs)  # the first call takes longer
            for count, found in measured["views"].items():
                found["processor_seconds_per_image"] = round(seconds(request, count, jpegs), 5)
                print(
                    f"views {count}: {found['processor_seconds_per_image']:.4f} processor seconds an image", flush=True
                )
        for count, features in files_by_views(request, given.views).items():
            accuracy = measured["views"][count]["accuracy"] = {}
            for method, extra in METHODS.items():
                if not method.startswith(tuple(given.methods)):
                    continue
                for epsilon in (None,) if method == "non-private" else EPSILONS:
                    name = method if epsilon is None else f"{method}, epsilon {epsilon:g}"
                    accuracy[name] = values = accuracies(features, extra, epsilon, given.seeds)
                    spread = f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
                    print(f"views {count}: {name}: {spread}", flush=True)
    if given.json is not None:
        results = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {}
        results[f"{Path(given.source).name}, {given.backbone}"] = measured
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
