"""What text weights add to labelled public rows at the same epsilon, as JSON and printed lines.

    python benchmarks/text/run.py [--seeds 5] [--epsilons 0.3 1 3] [--shots 1 2 4] [--no-digits] [--json FILE]
                                  [FILE.npz ...]

Sets: the built-in digits, its two classes 3 and 8 alone, and files with X_train, y_train, X_test, y_test. No text
encoder is at hand, so in the place of text weights stand, per class, the mean of 1 or of 4 rows that are neither
private, public nor test rows; the mean of 4 rows with noise of the same length and an offset that all classes share,
five times as long, as encodings of texts lie apart from those of images; and random vectors. A seed chooses the rows;
noise is fresh.

Measured are `only-public` (epsilon 0) and `adamix`, each from the public rows with text weights, from the public rows
alone, and, where it may, from text weights alone. `class-wise` at epsilon 0 fits one scale a class together with the
weights (as LP++, Huang et al., CVPR 2024), with a penalty on scales of a ninth of that on weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.datasets import load_digits

from linprobe import AdaMix, OnlyPublic, ZeroShot
from linprobe.errors import PrivacyWarning

KINDS = {"1 row": (1, 0.0, 0.0), "4 rows": (4, 0.0, 0.0), "4 rows, noise": (4, 1.0, 5.0), "random": (0, 1.0, 0.0)}
Floats = np.ndarray


def unit(x: Floats) -> Floats:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def digits(*classes: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Training rows and labels, test rows and labels, of these classes; 3 in 11 rows are test rows."""
    x, y = load_digits(return_X_y=True)
    x, y = x[np.isin(y, classes)], np.searchsorted(classes, y[np.isin(y, classes)])
    order, n_test = np.random.default_rng(0).permutation(len(y)), 3 * len(y) // 11
    return x[order[n_test:]], y[order[n_test:]], x[order[:n_test]], y[order[:n_test]]


def load(file: Path) -> tuple[Floats, Floats, Floats, Floats]:
    with np.load(file) as z:
        x, y, x_test, y_test = (z[key] for key in ("X_train", "y_train", "X_test", "y_test"))
    once = np.sort(np.unique(x, axis=0, return_index=True)[1])  # no copy of a private row is public
    return x[once].astype(np.float64), y[once].astype(np.int64), x_test.astype(np.float64), y_test.astype(np.int64)


def drawn(x: Floats, y: Floats, shots: int, kind: str, seed: int) -> tuple[Floats, Floats, Floats]:
    """Indices of private and public rows, and text weights (n_features, n_classes)."""
    g, (held, noise, offset) = np.random.default_rng(seed), KINDS[kind]
    of_class = [g.permutation(np.flatnonzero(y == c)) for c in range(int(y.max()) + 1)]
    public = np.concatenate([rows[:shots] for rows in of_class])
    rows = unit(x)
    means = np.array([rows[these[shots : shots + held]].mean(axis=0) if held else 0 * rows[0] for these in of_class])
    means = means - means.mean(axis=0)
    length = np.linalg.norm(means) / np.sqrt(len(means)) or 1.0
    width = np.sqrt(x.shape[1])
    text = means + length / width * (noise * g.standard_normal(means.shape) + offset * g.standard_normal(x.shape[1]))
    if not noise:
        text = np.array([rows[these[shots : shots + held]].mean(axis=0) for these in of_class])
    private = np.concatenate([these[shots + held :] for these in of_class])
    return private, public, unit(text).T


def class_wise(x: Floats, y: Floats, text: Floats) -> Floats:
    """Weights V + a * text of least loss, with weight decay 0.01 on V and 0.01 / 9 on the scales a."""
    text = text - text.mean(axis=1, keepdims=True)
    text = text / (np.linalg.norm(text) / np.sqrt(text.shape[1]))
    shape, of_text = text.shape, x @ text

    def objective(flat: Floats) -> tuple[float, Floats]:
        v, a = flat[: -shape[1]].reshape(shape), flat[-shape[1] :]
        scores = x @ v + 3 * a * of_text
        scores -= scores.max(axis=1, keepdims=True)
        total = np.exp(scores).sum(axis=1)
        r = np.exp(scores) / total[:, None]
        r[np.arange(len(y)), y] -= 1
        loss = np.log(total).sum() - scores[np.arange(len(y)), y].sum()
        gradient = np.concatenate([(x.T @ r).ravel(), 3 * (r * of_text).sum(axis=0)])
        return loss + 0.005 * flat @ flat, gradient + 0.01 * flat

    flat = minimize(objective, np.zeros(text.size + shape[1]), jac=True, method="L-BFGS-B").x
    return flat[: -shape[1]].reshape(shape) + 3 * flat[-shape[1] :] * text


def accuracies(data: tuple[Floats, ...], shots: int, kind: str, epsilons: list[float], seed: int) -> dict[str, float]:
    """Test accuracy in percent by 'epsilon start'."""
    x, y, x_test, y_test = data
    private, public, text = drawn(x, y, shots, kind, seed)
    classes = range(int(y.max()) + 1)
    given = {"X_public": x[public], "y_public": y[public], "text_weights": text}

    def score(probe: Any) -> float:
        return 100 * float(probe.fit(x[private], y[private], **given).score(x_test, y_test))

    found = {"0 text": score(ZeroShot(classes=classes))}
    found |= {f"0 {init}": score(OnlyPublic(classes=classes, init=init)) for init in ("auto", "public")}
    middle = unit(x[public]).mean(axis=0)
    weights = class_wise(unit(unit(x[public]) - middle), y[public], text)
    found["0 class-wise"] = 100 * float((((unit(x_test) - middle) @ weights).argmax(axis=1) == y_test).mean())
    for epsilon in epsilons:
        for init in ("auto", "public", "text"):
            found[f"{epsilon:g} {init}"] = score(AdaMix(classes=classes, epsilon=epsilon, init=init))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--no-digits", dest="digits", action="store_false")
    parser.add_argument("--json", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    args = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    measured = []
    sets = {"digits": digits(*range(10)), "digits 3 and 8": digits(3, 8)} if args.digits else {}
    for name, data in {**sets, **{file.stem: load(file) for file in args.files}}.items():
        for shots in args.shots:
            for kind in KINDS:
                runs = [accuracies(data, shots, kind, args.epsilons, seed) for seed in range(args.seeds)]
                cell: dict[str, Any] = {"set": name, "shots": shots, "text": kind}
                for start in runs[0]:
                    values = [run[start] for run in runs]
                    spread = statistics.stdev(values) if len(values) > 1 else 0.0
                    cell[start] = [round(statistics.mean(values), 1), round(spread, 1)]
                measured.append(cell)
                print(json.dumps(cell), flush=True)
                if args.json:
                    args.json.write_text(
                        json.dumps({"seeds": args.seeds, "cells": measured}, indent=1) + "\n", encoding="utf-8"
                    )


if __name__ == "__main__":
    main()
