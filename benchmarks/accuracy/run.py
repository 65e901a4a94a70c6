"""Test accuracy over seeds on the built-in digits and on feature files, as JSON and printed lines.

    python benchmarks/accuracy/run.py [--study evidence|settings|pixels|steps] [--seeds 5] [--json FILE]
        [--shots 2 0] [--epsilons E ...] [--methods METHOD ...] [--class-weight W] [--with-only-public] [--no-digits]
        [FILE.h5 ...]

`evidence` runs every method on its defaults, with 2 public rows per class and without, at six budgets; `synthetic.py`
writes some of its files. `settings` varies one option of adamix. `pixels` is table 1 of the DPSGD-F paper, on files of
raw pixels without public rows: one setting per method, chosen on the test rows, as in the paper. `steps` varies the
number of steps around a public mean.

`--class-weight` is that of `train`, and `--with-only-public` predicts by the mean of the probabilities of the private
run and of only-public; the names of the rows say so. A seed chooses the public shots; noise and samples
are fresh in every run. With `--json`, rows that the file has already are not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import linprobe
from linprobe.data.dataset import open_features
from linprobe.errors import Silent
from linprobe.options.requests import TrainRequest
from linprobe.training.train import train_run

EPSILONS = (0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 8.0)
WITHOUT_PUBLIC = ("noisy-gd", "dp-sgd", "dpsgd-f", "dp-ls", "dp-fc", "dp-newton", "prototypes")
WITH_PUBLIC = (
    "adamix", "noisy-gd", "ngd", "ppgd", "dp-sgd", "dpsgd-f", "mirror-descent", "dope-sgd", "adadps", "fully-private",
    "dp-ls", "dp-fc", "dp-newton", "prototypes",
)  # fmt: skip

SETTING_EPSILONS = (1.0, 3.0)
N_PUBLIC = "n_public"  # placeholder for the number of public rows
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no centring": {"centre": "none"},
    "score noise 0.5": {"options": {"score_noise": 0.5}},
    "score noise 2": {"options": {"score_noise": 2.0}},
    "25 steps": {"steps": 25},
    "100 steps": {"steps": 100},
    "last iterate": {"options": {"output": "last"}},
    "subspace gradient, P = rank": {"options": {"subspace": "gradient"}},
    "subspace features, P = n_public": {"options": {"subspace": "features", "subspace_dim": N_PUBLIC}},
    "theory variant": {"options": {"variant": "theory"}},
    "preset paper": {"preset": "paper"},
}
STEPS_EPSILONS = (0.5, 1.0, 3.0, 8.0)
STEPS = (25, 50, 100, 400)
PIXEL_EPSILONS = (1.0, 2.0)
PIXELS: dict[str, dict[str, Any]] = {
    "dp-sgd": {"steps": 400, "options": {"clip_norm": 0.1, "score_noise": 2.5}},
    "dpsgd-f": {"steps": 400},
}


@dataclass(frozen=True)
class Job:
    """A row of the result: its name, its budget, its public rows per class, and the request of `train`."""

    row: str
    epsilon: float | None
    shots: int
    request: dict[str, Any] = field(default_factory=dict)
    with_only_public: bool = False


def evidence(shots: int) -> Iterator[Job]:
    """Every method on its defaults."""
    if shots:
        yield Job("only-public", None, shots, {"method": "only-public"})
    yield Job("non-private", None, shots, {"method": "non-private"})
    for epsilon in EPSILONS:
        for method in WITH_PUBLIC if shots else WITHOUT_PUBLIC:
            yield Job(method, epsilon, shots, {"method": method, "per_record": False})


def settings(shots: int) -> Iterator[Job]:
    """adamix with one option changed."""
    for name, extra in SETTINGS.items():
        for epsilon in SETTING_EPSILONS:
            yield Job(name, epsilon, shots, {"method": "adamix", **extra})


def pixels(shots: int) -> Iterator[Job]:
    """Table 1 of the DPSGD-F paper, without public rows."""
    for name, extra in PIXELS.items():
        for epsilon in PIXEL_EPSILONS:
            yield Job(name, epsilon, shots, {"method": name, "per_record": False, **extra})
    yield Job("non-private", None, shots, {"method": "non-private"})


def steps(shots: int) -> Iterator[Job]:
    """adamix and noisy-gd with one budget in few steps and in many."""
    for method in ("adamix", "noisy-gd"):
        for epsilon in STEPS_EPSILONS:
            for n in STEPS:
                yield Job(f"{method}, {n} steps", epsilon, shots, {"method": method, "steps": n, "per_record": False})


STUDIES = {"evidence": evidence, "settings": settings, "pixels": pixels, "steps": steps}


def measure(features: Path | None, job: Job, seeds: int) -> dict[str, list[float]]:
    """Accuracy and balanced accuracy on the test rows, for each seed."""
    request = dict(job.request)
    options = request.get("options", {})
    if N_PUBLIC in options.values():
        with open_features(features) as file:
            n_public = job.shots * len(file.description.class_names)
        request["options"] = {name: n_public if value == N_PUBLIC else value for name, value in options.items()}
    figures: dict[str, list[float]] = {"accuracies": [], "balanced": []}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            place = {"features": features, "public_shots": job.shots, "split_seed": seed, "book": Path(folder) / "book"}
            run, free = Path(folder) / "run", Path(folder) / "free"
            outcome = train_run(TrainRequest(epsilon=job.epsilon, out=run, **place, **request), Silent())
            found = outcome["test_accuracy"], outcome["test_balanced_accuracy"]
            if job.with_only_public:
                train_run(TrainRequest(method="only-public", out=free, **place), Silent())
                found = together([run, free], features)
        for key, figure in zip(figures, found, strict=True):
            figures[key].append(round(figure, 4))
    return figures


def together(runs: list[Path], features: Path | None) -> tuple[float, float]:
    """Accuracy and balanced accuracy of the mean of the probabilities of runs, on the test rows of a file."""
    assert features is not None
    with open_features(features) as file:
        labels, names = file.labels("test"), file.description.class_names
    predicted = [linprobe.predict(run, features, all_classes=True) for run in runs]
    chances = np.mean([[one[f"p_{name}"] for name in names] for one in predicted], axis=0)
    right = chances.argmax(axis=0) == labels
    return float(right.mean()), float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def main() -> None:
    """Run the study, print one line per row, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", choices=STUDIES, default="evidence")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shots", type=int, nargs="+", default=[2, 0], help="public rows per class")
    parser.add_argument("--epsilons", type=float, nargs="+", help="only these; default: all of the study")
    parser.add_argument("--methods", nargs="+", help="only these rows; default: all of the study")
    parser.add_argument("--class-weight", help="of private runs: balanced, or public weights LABEL=WEIGHT,...")
    parser.add_argument("--with-only-public", action="store_true", help="mean of the probabilities with only-public's")
    parser.add_argument("--no-digits", action="store_true", help="the given files only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("features", nargs="*", type=Path)
    arguments = parser.parse_args()
    results = _kept(arguments.json)
    digits = () if arguments.no_digits or arguments.study == "pixels" else (None,)
    for features in (*digits, *arguments.features):
        name = "digits" if features is None else features.stem
        for job in (job for shots in arguments.shots for job in STUDIES[arguments.study](shots)):
            unwanted = arguments.epsilons and job.epsilon is not None and job.epsilon not in arguments.epsilons
            if unwanted or (arguments.methods and job.row not in arguments.methods):
                continue
            if arguments.class_weight and job.epsilon is not None:
                job = _weighted(job, arguments.class_weight)
            if arguments.with_only_public and features and job.shots and job.epsilon is not None:
                job = replace(job, row=f"{job.row} with only-public", with_only_public=True)
            key = (name, job.shots, job.row, job.epsilon)
            if key in results:
                continue
            figures = measure(features, job, arguments.seeds)
            results[key] = dict(zip(("data", "shots", "row", "epsilon"), key, strict=True)) | figures
            found = figures["accuracies"]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            shown = "-" if job.epsilon is None else f"{job.epsilon:g}"
            balanced = statistics.mean(figures["balanced"])
            line = f"{name:<18} {job.shots} shots {job.row:<32} eps {shown:<5}"
            print(f"{line} {statistics.mean(found):.4f} +- {spread:.4f}, balanced {balanced:.4f}", flush=True)
            if arguments.json:
                lines = ",\n".join(json.dumps(result) for result in results.values())
                arguments.json.write_text(f'{{"results": [\n{lines}\n]}}\n', encoding="utf-8")


def _weighted(job: Job, weight: str) -> Job:
    """The job with weights of classes, and their kind in its name."""
    kind = weight if weight == "balanced" else "weights"
    return replace(job, row=f"{job.row}, {kind}", request={**job.request, "class_weight": weight})


def _kept(path: Path | None) -> dict[tuple[str, int, str, float | None], dict[str, Any]]:
    """The rows that the file has, by data, shots, name and epsilon."""
    if path is None or not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))["results"]
    return {(row["data"], row["shots"], row["row"], row["epsilon"]): row for row in found}


if __name__ == "__main__":
    main()
