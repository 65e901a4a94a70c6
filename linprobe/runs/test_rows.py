"""What a run states about the test rows of its feature file."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.calibrate import check_delta
from linprobe.accounting.events import OWNER
from linprobe.data.dataset import test_people
from linprobe.data.feature_reader import FeatureReader
from linprobe.errors import UsageError
from linprobe.mechanisms.correct_predictions import NoisyTest
from linprobe.methods import Method
from linprobe.metrics.figures import figures_by_task
from linprobe.runs.manifest import Accuracy
from linprobe.runs.metrics_file import measured_accuracy, noisy_accuracy

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
    features: FeatureReader, tested: NoisyTest | None, measured: dict[str, Any] | None, unit: str
) -> Accuracy:
    """Accuracy on the test rows: exact if they are public, noisy or none if they are private."""
    n_test = test_units(features, unit)
    if tested is not None:
        return noisy_accuracy(tested, n_test, features.description.class_names)
    return measured_accuracy(measured, features.description.test_rows if n_test else "none", n_test)


def test_units(features: FeatureReader, unit: str | None) -> int:
    """The public number of test rows; of test people if they are protected, whose number of rows is private."""
    people = test_people(features, unit)
    return features.sizes.get("test", 0) if people is None else len(people) - 1


def test_epsilon_of(
    features: FeatureReader, given: float | None, delta: float, method: Method, unit: str | None
) -> float | None:
    """The part of epsilon that pays for a noisy accuracy on private test rows; None for no noisy accuracy.

    Raises:
        UsageError: --test-epsilon without private test rows, for a method that spends nothing, or for people where the
            test rows have no owners. PrivacyError: delta of at least 1 / (number of test rows, or people).
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
            f"test epsilon is {given:g} with unit owner, and {features.path} does not say whose its test rows are; "
            "allowed: a file with owner_test, or no --test-epsilon"
        )
    check_delta(delta, test_units(features, unit))
    return given
