"""Balanced accuracy where classes are rare: scores moved by noisy class counts, against weights and prototypes.

    python benchmarks/weights/balanced.py FLOWERS.npz FASHION.npz --json benchmarks/weights/balanced.json

Each `.npz` file holds X_train, y_train, X_test and y_test. `rare` is that of `benchmarks/accuracy/synthetic.py`. Of
Fashion-MNIST, every second class keeps 100 training rows, the others 1,000. Of flowers102, 60, 37 and 5 species make
three classes, the last with 5 % of the rows; a person has three photographs of one species, and people are protected.
`weights` are one over the noisy counts of the run before, which is not paid for. `adamix` has two public rows a class.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe import AdaMix, NoisyGD, Prototypes

sys.path.append(str(Path(__file__).parents[1] / "accuracy"))
from synthetic import N_TEST, rare

EPSILONS = (0.5, 1.0, 3.0)
SPECIES = (60, 97)  # ends of the first two groups of species
Data = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any] | None]


def data_sets(flowers: Path, fashion: Path) -> Iterator[tuple[str, Data]]:
    """Name, training rows and classes, test rows and classes, and the person of each training row or None."""
    x, y = rare(4_500 + N_TEST, 64, 3)
    yield "rare", (x[:-N_TEST], y[:-N_TEST], x[-N_TEST:], y[-N_TEST:], None)
    with np.load(fashion) as archive:
        data, g = dict(archive), np.random.default_rng(1)
    kept = [g.permutation(np.flatnonzero(data["y_train"] == c))[: 100 if c % 2 else 1000] for c in range(10)]
    rows = np.concatenate(kept)
    train, test = (data[f"X_{part}"].reshape(-1, 784) / np.float32(255) for part in ("train", "test"))
    yield "fashion, 5 classes rare", (train[rows], data["y_train"][rows], test, data["y_test"], None)
    with np.load(flowers) as archive:
        data, g = dict(archive), np.random.default_rng(5)
    order = g.permutation(102)
    group = np.zeros(102, dtype=int)
    group[order[SPECIES[0] :]], group[order[SPECIES[1] :]] = 1, 2
    person = np.empty(len(data["y_train"]), dtype=int)
    person[np.argsort(data["y_train"], kind="stable")] = np.arange(len(person)) // 3
    yield "flowers by people", (data["X_train"], group[data["y_train"]], data["X_test"], group[data["y_test"]], person)


def measured(data: Data, epsilon: float, seed: int) -> dict[str, list[float]]:
    """Balanced accuracy and accuracy of each way."""
    x, y, x_test, y_test, people = data
    x, x_test, y, y_test = x.astype(np.float32), x_test.astype(np.float32), y.astype(int), y_test.astype(int)
    classes, g = range(int(y.max()) + 1), np.random.default_rng(seed)
    facts: dict[str, Any] = {"epsilon": epsilon, "classes": classes, "per_record": False}

    def figures(probe: Any) -> list[float]:
        right = probe.predict(x_test) == y_test
        return [float(np.mean([right[y_test == label].mean() for label in classes])), float(right.mean())]

    plain = NoisyGD(class_counts="yes", **facts).fit(x, y, owners=people)
    counts = np.maximum(plain.class_counts_, 1 + 0.01 * len(y) / len(classes))
    weights = dict(enumerate((counts.min() / counts).tolist()))
    found = {
        "noisy-gd": figures(plain),
        "balanced": figures(NoisyGD(class_weight="balanced", **facts).fit(x, y, owners=people)),
        "weights": figures(NoisyGD(class_weight=weights, **facts).fit(x, y, owners=people)),
        "prototypes": figures(Prototypes(**facts).fit(x, y, owners=people)),
    }
    if len(classes) == 2:
        public = np.concatenate([g.permutation(np.flatnonzero(y == label))[:2] for label in classes])
        rest = np.delete(np.arange(len(y)), public)
        for name, weight in (("adamix", None), ("adamix balanced", "balanced")):
            found[name] = figures(AdaMix(class_weight=weight, **facts).fit(x[rest], y[rest], x[public], y[public]))
    return found


def main() -> None:
    """Parse the command line, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flowers", type=Path)
    parser.add_argument("fashion", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of fits of the same rows
    results = []
    for name, data in data_sets(given.flowers, given.fashion):
        for epsilon in EPSILONS:
            runs = [measured(data, epsilon, seed) for seed in range(given.seeds)]
            for way in runs[0]:
                mean, std = (f(np.array([run[way] for run in runs]), axis=0) for f in (np.mean, np.std))
                one = {"balanced": mean[0], "balanced_std": std[0], "accuracy": mean[1], "accuracy_std": std[1]}
                rounded = {key: round(float(value), 4) for key, value in one.items()}
                results.append({"data": name, "epsilon": epsilon, "way": way, **rounded})
                print(results[-1], flush=True)
    given.json.write_text(json.dumps({"seeds": given.seeds, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
