"""Metrics on test rows: `test_figures.json`, which must agree with itself, and what the manifest states of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.calibrate import check_delta
from linprobe.accounting.events import OWNER
from linprobe.data.feature_reader import FeatureReader, test_people
from linprobe.errors import DataError, UsageError
from linprobe.mechanisms.correct_predictions import NoisyTest
from linprobe.mechanisms.score_histogram import NoisyScores, noisy_auroc
from linprobe.methods import Method
from linprobe.runs.figures import figures_by_task
from linprobe.runs.manifest import (
    COUNT,
    NUMBER,
    SHARE,
    TEXT,
    WHOLE,
    Accuracy,
    Manifest,
    NoisyCounts,
    by_name,
    fits,
    list_of,
    none_or,
    record,
)

METRIC, INTERVAL = none_or(SHARE), none_or(list_of(SHARE))
OF_CLASS = record(
    n=WHOLE,
    recall=METRIC,
    recall_interval=INTERVAL,
    predicted=WHOLE,
    precision=METRIC,
    precision_interval=INTERVAL,
    auroc=METRIC,
)
CLASS_METRICS = record(
    test_rows=COUNT,
    test_accuracy=SHARE,
    balanced_accuracy=SHARE,
    macro_auroc=METRIC,
    calibration_error=SHARE,
    commonest_class=TEXT,
    commonest_share=SHARE,
    per_class=by_name(OF_CLASS),
    confusion_matrix=none_or(list_of(list_of(WHOLE))),
    calibration=list_of(record(n=COUNT, confidence=NUMBER, accuracy=NUMBER)),
)
OF_LABEL = record(
    n=WHOLE,
    predicted=WHOLE,
    accuracy=SHARE,
    accuracy_interval=INTERVAL,
    auroc=METRIC,
    average_precision=METRIC,
    recall=METRIC,
    recall_interval=INTERVAL,
    precision=METRIC,
    precision_interval=INTERVAL,
)
LABEL_METRICS = record(
    test_rows=COUNT,
    macro_auroc=METRIC,
    macro_average_precision=METRIC,
    label_accuracy=SHARE,
    commonest_accuracy=SHARE,
    per_label=by_name(OF_LABEL),
)
STATED_OF_CLASSES = {  # keys of the manifest, and of the file
    "n_test": "test_rows",
    "test_accuracy": "test_accuracy",
    "test_balanced_accuracy": "balanced_accuracy",
    "test_macro_auroc": "macro_auroc",
    "test_calibration_error": "calibration_error",
}
STATED_OF_LABELS = {
    "n_test": "test_rows",
    "test_macro_auroc": "macro_auroc",
    "test_macro_average_precision": "macro_average_precision",
    "test_label_accuracy": "label_accuracy",
}
MEANS = {"macro_auroc": "auroc", "macro_average_precision": "average_precision", "label_accuracy": "accuracy"}
ROUNDING = 1e-9


def measured_accuracy(metrics: Mapping[str, Any] | None, test_rows: str, n_test: int) -> Accuracy:
    """What a manifest states of metrics on public test rows; None for rows that were not measured."""
    nothing = dict.fromkeys(("test_accuracy", "test_accuracy_std", "test_balanced_accuracy", "test_accuracy_per_class"))
    stated: dict[str, Any] = {**nothing, "test_rows": test_rows, "n_test": n_test}
    if metrics is not None and "per_label" in metrics:
        stated |= {key: metrics[name] for key, name in STATED_OF_LABELS.items()}
    elif metrics is not None:
        stated |= {key: metrics[name] for key, name in STATED_OF_CLASSES.items()}
        stated["test_accuracy_per_class"] = {name: one["recall"] for name, one in metrics["per_class"].items()}
    return Accuracy(**stated)


def noisy_accuracy(tested: NoisyTest, scores: NoisyScores | None, n_test: int, names: Sequence[str]) -> Accuracy:
    """What a manifest states of noisy counts on private test rows; without `scores`, as earlier versions, no AUROC."""
    accuracy, std = tested.accuracy(n_test)
    auroc, auroc_std = (scores and noisy_auroc(scores.cells, scores.std, tested)) or (None, None)
    balanced, balanced_std = tested.balanced or (None, None)
    return Accuracy(
        test_rows="private",
        test_accuracy=accuracy,
        test_accuracy_std=std,
        test_balanced_accuracy=balanced,
        test_balanced_accuracy_std=balanced_std,
        test_accuracy_per_class=None if balanced is None else dict(zip(names, tested.recalls, strict=True)),
        test_macro_auroc=auroc,
        test_macro_auroc_std=auroc_std,
        n_test=n_test,
        test_counts=NoisyCounts(tested.right, tested.by_class.tolist()),
        test_scores=None if scores is None else scores.cells.tolist(),
    )


def stated_metrics(manifest: Manifest) -> dict[str, str]:
    """The keys of a manifest about its test rows, and their names in the file."""
    known = STATED_OF_LABELS if manifest.several_labels else STATED_OF_CLASSES
    return {key: name for key, name in known.items() if manifest.has(key)}


def read_test_metrics(content: bytes, path: Path, manifest: Manifest) -> dict[str, Any]:
    """The metrics of a run on public test rows, as `figures_by_task` gives them.

    Raises DataError: no JSON, another kind of value, or metrics that contradict each other or the manifest.
    """
    try:
        metrics = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}); restore it from a copy") from None
    if not fits(LABEL_METRICS if manifest.several_labels else CLASS_METRICS, metrics):
        raise DataError(
            f"{path} cannot be read: a key is unknown or missing, or a value is wrong; restore it from a copy"
        )
    wrong = next(_contradictions(metrics, manifest), None)
    if wrong is not None:
        raise DataError(f"{path}: {wrong}; restore it from a copy")
    return dict(metrics)


def _contradictions(metrics: Mapping[str, Any], manifest: Manifest) -> Iterator[str]:
    for key, name in stated_metrics(manifest).items():
        if getattr(manifest, key) != metrics[name]:
            yield f"{name} is {metrics[name]}, and the manifest's {key} {getattr(manifest, key)}"
    if manifest.several_labels:
        yield from label_contradictions(metrics, manifest.class_names)
    else:
        yield from _class_contradictions(metrics, manifest)


def _intervals(one: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """What is wrong with the intervals of a class or a label."""
    if any((one[f"{name}_interval"] is None) != (one[name] is None) for name in names):
        yield "a share lacks its interval, or an interval its share"
    if any(len(one[f"{name}_interval"] or (0, 0)) != 2 for name in names):
        yield "an interval needs a lower and an upper end"


# long: a list of rules, each about other figures
def _class_contradictions(metrics: Mapping[str, Any], manifest: Manifest) -> Iterator[str]:
    of_class = list(metrics["per_class"].values())
    if list(metrics["per_class"]) != manifest.class_names:
        yield "its classes differ from the manifest's"
    recalls = {name: one["recall"] for name, one in metrics["per_class"].items()}
    if recalls != manifest.test_accuracy_per_class:
        yield "its recalls differ from the accuracies by class in the manifest"
    for one in of_class:
        yield from _intervals(one, ("recall", "precision"))
    n, bins = [one["n"] for one in of_class], metrics["calibration"]
    if sum(n) != metrics["test_rows"] or (bins and sum(n) != sum(one["n"] for one in bins)):
        yield "the numbers of rows do not add up"
    hits = sum(one["n"] * (one["recall"] or 0) for one in of_class) / metrics["test_rows"]
    if not math.isclose(hits, metrics["test_accuracy"], abs_tol=ROUNDING):
        yield f"test_accuracy is {metrics['test_accuracy']}, and the classes give {hits:.9g}"
    matrix = metrics["confusion_matrix"]
    if matrix is None:
        return
    if [len(row) for row in matrix] != [len(n)] * len(n):
        yield "the confusion matrix is not square, with a row for each class"
        return
    if [sum(row) for row in matrix] != n or [sum(row) for row in zip(*matrix, strict=True)] != [
        one["predicted"] for one in of_class
    ]:
        yield "the confusion matrix contradicts the numbers of rows by class"
    for index, one in enumerate(of_class):
        if n[index] and not math.isclose(matrix[index][index] / n[index], one["recall"] or 0, abs_tol=ROUNDING):
            yield "the confusion matrix contradicts a recall"


# long: a list of rules, each about other figures
def label_contradictions(metrics: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """What the metrics of labels contradict: each other, or the names of the labels."""
    of_label, n_rows = list(metrics["per_label"].values()), metrics["test_rows"]
    if list(metrics["per_label"]) != names:
        yield "its labels differ from the manifest's"
    for mean, name in MEANS.items():
        found = [one[name] for one in of_label if one[name] is not None]
        expected = sum(found) / len(found) if found else None
        if (expected is None) != (metrics[mean] is None) or not math.isclose(
            expected or 0, metrics[mean] or 0, abs_tol=ROUNDING
        ):
            yield f"{mean} is {metrics[mean]}, and the labels give {expected}"
    majority = sum(max(one["n"], n_rows - one["n"]) for one in of_label) / n_rows / len(of_label)
    if not math.isclose(majority, metrics["commonest_accuracy"], abs_tol=ROUNDING):
        yield f"commonest_accuracy is {metrics['commonest_accuracy']}, and the labels give {majority:.9g}"
    for one in of_label:
        if max(one["n"], one["predicted"]) > n_rows:
            yield "a label has more rows than there are"
        if any((one[name] is None) == (0 < one["n"] < n_rows) for name in ("auroc", "average_precision")):
            yield "a label lacks an AUROC, or has one without two kinds of rows"
        hits = one["n"] * (one["recall"] or 0)
        if not math.isclose(hits, one["predicted"] * (one["precision"] or 0), abs_tol=ROUNDING * n_rows):
            yield "a recall contradicts a precision"
        wrong = one["n"] + one["predicted"] - 2 * hits
        if not math.isclose(one["accuracy"], 1 - wrong / n_rows, abs_tol=ROUNDING):
            yield "an accuracy contradicts recall and precision"
        yield from _intervals(one, ("accuracy", "recall", "precision"))


MOST_PASSES = 4  # over the test rows, for the AUROC of classes; `evaluate` has no limit
PRINTED = (  # keys of every manifest
    "test_accuracy",
    "test_accuracy_std",
    "test_balanced_accuracy",
    "test_balanced_accuracy_std",
    "test_macro_auroc",
    "test_calibration_error",
)
# of rows with several labels, and of private test rows
PRINTED_OF_SOME = ("test_label_accuracy", "test_macro_average_precision", "test_macro_auroc_std")


class Model(Protocol):
    """Weights and bias for raw rows, of a run that was trained or loaded."""

    @property
    def weights(self) -> NDArray[np.float32]: ...

    @property
    def bias(self) -> NDArray[np.float32]: ...


def figures_of(features: FeatureReader, trained: Model) -> dict[str, Any] | None:
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


def accuracy_of(
    features: FeatureReader, tested: tuple[NoisyTest, NoisyScores] | None, measured: dict[str, Any] | None, unit: str
) -> Accuracy:
    """Accuracy on the test rows: exact if they are public, noisy or none if they are private."""
    n_test = test_units(features, unit)
    if tested is not None:
        return noisy_accuracy(*tested, n_test, features.description.class_names)
    return measured_accuracy(measured, features.description.test_rows if n_test else "none", n_test)


def test_units(features: FeatureReader, unit: str | None) -> int:
    """The public number of test rows; of test people if they are protected, whose number of rows is private."""
    people = test_people(features, unit)
    return features.sizes.get("test", 0) if people is None else len(people) - 1


def test_epsilon_of(
    features: FeatureReader, given: float | None, delta: float, method: Method, unit: str | None
) -> float | None:
    """The part of epsilon that pays for a noisy accuracy on private test rows; None for no noisy accuracy.

    Raises UsageError: --test-epsilon without private test rows, for a method that spends nothing, or for people where
    the test rows have no owners. PrivacyError: delta of at least 1 / (number of test rows, or people).
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
    if unit == OWNER and not features.has_owners("test"):
        raise UsageError(
            f"test epsilon is {given:g} with unit owner, and {features.path} does not name the owners of its test "
            "rows; allowed: a file with owner_test, or no --test-epsilon"
        )
    check_delta(delta, test_units(features, unit))
    return given
