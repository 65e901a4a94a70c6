"""Weights of classes: balanced accuracy on a data set whose classes have different numbers of rows.

    python benchmarks/weights/run.py FILE.npz --json benchmarks/weights/fashion_mnist.json

`FILE.npz` holds X_train, y_train, X_test, y_test and class_names. The first half of the classes keeps `RARE` training
rows each, the others `COMMON`; a seed chooses them. Test rows stay. Method noisy-gd on its defaults.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import Silent
from linprobe.options.requests import TrainRequest
from linprobe.runs import run_folder
from linprobe.training.train import train_run

RARE, COMMON = 100, 1000
EPSILONS = (1.0, 3.0)
WEIGHTS = (1.0, 0.3, 0.1)  # of common classes
TEST_FIGURES = "test_figures.json"


def trained(data: Any, epsilon: float, weight: float, seed: int) -> list[float]:
    """Mean recall of all, of rare and of common classes."""
    names, g = data["class_names"].tolist(), np.random.default_rng(seed)
    half = len(names) // 2
    kept = np.concatenate(
        [
            g.permutation(np.flatnonzero(data["y_train"] == label))[: RARE if label < half else COMMON]
            for label in range(len(names))
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.h5"
        with FeatureWriter(file, Description(class_names=tuple(names))) as writer:
            for group, rows in (("train", kept), ("test", slice(None))):
                y = data[f"y_{group}"][rows]
                x = data[f"X_{group}"][rows].reshape(len(y), -1).astype(np.float32)
                writer.write_group(group, *x.shape, [x], y, [f"{group}/{row}" for row in range(len(y))])
        weights = file.with_name("weights.json")
        weights.write_text(json.dumps(dict.fromkeys(names[half:], weight)))
        request = TrainRequest(
            method="noisy-gd",
            features=file,
            epsilon=epsilon,
            class_weight=str(weights),
            per_record=False,
            out=file.with_name("run"),
            book=file.with_name("book"),
        )
        train_run(request, Silent())
        figures = json.loads((run_folder.read_run(file.with_name("run")).folder / TEST_FIGURES).read_text())
    recall = [figures["per_class"][name]["recall"] for name in names]
    return [float(np.mean(part)) for part in (recall, recall[:half], recall[half:])]


def main() -> None:
    """Parse the command line, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    with np.load(given.file) as archive:
        data = dict(archive)
    results = []
    for epsilon in EPSILONS:
        for weight in WEIGHTS:
            found = np.array([trained(data, epsilon, weight, seed) for seed in range(given.seeds)])
            figures = {
                name: {"mean": float(column.mean()), "std": float(column.std(ddof=1))}
                for name, column in zip(("balanced_accuracy", "rare", "common"), found.T, strict=True)
            }
            results.append({"epsilon": epsilon, "weight_of_common": weight, **figures})
            print(results[-1], flush=True)
    given.json.write_text(json.dumps({"file": given.file.name, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
