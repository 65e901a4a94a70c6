"""Images per second of `linprobe extract` against the bare forward pass of the network, in the same process.

    python benchmarks/extraction/run.py [--device cuda] [--backbone resnet50] [--images 4096] [--json FILE]

`bare` is the forward pass on one batch that is already on the device, in the same precision and memory layout.
`memory` is the whole pipeline on images of the network's input size in an uncompressed .npy; `jpeg` is the whole
pipeline on JPEG files of the size of photographs, which it decodes, resizes and crops. Rounds alternate; each figure is
the best of them. `ratio` is pipeline / bare. `decode` is the decoding rate of one process, to find the bottleneck.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter

from linprobe.errors import Silent
from linprobe.extraction.backbones import load_backbone
from linprobe.extraction.extract import extract
from linprobe.extraction.images import decode
from linprobe.extraction.plan import BATCH_ON_CPU, BATCH_ON_GPU, PRECISIONS
from linprobe.extraction.request import ExtractRequest

WIDTH, HEIGHT, QUALITY = 500, 375, 90


def write_arrays(folder: Path, n_images: int, side: int) -> Path:
    """Random images of the network's input size: `n_images` training images and two test images."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for group, rows in (("train", n_images), ("test", 2)):
        path = folder / f"X_{group}.npy"
        images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(rows, side, side, 3))
        one = rng.integers(0, 256, (min(rows, 64), side, side, 3), dtype=np.uint8)
        for start in range(0, rows, len(one)):
            images[start : start + len(one)] = one[: rows - start]
        np.save(folder / f"y_{group}.npy", np.arange(rows) % 2)
    return folder


def write_jpegs(folder: Path, n_images: int) -> Path:
    """Blurred random images of the size of photographs, which take about as long to decode."""
    rng = np.random.default_rng(0)
    contents = []
    for _ in range(16):
        noise = Image.fromarray(rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8))
        path = folder.with_suffix(".jpg")
        noise.filter(ImageFilter.GaussianBlur(1.5)).save(path, quality=QUALITY)
        contents.append(path.read_bytes())
    for group, rows in (("train", n_images), ("test", 2)):
        for label in ("a", "b"):
            (folder / group / label).mkdir(parents=True)
        for row in range(rows):
            (folder / group / "ab"[row % 2] / f"{row:06d}.jpg").write_bytes(contents[row % len(contents)])
    return folder


def bare_rate(request: ExtractRequest, batch_size: int, device: torch.device, precision: str, seconds: float) -> float:
    """Images per second of the forward pass alone."""
    backbone = load_backbone(request.backbone, request.weights, request.random_weights, request.arguments or {})
    side = (backbone.transform.output_size or (224, 224))[0]
    model: Any = backbone.model.to(device).to(memory_format=torch.channels_last)
    images = torch.randn(batch_size, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    half = precision != "float32"

    def passes(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            model(images)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    with torch.inference_mode(), torch.autocast(device.type, PRECISIONS[precision], enabled=half):
        passes(2)
        once = passes(2)
        return batch_size / passes(max(2, round(seconds / once)))


def decode_rate(folder: Path, request: ExtractRequest) -> float:
    """Images per second that one process decodes, resizes and crops."""
    transform = load_backbone(request.backbone, None, True, {}).transform
    paths = sorted((folder / "train").rglob("*.jpg"))[:256]
    start = time.perf_counter()
    for path in paths:
        transform.shown(decode(path.read_bytes(), "RGB"))[0]
    return len(paths) / (time.perf_counter() - start)


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--images", type=int, default=0, help="default: 20000 on CUDA, 400 on a CPU")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--precision", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    on_gpu = device.type == "cuda"
    n_images = given.images or (20_000 if on_gpu else 400)
    batch_size = given.batch_size or (BATCH_ON_GPU if on_gpu else BATCH_ON_CPU)
    precision = given.precision or ("bfloat16" if on_gpu else "float32")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        arrays, jpegs = write_arrays(root / "arrays", n_images, 224), write_jpegs(root / "jpegs", n_images)
        shared: dict[str, Any] = {
            "backbone": given.backbone,
            "random_weights": True,
            "out": root / "features.h5",
            "device": given.device,
            "precision": precision,
            "batch_size": batch_size,
            "workers": given.workers,
            "overwrite": True,
        }
        memory = ExtractRequest(source=str(arrays), resize=0, crop=0, **shared)
        jpeg = ExtractRequest(source=str(jpegs), **shared)
        best: dict[str, float] = {"bare": 0.0, "memory": 0.0, "jpeg": 0.0}
        waiting: dict[str, float] = {}
        for round_ in range(given.rounds):
            rate = bare_rate(memory, batch_size, device, precision, 10.0)
            best["bare"] = max(best["bare"], rate)
            shown = [f"bare {rate:.1f}"]
            for name, request in (("memory", memory), ("jpeg", jpeg)):
                outcome = extract(request, Silent())
                if outcome is None:
                    raise SystemExit("run this benchmark in one process")
                rate = outcome["extracted"] / outcome["seconds"]
                if rate > best[name]:
                    best[name], waiting[name] = rate, outcome["waiting_share"]
                shown.append(f"{name} {rate:.1f}")
            print(f"round {round_ + 1}: images/s {', '.join(shown)}", flush=True)
        decoded = decode_rate(jpegs, jpeg)
    result = {
        "backbone": given.backbone,
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "precision": precision,
        "batch_size": batch_size,
        "images": n_images,
        "images_per_second": best,
        "ratio": {name: best[name] / best["bare"] for name in ("memory", "jpeg")},
        "waiting_share": waiting,
        "decode_images_per_second_per_process": decoded,
    }
    for name in ("memory", "jpeg"):
        print(f"{name}: {best[name]:.1f} images/s, {best[name] / best['bare']:.3f} of the bare forward pass")
    print(f"one process decodes {decoded:.1f} images/s")
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
