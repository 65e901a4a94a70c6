"""`linprobe predict`: classes of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linprobe.commands._row_sources import check_width, open_features
from linprobe.data.array_files import open_array
from linprobe.data.sources import BLOCK_ROWS
from linprobe.errors import DataError, UsageError
from linprobe.evaluation.metrics import predictions
from linprobe.runs import run_folder


def predict(folder: Path, features: Path, group: str) -> Iterator[tuple[str, str, float]]:
    """(id, class name, softmax score) of every row of a group of a feature file, or of a `.npy` array.

    Raises:
        DataError: an unreadable array, another number of features, NaN or infinity. UsageError: an unknown group.
    """
    run = run_folder.load_run(folder)
    if features.suffix == ".npy":
        array = open_array(features)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{features} has type {array.dtype}; allowed: real numbers")
        check_width(run, array.shape[1] if array.ndim == 2 else 0, features)
        ids: Iterator[str] = (str(row) for row in range(len(array)))
        blocks = (array[start : start + BLOCK_ROWS] for start in range(0, len(array), BLOCK_ROWS))
        yield from _predicted(run, ids, _finite(blocks, features))
        return
    with open_features(features, whole=False) as opened:
        if group not in opened.sizes:
            raise UsageError(f"group is {group!r}; allowed for {features}: {', '.join(opened.sizes)}")
        check_width(run, opened.n_features, features)
        rows = _finite((x for x, _ in opened.blocks(group)), features)
        yield from _predicted(run, iter(opened.ids(group)), rows)


def _finite(blocks: Iterable[NDArray[np.floating]], where: Path) -> Iterator[NDArray[np.floating]]:
    """The same blocks; DataError at the first NaN or infinity."""
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


def _predicted(
    run: run_folder.LoadedRun, ids: Iterator[str], blocks: Iterator[NDArray[np.floating]]
) -> Iterator[tuple[str, str, float]]:
    names = run.class_names
    for best, score in predictions(blocks, run.weights, run.bias):
        for index, value in zip(best.tolist(), score.tolist(), strict=True):
            yield next(ids), names[index], value
