"""Test accuracy and processor time of `linprobe extract --views K`, with private training and without.

    python benchmarks/extraction/views.py SOURCE --backbone timm:mobilenetv2_100 --weights FILE [--like-flowers]
        [--views 1 2 4 8] [--seeds 3] [--json benchmarks/extraction/views.json]

Each number of views extracts SOURCE once, in this process and one thread, and trains every method of `METHODS` on the
rows. A seed chooses the public shots of adamix; noise is fresh in every run, so the one figure without noise, that of
`non-private`, has no spread. Seconds are of the processor, decoding and network together, for one image. With `--json`,
the result joins the results of other sources in that file.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from linprobe.extraction.extract import extract
from linprobe.extraction.request import ExtractRequest
from linprobe.options.requests import TrainRequest
from linprobe.progress import Silent
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


def measure(request: ExtractRequest, seeds: int) -> dict[str, Any]:
    """Processor seconds for an image, and accuracy by method and epsilon."""
    started = time.process_time()
    outcome = extract(request, Silent())
    if outcome is None:
        raise SystemExit("run this benchmark in one process")
    seconds = (time.process_time() - started) / outcome.extracted
    result: dict[str, Any] = {"rows": outcome.rows, "processor_seconds_per_image": round(seconds, 5), "accuracy": {}}
    for method, extra in METHODS.items():
        for epsilon in (None,) if method == "non-private" else EPSILONS:
            name = method if epsilon is None else f"{method}, epsilon {epsilon:g}"
            result["accuracy"][name] = accuracies(outcome.file, extra, epsilon, seeds)
    return result


def main() -> None:
    """Measure, print a line for each figure, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("--backbone", default="scattering")
    parser.add_argument("--weights")
    parser.add_argument("--like-flowers", action="store_true", help="preprocess as the weights of the flowers need it")
    parser.add_argument("--views", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, Any] = {"torch": torch.__version__, "machine": platform.machine(), "views": {}}
    with tempfile.TemporaryDirectory() as folder:
        for views in given.views:
            request = ExtractRequest(
                source=given.source,
                backbone=given.backbone,
                weights=given.weights,
                views=views,
                out=Path(folder) / f"{views}.h5",
                device="cpu",
                **(FLOWERS if given.like_flowers else {}),
            )
            found = measure(request, given.seeds)
            measured["views"][str(views)] = found
            print(f"views {views}: {found['processor_seconds_per_image']:.4f} processor seconds an image")
            for name, values in found["accuracy"].items():
                spread = f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
                print(f"views {views}: {name}: {spread}", flush=True)
    if given.json is not None:
        results = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {}
        results[f"{Path(given.source).name}, {given.backbone}"] = measured
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
