"""The convex settings of "Rethinking Benchmarks for Differentially Private Image Classification" (arXiv 2601.17189).

    python benchmarks/whole/leaderboard.py FEATURES.h5 [--eps 1 3 5 8] [--runs 3] [--json FILE]
    python benchmarks/whole/leaderboard.py --stand-in cifar10 [--share 0.1] [--json FILE]

The first command trains a probe on your features of CIFAR-10, CheXpert, EyePACS or ImageNet at each epsilon, without
public rows, and prints accuracy and macro AUROC with the spread of the runs. Delta is 10 to the minus number of digits
of N, as in the authors' code. `docs/others.md` says how to make the features. The second trains on random
rows of the same shape: the median of the seconds, the largest memory, and no accuracy, which would mean nothing.
`--share` takes that share of the rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from run import measured

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import MULTICLASS, MULTILABEL

EPSILONS = (1.0, 3.0, 5.0, 8.0)
WIDTH = 512  # of the image embedding of CLIP's ViT-B-16
SHAPES = {  # training rows, test rows, classes; several labels a row in CheXpert
    "cifar10": (50_000, 10_000, 10),
    "chexpert": (223_414, 668, 5),
    "eyepacs": (35_126, 53_576, 5),
    "imagenet": (1_281_167, 50_000, 1_000),
}
BLOCK = 1 << 14


def stand_in(name: str, share: float, path: Path) -> Path:
    """Random rows of the shape of a data set."""
    *sizes, n_classes = SHAPES[name]
    several = name == "chexpert"
    generator = np.random.default_rng(0)
    names = tuple(f"class {place}" for place in range(n_classes))
    with FeatureWriter(path, Description(class_names=names, task=MULTILABEL if several else MULTICLASS)) as writer:
        for group, rows in zip(("train", "test"), sizes, strict=True):
            size = max(n_classes, int(share * rows))
            labels = generator.integers(2 if several else n_classes, size=(size, n_classes) if several else size)
            blocks = _random_rows(generator, size)
            ids = (f"{group}/{row}" for row in range(size))
            writer.write_group(group, size, WIDTH, blocks, labels.astype(np.uint8 if several else np.int64), ids)
    return path


def _random_rows(generator: np.random.Generator, size: int) -> Iterator[NDArray[np.float32]]:
    for start in range(0, size, BLOCK):
        yield generator.standard_normal((min(BLOCK, size - start), WIDTH), dtype=np.float32)


def trained(path: Path, epsilon: float, runs: int, folder: Path) -> dict[str, Any]:
    """Figures of `runs` trainings at one epsilon: mean and standard deviation, median seconds, largest memory."""
    with h5py.File(path) as file:
        n_rows, width = file["train/x"].shape
    delta = f"1e-{len(str(n_rows))}"
    command = [str(Path(sys.executable).with_name("linprobe")), "train", str(path), "--method", "noisy-gd", "--json"]
    spent, answers = [], []
    for number in range(runs):
        out = folder / f"{path.stem}-{epsilon:g}-{number}"
        options = ["--eps", str(epsilon), "--delta", delta, "--public-shots", "0", "--out", str(out)]
        ended = measured([*command, *options], folder)
        if ended is None:
            raise SystemExit(f"linprobe train {path} --eps {epsilon:g} failed; its message is above")
        spent.append(ended[:3])
        answers.append(json.loads(ended[3]))
    seconds, cpu, memory = zip(*spent, strict=True)
    result = {"data": path.stem, "rows": n_rows, "features": width, "epsilon": epsilon, "delta": delta, "runs": runs}
    for key in ("test_accuracy", "test_macro_auroc"):
        found = [answer[key] for answer in answers if answer.get(key) is not None]
        result[key] = [statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0] if found else None
    return result | {
        "steps": answers[0]["steps"],
        "seconds": statistics.median(seconds),
        "cpu_seconds": statistics.median(cpu),
        "mib": max(memory),
    }


def main() -> None:
    """Train at each epsilon, print a line for each, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="?", type=Path)
    parser.add_argument("--stand-in", choices=SHAPES)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--eps", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if (given.features is None) == (given.stand_in is None):
        parser.error("give a feature file, or --stand-in")
    results = json.loads(given.json.read_text()) if given.json is not None and given.json.exists() else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = given.features
        if path is None:
            path = stand_in(given.stand_in, given.share, folder / f"{given.stand_in}-shape.h5")
        for epsilon in given.eps:
            found = trained(path.absolute(), epsilon, given.runs, folder)
            if given.stand_in:  # random labels
                found = {key: value for key, value in found.items() if not key.startswith("test_")}
            results.append(found)
            print(json.dumps(found), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
