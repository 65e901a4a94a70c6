"""Figures on the test rows of a feature file after training, and the manifest's keys about them."""

from __future__ import annotations

from typing import Any

from linprobe.data.feature_file import FeatureReader
from linprobe.evaluation.class_figures import class_figures
from linprobe.runs.run_folder import LoadedRun
from linprobe.training.engine import Trained

MOST_PASSES = 4  # over the test rows, for the AUROC; `evaluate` has no limit


def figures_of(features: FeatureReader, trained: Trained | LoadedRun) -> dict[str, Any] | None:
    """Figures of the released model on public test rows; None if there are none."""
    if "test" not in features.sizes or features.description.private_test:
        return None
    return class_figures(
        lambda: features.blocks("test"),
        features.sizes["test"],
        trained.weights,
        trained.bias,
        features.description.class_names,
        most_passes=MOST_PASSES,
    )


def accuracy_of(features: FeatureReader, trained: Trained, measured: dict[str, Any] | None) -> dict[str, Any]:
    """Accuracy on the test rows: exact if they are public, noisy or none if they are private."""
    n_test = features.sizes.get("test", 0)
    stated: dict[str, Any] = {
        "test_rows": features.description.test_rows if n_test else "none",
        "n_test": n_test,
        "test_accuracy": None,
        "test_accuracy_std": None,
        "test_balanced_accuracy": None,
        "test_macro_auroc": None,
        "test_calibration_error": None,
        "test_accuracy_per_class": None,
    }
    if trained.right is not None:
        right, std = trained.right
        return {**stated, "test_accuracy": min(max(right / n_test, 0.0), 1.0), "test_accuracy_std": std / n_test}
    if measured is None:
        return stated
    return {
        **stated,
        "test_accuracy": measured["test_accuracy"],
        "test_balanced_accuracy": measured["balanced_accuracy"],
        "test_macro_auroc": measured["macro_auroc"],
        "test_calibration_error": measured["calibration_error"],
        "test_accuracy_per_class": {name: one["recall"] for name, one in measured["per_class"].items()},
    }
