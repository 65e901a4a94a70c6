"""`linprobe evaluate`: figures of a run on test rows."""

from __future__ import annotations

from typing import Any

from linprobe.commands._row_sources import (
    check_classes,
    check_made_alike,
    check_test_rows,
    check_width,
    features_of,
    open_features,
)
from linprobe.commands._temperature import temperature_of
from linprobe.commands._test_rows import refuse_private_rows
from linprobe.data.provenance import extraction_of
from linprobe.evaluation.figures import figures_by_task, no_better_than_guessing
from linprobe.options.requests import EvaluateRequest
from linprobe.progress import Progress
from linprobe.reporting.figure_tables import FigureTables as FigureTables
from linprobe.reporting.figure_tables import tables_of as tables_of
from linprobe.runs import run_folder


def evaluate(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """Figures of a run on the test rows of a feature file, with a note if the commonest class is as good an answer.

    Returns: run, temperature (1 without `request.calibrate`), and the keys of `figures_by_task`.

    Raises:
        DataError, UsageError: see `temperature_of`.
        DataError: the file has other classes or another number of features than the run, rows made otherwise, no test
            rows, or test rows or people that the run was trained on.
        PrivacyError: its test rows are private.
    """
    run, allow_other = run_folder.load_run(request.run), request.allow_other
    temperature = temperature_of(run, request.calibrate, progress, allow_other=allow_other)
    with open_features(features_of(run, request.features), progress=progress) as opened:
        check_made_alike(run, opened.path, extraction_of(opened.description), progress, allow_other=allow_other)
        check_width(run, opened.n_features, opened.path)
        check_classes(run, opened)
        check_test_rows(opened, "accuracy is measured on")
        if request.features is not None:
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
    return {"run": str(request.run), "temperature": temperature, **figures}
