"""`linprobe evaluate` and `linprobe predict`: a run on other rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.commands._row_sources import features_of, open_features
from linprobe.data.sources import BLOCK_ROWS
from linprobe.errors import DataError, UsageError
from linprobe.evaluation.metrics import accuracy_by_class, class_accuracy, predictions
from linprobe.runs import run_folder


def evaluate(folder: Path, features: Path | None) -> dict[str, Any]:
    """Accuracy of a run on the test rows of a feature file, overall and per class."""
    run = run_folder.load_run(folder)
    with open_features(features_of(run, features)) as opened:
        if list(opened.description.class_names) != run.class_names:
            raise DataError(f"{opened.path} declares other classes than the run {folder}; use a file with the same")
        _check_width(run, opened.n_features, opened.path)
        correct, total = class_accuracy(opened.blocks("test"), run.weights, run.bias)
    return {
        "run": str(folder),
        "test_rows": int(total.sum()),
        "test_accuracy": int(correct.sum()) / int(total.sum()),
        "per_class": accuracy_by_class(run.class_names, correct, total),
    }


def _finite(blocks: Iterable[NDArray[np.floating]], where: Path) -> Iterator[NDArray[np.floating]]:
    """The same blocks, refused at the first NaN or infinity."""
    start = 0
    for x in blocks:
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
        if bad.size:
            raise DataError(
                f"{where} has rows with NaN or infinity, first at row {start + bad[0]}; "
                "allowed: finite features; remove or repair those rows"
            )
        start += len(x)
        yield x


def _check_width(run: run_folder.LoadedRun, n_features: int, where: Path) -> None:
    if n_features != run.weights.shape[-2]:
        raise DataError(f"{where} has {n_features} features; allowed for this run: {run.weights.shape[-2]}")


def predict(folder: Path, features: Path, group: str) -> Iterator[tuple[str, str, float]]:
    """(id, class name, softmax score) of each row: of a group of a feature file, or of a `.npy` array of rows."""
    run = run_folder.load_run(folder)
    if features.suffix == ".npy":
        try:
            rows = np.load(features, mmap_mode="r", allow_pickle=False)
        except run_folder.UNREADABLE as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"{features} cannot be read ({reason}); give a .npy array of feature rows") from None
        if rows.dtype.kind not in "fiub":
            raise DataError(f"{features} has type {rows.dtype}; allowed: real numbers")
        _check_width(run, rows.shape[1] if rows.ndim == 2 else 0, features)
        ids: Iterator[str] = (str(row) for row in range(len(rows)))
        blocks = (rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS))
        yield from _predicted(run, ids, _finite(blocks, features))
        return
    with open_features(features, whole=False) as opened:
        if group not in opened.sizes:
            raise UsageError(f"group is {group!r}; allowed for {features}: {', '.join(opened.sizes)}")
        _check_width(run, opened.n_features, features)
        rows = _finite((x for x, _ in opened.blocks(group)), features)
        yield from _predicted(run, iter(opened.ids(group)), rows)


def _predicted(
    run: run_folder.LoadedRun, ids: Iterator[str], blocks: Iterator[NDArray[np.floating]]
) -> Iterator[tuple[str, str, float]]:
    names = run.class_names
    for best, score in predictions(blocks, run.weights, run.bias):
        for index, value in zip(best.tolist(), score.tolist(), strict=True):
            yield next(ids), names[index], value
