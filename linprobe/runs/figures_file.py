"""`test_figures.json`: figures of a run on public test rows, which must agree with each other and with the manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from linprobe.data.labels import MULTILABEL
from linprobe.errors import DataError
from linprobe.runs.label_figures_file import FIGURES_OF_LABELS, STATED_OF_LABELS, label_contradictions
from linprobe.runs.manifest_keys import (
    COUNT,
    NUMBER,
    SHARE,
    TEXT,
    WHOLE,
    by_name,
    list_of,
    none_or,
    record,
)
from linprobe.runs.run_files import TEST_FIGURES, RunFiles
from linprobe.runs.task import task_of

SHARES = none_or(list_of(SHARE))
OF_CLASS = record(
    n=WHOLE,
    recall=none_or(SHARE),
    recall_interval=SHARES,
    predicted=WHOLE,
    precision=none_or(SHARE),
    precision_interval=SHARES,
    auroc=none_or(SHARE),
)
FIGURES = record(
    test_rows=COUNT,
    test_accuracy=SHARE,
    balanced_accuracy=SHARE,
    macro_auroc=none_or(SHARE),
    calibration_error=SHARE,
    commonest_class=TEXT,
    commonest_share=SHARE,
    per_class=by_name(OF_CLASS),
    confusion_matrix=none_or(list_of(list_of(WHOLE))),
    calibration=list_of(record(n=COUNT, confidence=NUMBER, accuracy=NUMBER)),
)
ROUNDING = 1e-9
STATED = {  # keys of the manifest, and of the file
    "n_test": "test_rows",
    "test_accuracy": "test_accuracy",
    "test_balanced_accuracy": "balanced_accuracy",
    "test_macro_auroc": "macro_auroc",
    "test_calibration_error": "calibration_error",
}


def stated_in(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a manifest about its test rows, and their names in the file."""
    known = STATED_OF_LABELS if task_of(manifest) == MULTILABEL else STATED
    return {key: name for key, name in known.items() if key in manifest}


def read_test_figures(files: RunFiles, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures of a run on public test rows, as `figures_by_task` gives them; None for a run without them.

    Raises:
        DataError: an unreadable file, or figures that contradict each other or the manifest.
    """
    if TEST_FIGURES not in manifest["files"]:
        return None
    path = files.folder / TEST_FIGURES
    try:
        figures = json.loads(files[TEST_FIGURES].decode())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}); restore it from a copy") from None
    if not (FIGURES_OF_LABELS if task_of(manifest) == MULTILABEL else FIGURES).holds(figures):
        raise DataError(
            f"{path} cannot be read: it has a key too many or too few, or a wrong value; restore it from a copy"
        )
    wrong = next(_contradictions(figures, manifest), None)
    if wrong is not None:
        raise DataError(f"{path}: {wrong}; restore it from a copy")
    return dict(figures)


def _contradictions(figures: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    for key, name in stated_in(manifest).items():
        if manifest[key] != figures[name]:
            yield f"{name} is {figures[name]}, and the manifest's {key} {manifest[key]}"
    of_task = label_contradictions if task_of(manifest) == MULTILABEL else _class_contradictions
    yield from of_task(figures, manifest)


def _class_contradictions(figures: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    of_class = list(figures["per_class"].values())
    if list(figures["per_class"]) != manifest["class_names"]:
        yield "the classes are not those of the manifest"
    recalls = {name: one["recall"] for name, one in figures["per_class"].items()}
    if recalls != manifest["test_accuracy_per_class"]:
        yield "the recalls are not the accuracies by class in the manifest"
    for one in of_class:
        if any((one[f"{what}_interval"] is None) != (one[what] is None) for what in ("recall", "precision")):
            yield "a share has no interval, or an interval no share"
        if any(len(one[f"{what}_interval"] or (0, 0)) != 2 for what in ("recall", "precision")):
            yield "an interval has not two ends"
    n = [one["n"] for one in of_class]
    if sum(n) != figures["test_rows"] or (
        figures["calibration"] and sum(n) != sum(b["n"] for b in figures["calibration"])
    ):
        yield "the numbers of rows do not add up"
    hits = sum(one["n"] * (one["recall"] or 0) for one in of_class) / figures["test_rows"]
    if not math.isclose(hits, figures["test_accuracy"], abs_tol=ROUNDING):
        yield f"test_accuracy is {figures['test_accuracy']}, and the classes give {hits:.9g}"
    matrix = figures["confusion_matrix"]
    if matrix is None:
        return
    if [len(row) for row in matrix] != [len(n)] * len(n):
        yield "the confusion matrix is not square, with a row for each class"
        return
    if [sum(row) for row in matrix] != n or [sum(row) for row in zip(*matrix, strict=True)] != [
        one["predicted"] for one in of_class
    ]:
        yield "the confusion matrix contradicts the numbers of rows by class"
    for place, one in enumerate(of_class):
        if n[place] and not math.isclose(matrix[place][place] / n[place], one["recall"] or 0, abs_tol=ROUNDING):
            yield "the confusion matrix contradicts a recall"
