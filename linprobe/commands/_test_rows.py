"""Figures on the test rows of a feature file after training, and the manifest's keys about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linprobe.accounting.calibrate import check_delta
from linprobe.commands._row_sources import training_file
from linprobe.data.feature_reader import FeatureReader
from linprobe.data.feature_scan import compare_test_rows, owners_of
from linprobe.data.owners import refuse_both_sides
from linprobe.errors import UsageError
from linprobe.evaluation.figures import figures_by_task
from linprobe.methods import Method
from linprobe.progress import Progress
from linprobe.runs.manifest import Accuracy
from linprobe.runs.metrics_file import measured_accuracy, noisy_accuracy
from linprobe.runs.run_folder import RunFolder
from linprobe.training.engine import Trained

MOST_PASSES = 4  # over the test rows, for the AUROC of classes; `evaluate` has no limit
PRINTED = (  # keys of every manifest
    "test_accuracy",
    "test_accuracy_std",
    "test_balanced_accuracy",
    "test_balanced_accuracy_std",
    "test_macro_auroc",
    "test_calibration_error",
)
PRINTED_OF_LABELS = ("test_label_accuracy", "test_macro_average_precision")  # of rows with several labels only


def figures_of(features: FeatureReader, trained: Trained | RunFolder) -> dict[str, Any] | None:
    """Figures of the released model on public test rows; None if there are none."""
    if "test" not in features.sizes or features.description.private_test:
        return None
    return figures_by_task(
        features.description.task,
        lambda: features.blocks("test"),
        features.sizes["test"],
        trained.weights,
        trained.bias,
        features.description.class_names,
        most_passes=MOST_PASSES,
    )


def accuracy_of(features: FeatureReader, trained: Trained, measured: dict[str, Any] | None) -> Accuracy:
    """Accuracy on the test rows: exact if they are public, noisy or none if they are private."""
    n_test = features.sizes.get("test", 0)
    if trained.tested is not None:
        return noisy_accuracy(trained.tested, n_test, features.description.class_names)
    return measured_accuracy(measured, features.description.test_rows if n_test else "none", n_test)


def refuse_private_rows(run: RunFolder, features: FeatureReader, progress: Progress) -> None:
    """DataError if test rows of a file, or the people they belong to, are among the training rows of a run.

    The run's own feature file was checked when it was opened. If it is not here, a note says that nothing is compared.
    """
    recorded = Path(run.manifest.features)
    if recorded.is_file() and recorded.samefile(features.path):
        return
    with training_file(run, features.path, progress) as training:
        if training is None:
            return
        where = f"training rows of {training.path}"
        blocks = (x for x, _ in training.blocks("train"))
        note = compare_test_rows(features, blocks, training.sizes["train"], where)
        if note is not None:
            progress.note(note.note)
        if features.has_owners("test") and training.has_owners("train"):
            refuse_both_sides(owners_of(features, "test"), owners_of(training, "train"), f"{features.path} and {where}")


def test_epsilon_of(features: FeatureReader, given: float | None, delta: float, method: Method) -> float | None:
    """The part of epsilon that pays for a noisy accuracy on private test rows; None for no noisy accuracy.

    Raises:
        UsageError: --test-epsilon without private test rows, or for a method that spends nothing.
        PrivacyError: delta of at least 1 / (number of test rows).
    """
    if given is None:
        return None
    if "test" not in features.sizes or not features.description.private_test:
        raise UsageError(
            f"test epsilon is {given:g}, and {features.path} has no private test rows, so accuracy costs nothing; "
            "leave out --test-epsilon, or declare the rows private with --private-test of import or extract"
        )
    if not method.spends:
        raise UsageError(f"option --test-epsilon does nothing for {method.name}, which adds no noise; leave it out")
    check_delta(delta, features.sizes["test"])
    return given
