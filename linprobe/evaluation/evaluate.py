"""`linprobe evaluate`: metrics of a run on test rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linprobe.data.dataset import check_test_rows, open_features
from linprobe.data.feature_reader import extraction_of
from linprobe.evaluation.temperature import temperature_of
from linprobe.metrics.figures import figures_by_task, no_better_than_guessing
from linprobe.progress import Progress
from linprobe.reporting.metric_tables import MetricTables as MetricTables
from linprobe.reporting.metric_tables import tables_of as tables_of
from linprobe.runs import run_folder
from linprobe.runs.matching import check_classes, check_made_alike, check_width, features_of, refuse_private_rows


def evaluate(
    folder: Path,
    features: Path | None,
    progress: Progress,
    *,
    allow_other: bool = False,
    calibrate: Path | None = None,
) -> dict[str, Any]:
    """Metrics of a run on the test rows of a feature file, with a note if it is no better than the majority class.

    Args:
        allow_other: score rows made otherwise than the run's rows, with a note.
        calibrate: feature file whose public rows give the temperature.

    Returns: run, temperature (1 without `calibrate`), and the keys of `figures_by_task`.

    Raises:
        DataError, UsageError: see `temperature_of`.
        DataError: the file has other classes or another number of features than the run, rows made otherwise, no test
            rows, or test rows or people that the run was trained on.
        PrivacyError: its test rows are private.
    """
    run = run_folder.read_run(folder)
    temperature = temperature_of(run, calibrate, progress, allow_other=allow_other)
    with open_features(features_of(run, features), progress=progress) as opened:
        check_made_alike(run, opened.path, extraction_of(opened.description), progress, allow_other=allow_other)
        check_width(run, opened.n_features, opened.path)
        check_classes(run, opened)
        check_test_rows(opened, "accuracy is measured on")
        if features is not None:
            refuse_private_rows(run, opened, progress)
        figures = figures_by_task(
            run.task,
            lambda: opened.blocks("test"),
            opened.sizes["test"],
            run.weights,
            run.bias,
            run.class_names,
            temperature=temperature,
        )
    no_better = no_better_than_guessing(figures)
    if no_better is not None:
        progress.note(no_better)
    return {"run": str(folder), "temperature": temperature, **figures}
