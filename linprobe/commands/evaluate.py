"""`linprobe evaluate`: accuracy of a run on test rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linprobe.commands._row_sources import check_made_alike, check_test_rows, check_width, features_of, open_features
from linprobe.data.provenance import extraction_of
from linprobe.errors import DataError
from linprobe.evaluation.metrics import accuracies, accuracy_by_class, class_accuracy
from linprobe.progress import Progress
from linprobe.runs import run_folder


def evaluate(folder: Path, features: Path | None, progress: Progress, *, allow_other: bool = False) -> dict[str, Any]:
    """Accuracy of a run on the test rows of a feature file.

    Args:
        allow_other: score rows that were made otherwise than those of the run, with a note.

    Returns: run, test_rows, test_accuracy, test_balanced_accuracy, per_class (by class name, None for a class without
        rows).

    Raises:
        DataError: the file has other classes or another number of features than the run, rows made otherwise, or no
            test rows.
        PrivacyError: its test rows are private.
    """
    run = run_folder.load_run(folder)
    with open_features(features_of(run, features)) as opened:
        if list(opened.description.class_names) != run.class_names:
            raise DataError(
                f"{opened.path} declares other classes than the run {folder}; use a file with the same classes"
            )
        check_made_alike(run, opened.path, extraction_of(opened.description), progress, allow_other=allow_other)
        check_width(run, opened.n_features, opened.path)
        check_test_rows(opened, "accuracy is measured on")
        correct, total = class_accuracy(opened.blocks("test"), run.weights, run.bias)
    return {
        "run": str(folder),
        "test_rows": int(total.sum()),
        **accuracies(correct, total),
        "per_class": accuracy_by_class(run.class_names, correct, total),
    }
