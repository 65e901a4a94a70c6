"""Tuned against default settings at equal total epsilon, over seeds, as JSON and a table.

    python benchmarks/accuracy/tuning.py [--seeds 3] [--epsilons E ...] [--shots K ...] [--rows ROW ...] [--json FILE]
        [FILE.h5 ...]

Without a file: the built-in digits. A seed chooses the public shots; everything else is fresh in every run. The rows
`each` train every setting of the grid with the whole budget: their mean is what a setting taken at random gives, and
the best of them is not private. Figures that the JSON file has already are kept unless they are measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from linprobe.errors import Silent
from linprobe.options.requests import TrainRequest
from linprobe.training.train import train_run
from linprobe.training.tune import Tuning, tune_run

GRID = "score_noise=0.1,0.5,2,8"
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0)
METHODS = {2: "adamix", 0: "noisy-gd"}
ONE = {"score_noise": 1.0}


def accuracy(request: TrainRequest, tuning: Tuning | None = None) -> float:
    """Test accuracy of one run, which is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        asked = replace(request, out=Path(folder) / "run")
        outcome = train_run(asked, Silent()) if tuning is None else tune_run(asked, tuning, Silent())
    return float(outcome["test_accuracy"])


def _grid(request: TrainRequest) -> Tuning:
    return Tuning.parse([GRID], [], None, request.method)


def _shrunk(request: TrainRequest) -> float:
    return accuracy(request, Tuning.parse([], FACTORS, None, request.method))


def _each(request: TrainRequest) -> list[float]:
    return [accuracy(replace(request, options=one)) for one in _grid(request).settings]


ROWS: dict[str, Callable[[TrainRequest], float]] = {
    "default": accuracy,
    "grid": lambda request: accuracy(request, _grid(request)),
    "each, mean": lambda request: statistics.fmean(_each(request)),
    "each, best": lambda request: max(_each(request)),
    "shrink": _shrunk,
    "score noise 1": lambda request: accuracy(replace(request, options=ONE)),
    "score noise 1, shrink": lambda request: _shrunk(replace(request, options=ONE)),
}
FROM_PUBLIC = ("shrink", "score noise 1", "score noise 1, shrink")  # rows that need first weights


def measure(features: Path | None, shots: int, epsilon: float, row: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Accuracies of one row of the table, over seeds."""
    request = TrainRequest(features=features, method=METHODS[shots], epsilon=epsilon, public_shots=shots)
    found = [ROWS[row](replace(request, split_seed=seed)) for seed in seeds]
    return {
        "data": "digits" if features is None else features.stem,
        "shots": shots,
        "epsilon": epsilon,
        "row": row,
        "method": METHODS[shots],
        "mean": statistics.fmean(found),
        "std": statistics.stdev(found) if len(found) > 1 else None,
        "accuracies": found,
    }


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.h5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.25, 1.0, 3.0])
    parser.add_argument("--shots", type=int, nargs="+", default=[2, 0], choices=sorted(METHODS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    if asked.json is not None and asked.json.exists():
        for one in json.loads(asked.json.read_text())["results"]:
            kept[one["data"], one["shots"], one["epsilon"], one["row"]] = one
    for features in asked.files or [None]:
        for shots in asked.shots:
            for epsilon in asked.epsilons:
                for row in asked.rows:
                    if not shots and row in FROM_PUBLIC:
                        continue
                    one = measure(features, shots, epsilon, row, range(asked.seeds))
                    kept[one["data"], shots, epsilon, row] = one
                    spread = "" if one["std"] is None else f"{one['std']:.3f}"
                    print(one["data"], shots, epsilon, row, f"{one['mean']:.3f}", spread, sep="\t", flush=True)
                if asked.json is not None:
                    content = {"grid": GRID, "factors": FACTORS, "results": list(kept.values())}
                    asked.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
