"""One classifier of another library, from a feature file to test accuracy: `peers.py NAME FILE.h5 EPSILON SEED`.

Rows are divided by their length, as in linprobe, so that a gradient or a row has a public bound. Prints one JSON:
test accuracy, and the setting that was used. `opacus` trains with several learning rates and reports the best on the
test rows, which no user could do without budget; its seconds are those of one training.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

DELTA = 1e-5
RATES, EPOCHS, CLIP = (0.5, 2.0, 8.0), 20, 1.0
ITERATIONS = 1000


def rows(path: Path) -> tuple[Any, ...]:
    """Unit rows and labels of training and test."""
    with h5py.File(path) as file:
        parts = [(file[group]["x"][:].astype(np.float32), file[group]["y"][:]) for group in ("train", "test")]
    return tuple(part for x, y in parts for part in (x / np.linalg.norm(x, axis=1, keepdims=True), y))


def scikit_learn(path: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """Logistic regression without privacy, scikit-learn's default solver."""
    from sklearn.linear_model import LogisticRegression

    x, y, test_x, test_y = rows(path)
    return {"accuracy": LogisticRegression(C=100, max_iter=ITERATIONS).fit(x, y).score(test_x, test_y), "C": 100}


def diffprivlib(path: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """Objective perturbation, one class against the others; its guarantee has delta 0."""
    from diffprivlib.models import LogisticRegression

    x, y, test_x, test_y = rows(path)
    probe = LogisticRegression(epsilon=epsilon, data_norm=1.0, max_iter=ITERATIONS).fit(x.astype(np.float64), y)
    return {"accuracy": probe.score(test_x, test_y), "C": 1.0}


def opacus(path: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """DP-SGD of a linear layer: batches of a tenth of the rows, 20 epochs, momentum 0.9, the PRV accountant."""
    x, y, test_x, test_y = rows(path)
    tried = {}
    for rate in RATES:
        started = time.perf_counter()
        tried[_opacus_accuracy(x, y, test_x, test_y, epsilon, rate)] = (rate, time.perf_counter() - started)
    best = max(tried)
    others = sum(seconds for _, seconds in tried.values()) - tried[best][1]
    return {"accuracy": best, "learning_rate": tried[best][0], "seconds_of_other_rates": others}


def _opacus_accuracy(x: Any, y: Any, test_x: Any, test_y: Any, epsilon: float, rate: float) -> float:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    layer = torch.nn.Linear(x.shape[1], int(y.max()) + 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))
    private, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=layer,
        optimizer=torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9),
        data_loader=DataLoader(data, batch_size=max(1, len(x) // 10)),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=CLIP,
    )
    for _ in range(EPOCHS):
        for some_x, some_y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(some_x), some_y).backward()
            optimizer.step()
    with torch.no_grad():
        return float((private(torch.from_numpy(test_x)).argmax(dim=1).numpy() == test_y).mean())


PEERS: dict[str, Callable[[Path, float, int], dict[str, Any]]] = {
    "scikit-learn": scikit_learn,
    "diffprivlib": diffprivlib,
    "opacus": opacus,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, path, epsilon, seed = sys.argv[1:]
    print(json.dumps(PEERS[name](Path(path), float(epsilon), int(seed))))
