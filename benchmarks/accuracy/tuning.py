"""Tuned against default settings at equal total epsilon, over seeds, as JSON and a table.

    python benchmarks/accuracy/tuning.py [--seeds 3] [--epsilons E ...] [--shots K ...] [--json FILE] [FILE.h5 ...]

Without a file: the built-in digits. A seed chooses the public shots; everything else is fresh in every run. `each`
trains every setting of the grid with the whole budget: its mean is what a setting taken at random gives, and its best
is not private. Rows that the JSON file has already are kept unless they are measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from linprobe.commands.train import TrainRequest, train
from linprobe.commands.tune import Tuning, tune
from linprobe.progress import Silent

GRID = "score_noise=0.1,0.5,2,8"
SHRINK = (0.0, 0.25, 0.5, 0.75, 1.0)
METHODS = {2: "adamix", 0: "dpsgd-f"}


def accuracy(request: TrainRequest, tuning: Tuning | None) -> float:
    """Test accuracy of one run, which is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        asked = TrainRequest(**{**vars(request), "out": Path(folder) / "run"})
        outcome = train(asked, Silent()) if tuning is None else tune(asked, tuning, Silent())
    return float(outcome["test_accuracy"])


def rows(features: Path | None, epsilon: float, shots: int, seeds: int) -> dict[str, list[float]]:
    """Accuracies of one data set, epsilon and number of shots, by row of the table."""
    method = METHODS[shots]
    shared: dict[str, Any] = {"features": features, "method": method, "epsilon": epsilon, "public_shots": shots}
    grid = Tuning.parse([GRID], [], None, method)
    found: dict[str, list[float]] = {"default": [], "grid": [], "each, mean": [], "each, best": []}
    if shots:
        found["shrink"] = []
    for seed in range(seeds):
        request = TrainRequest(**shared, split_seed=seed)
        found["default"].append(accuracy(request, None))
        found["grid"].append(accuracy(request, grid))
        each = [accuracy(TrainRequest(**{**vars(request), "options": one}), None) for one in grid.settings]
        found["each, mean"].append(statistics.fmean(each))
        found["each, best"].append(max(each))
        if shots:
            found["shrink"].append(accuracy(request, Tuning.parse([], SHRINK, None, method)))
    return found


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.h5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.25, 1.0, 3.0])
    parser.add_argument("--shots", type=int, nargs="+", default=[2, 0], choices=sorted(METHODS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    kept: list[dict[str, Any]] = []
    if asked.json is not None and asked.json.exists():
        kept = json.loads(asked.json.read_text())["results"]
    for features in asked.files or [None]:
        for shots in asked.shots:
            for epsilon in asked.epsilons:
                place = {"data": "digits" if features is None else features.stem, "shots": shots, "epsilon": epsilon}
                for row, measured in rows(features, epsilon, shots, asked.seeds).items():
                    mean, std = statistics.fmean(measured), statistics.stdev(measured) if len(measured) > 1 else None
                    result = {**place, "method": METHODS[shots], "row": row, "mean": mean, "std": std}
                    same = {**place, "row": row}
                    kept = [one for one in kept if {key: one[key] for key in same} != same]
                    kept.append({**result, "accuracies": measured})
                    print(
                        *place.values(), row, f"{mean:.3f}", "" if std is None else f"{std:.3f}", sep="\t", flush=True
                    )
                if asked.json is not None:
                    content = {"grid": GRID, "shrink": SHRINK, "seeds": asked.seeds, "results": kept}
                    asked.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
