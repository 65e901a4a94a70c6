"""What public rows without labels add to a run of the same epsilon, as JSON and printed lines.

    python benchmarks/unlabelled/run.py [--seeds 3] [--epsilons 0.1 0.5 1 3] [--kinds alike half ...]
                                        [--sets digits ...] [--later] [--whole] [--json FILE] [FILE.npz ...]

Sets: the built-in digits, the synthetic sets of `benchmarks/accuracy/synthetic.py`, breast-cancer and wine of
scikit-learn (log(1 + x)), held out until `--later`, and files with X_train, y_train, X_test, y_test, of which at most
25,000 different training rows are used. Training rows are divided at random into private and unlabelled rows.
`only-public` has 2 labelled rows of each class and no private row: what it gains is no gain of private rows. A seed
chooses these rows; noise is fresh. With `--json`, the rows of the file are not measured anew.

Measured are a run without unlabelled rows and one with them, on the test rows. `--later` leaves out the run with them,
and refines the first afterwards as `refine` does; runs that are not centred, which `refine` refuses, keep their
weights. It also predicts the unlabelled rows together. `--whole` does this alone, with all training rows private, and
the test rows in the place of the unlabelled ones. Further unlabelled rows, at epsilon 0.5 and 1: few rows, another
balance of classes (Zipf's law), half of the classes, a fifth of rows of no class, and only such rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from linprobe import AdaMix, NoisyGD, OnlyPublic
from linprobe.accounting.events import Releases
from linprobe.methods.similar_rows import Surroundings
from linprobe.runs.figures import class_scores
from linprobe.runs.refined_weights import Known, gathered, mu_of_weights, refined_weights

sys.path.append(str(Path(__file__).parents[1] / "accuracy"))
from synthetic import around_means, rare

MOST_ROWS, SHOTS, SHARE = 25_000, 2, 0.55
OTHERS_AT = (0.5, 1.0)  # epsilons at which unlabelled rows of other kinds are measured
Rows = tuple[np.ndarray, np.ndarray]


def data_sets(files: list[Path]) -> Iterator[tuple[str, Rows, Rows]]:
    """Name, training rows and test rows of every set."""
    yield "digits", *_cut(*load_digits(return_X_y=True), 497)
    yield "classes-100", *_cut(*around_means(12_000, 100, 256, apart=0.5, offset=0.0, seed=15), 2000)
    yield "offset-10", *_cut(*around_means(27_000, 10, 128, apart=0.25, offset=3.0, seed=14), 2000)
    yield "rare", *_cut(*rare(6500, 64, 3), 2000)
    for held_out, load, n_test in (("breast-cancer", load_breast_cancer, 170), ("wine", load_wine, 53)):
        x, y = load(return_X_y=True)
        yield held_out, *_cut(np.log1p(x), y, n_test)
    for file in files:
        with np.load(file) as z:
            scale = 255 if z["X_train"].dtype == np.uint8 else 1
            x, x_test = (z[key].reshape(len(z[key]), -1).astype(np.float32) / scale for key in ("X_train", "X_test"))
            once = np.sort(np.unique(x, axis=0, return_index=True)[1])[:MOST_ROWS]  # no copy of a private row is public
            yield file.stem, (x[once], z["y_train"][once]), (x_test, z["y_test"])


def _cut(x: np.ndarray, y: np.ndarray, n_test: int) -> tuple[Rows, Rows]:
    order = np.random.default_rng(1).permutation(len(x))
    x, y = x[order].astype(np.float32), y[order]
    return (x[:-n_test], y[:-n_test]), (x[-n_test:], y[-n_test:])


def unlike(rows: Rows, seed: int) -> dict[str, Rows]:
    """Unlabelled rows that differ from the private ones."""
    x, y = rows
    g = np.random.default_rng(seed)
    groups = [g.permutation(np.flatnonzero(y == label)) for label in g.permutation(np.unique(y))]
    most = max(map(len, groups))
    zipf = np.concatenate([group[: max(1, most // (place + 1))] for place, group in enumerate(groups)])
    other = x[: len(x) // 4][:, g.permutation(x.shape[1])]  # columns in another order
    few = {f"{n} a class": np.concatenate([group[:n] for group in groups]) for n in (1, 3, 10)}
    found = {name: (x[places], y[places]) for name, places in {**few, "Zipf": zipf}.items()}
    none = np.full(len(other), -1)
    half = np.concatenate(groups[: max(1, len(groups) // 2)])
    return {
        **found,
        "half": (x[half], y[half]),
        "20 % of no class": (np.concatenate([x, other]), np.concatenate([y, none])),
        "other": (other, none),
    }


def share(scores: np.ndarray, y: np.ndarray) -> float:
    """Accuracy in per cent, on rows of a class."""
    return round(100 * float((scores.argmax(axis=1) == y)[y >= 0].mean()), 2) if (y >= 0).any() else 0.0


def measure(
    plain: Any, shots: np.ndarray | None, probe: Any | None, unlabelled: Rows, test: Rows, *, whole: bool
) -> dict[str, Any]:
    """Accuracy without and with unlabelled rows, in per cent; `probe` is None to refine `plain` as `refine` does."""
    weights, privacy = np.ascontiguousarray(plain.coef_.T), plain.privacy_
    releases = [Releases(**release) for release in privacy["releases"] or ()]
    known = Known(privacy["n_private"], mu_of_weights(releases), centred=plain.centre_ != "none")
    found = {"plain": share(class_scores(test[0], weights, plain.intercept_), test[1])}
    if probe is not None:
        found["refined"] = share(class_scores(test[0], np.ascontiguousarray(probe.coef_.T), probe.intercept_), test[1])
        return {**found, "centre": probe.centre_}
    rows, places = gathered([unlabelled[0]], len(unlabelled[0]), *weights.shape)
    labels = unlabelled[1][places]
    if not whole:
        found["refined"] = found["plain"]
    if not whole and plain.centre_ != "none":
        near = None if shots is None else Surroundings(rows).shots_near([(shots, None)])
        later = refined_weights(rows, weights, plain.intercept_, replace(known, near_shots=near))
        found["refined"] = share(class_scores(test[0], later.weights, later.bias), test[1])
    found["plain_unlabelled"] = share(class_scores(rows, weights, plain.intercept_), labels)
    found["together"] = share(refined_weights(rows, weights, plain.intercept_, known, together=True).scores, labels)
    return {**found, "centre": plain.centre_}


def trained(
    method: str, epsilon: float, private: Rows, seed: int, unlabelled: np.ndarray | None
) -> tuple[Any, np.ndarray | None]:
    """A probe and its public shots: two rows of each class but for noisy-gd."""
    x, y = private
    options: dict[str, Any] = {"classes": np.unique(y)}
    if method == "noisy-gd":
        return NoisyGD(epsilon=epsilon, per_record=False, **options).fit(x, y, X_unlabelled=unlabelled), None
    order = np.random.default_rng(seed).permutation(len(y))
    shots = np.concatenate([order[y[order] == label][:SHOTS] for label in np.unique(y)])
    public, rest = (x[shots], y[shots]), np.delete(np.arange(len(y)), shots)
    probe = OnlyPublic(**options) if method == "only-public" else AdaMix(epsilon=epsilon, per_record=False, **options)
    fitted = probe.fit(x[rest], y[rest], X_public=public[0], y_public=public[1], X_unlabelled=unlabelled)
    return fitted, public[0]


def main() -> None:
    """Measure, print one line per row, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.5, 1.0, 3.0])
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--later", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    kept = json.loads(arguments.json.read_text())["results"] if arguments.json and arguments.json.is_file() else []
    results = {(row["data"], row["unlabelled"], row["method"], row["epsilon"]): row for row in kept}
    for name, (x, y), test in data_sets(arguments.files):
        if arguments.sets and name not in arguments.sets:
            continue
        order, n = np.random.default_rng(2).permutation(len(x)), int(SHARE * len(x))
        private, unlabelled = (x[order[:n]], y[order[:n]]), (x[order[n:]], y[order[n:]])
        if arguments.whole:
            name, n, private, unlabelled = f"{name}, whole", len(x), (x, y), test
        cells = [("only-public", 0.0), *((m, e) for m in ("adamix", "noisy-gd") for e in arguments.epsilons)]
        for method, epsilon in cells:
            kinds = {"alike": unlabelled} | (unlike(unlabelled, 3) if epsilon in OTHERS_AT else {})
            missing = {kind: rows for kind, rows in kinds.items() if (name, kind, method, epsilon) not in results}
            missing = {kind: rows for kind, rows in missing.items() if not arguments.kinds or kind in arguments.kinds}
            seeds = range(arguments.seeds if missing else 0)
            plain = [trained(method, epsilon, private, seed, None) for seed in seeds]
            for kind, rows in missing.items():
                given = None if arguments.later or arguments.whole else rows[0]
                probes = [
                    None if given is None else trained(method, epsilon, private, seed, given)[0] for seed in seeds
                ]
                pairs = zip(plain, probes, strict=True)
                runs = [measure(*one, probe, rows, test, whole=arguments.whole) for one, probe in pairs]
                facts = {"data": name, "unlabelled": kind, "rows": len(rows[0]), "method": method, "epsilon": epsilon}
                results[name, kind, method, epsilon] = {**facts, "n_private": n, "runs": runs}
                mean = {key: statistics.mean(run[key] for run in runs) for key in runs[0] if key != "centre"}
                figures = ", ".join(f"{key} {value:.1f}" for key, value in mean.items())
                print(f"{name} {method} eps {epsilon:g} {kind}: {figures}, centre {runs[0]['centre']}", flush=True)
                if arguments.json:
                    lines = ",\n".join(json.dumps(result) for result in results.values())
                    arguments.json.write_text(f'{{"results": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
