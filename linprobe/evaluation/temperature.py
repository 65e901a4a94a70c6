"""The temperature for `predict` and `evaluate`: from the group `public` of a feature file, never from other rows."""

from __future__ import annotations

from pathlib import Path

from linprobe.data.dataset import open_features
from linprobe.data.feature_reader import extraction_of
from linprobe.data.labels import MULTILABEL
from linprobe.errors import DataError, UsageError
from linprobe.metrics.scores import fit_temperature
from linprobe.progress import Progress
from linprobe.runs.matching import check_classes, check_made_alike, check_width, refuse_private_as_public
from linprobe.runs.run_folder import RunFolder


def temperature_of(run: RunFolder, public: Path | None, progress: Progress, *, allow_other: bool = False) -> float:
    """The temperature fitted on the public rows of a feature file, with a note; 1 without a file.

    Args:
        allow_other: fit on rows that were extracted with other settings than the rows of the run, with a note.

    Raises:
        UsageError: a run that votes, or a multilabel run. DataError: a file without the group `public`, with other
            classes, other settings of extraction, or another number of features. PrivacyError: a row that is private.
    """
    if public is None:
        return 1.0
    if run.weights.ndim == 3:
        raise UsageError(f"run {run.folder} votes, so it has no temperature; leave out --calibrate")
    if run.task == MULTILABEL:
        raise UsageError(
            f"run {run.folder} is multilabel, and a temperature needs one class a row; leave out --calibrate"
        )

    with open_features(public) as opened:
        if "public" not in opened.sizes:
            raise DataError(
                f"{public} has no public rows, and a temperature from other rows would leak; give a feature file with "
                "the group public"
            )
        check_made_alike(run, public, extraction_of(opened.description), progress, allow_other=allow_other)
        check_width(run, opened.n_features, public)
        check_classes(run, opened)
        seen = opened.digest("public") == run.manifest.public_digest
        if not seen:  # the others were compared when the run was trained
            refuse_private_as_public(run, opened, "a temperature", progress)
        temperature = fit_temperature(opened.blocks("public"), run.weights, run.bias)
        progress.note(f"temperature {temperature:.4g}, from {opened.sizes['public']} public rows of {public}")
        if seen:
            progress.note(
                "the run was trained with these public rows, so the temperature may be too low; other public rows are "
                "better"
            )
    return temperature
