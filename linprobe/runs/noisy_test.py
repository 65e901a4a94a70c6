"""What a manifest states about private test rows: noisy counts, and the accuracies that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linprobe.errors import PrivacyError
from linprobe.mechanisms.correct_predictions import NoisyTest

PURPOSE = "test accuracy"


def noisy_figures(tested: NoisyTest, n_test: int, names: Sequence[str]) -> dict[str, Any]:
    """The keys of a manifest: `test_counts`, accuracy, balanced accuracy, their noise, and the recall of each class."""
    accuracy, std = tested.accuracy(n_test)
    balanced, balanced_std = tested.balanced or (None, None)
    return {
        "test_accuracy": accuracy,
        "test_accuracy_std": std,
        "test_balanced_accuracy": balanced,
        "test_balanced_accuracy_std": balanced_std,
        "test_accuracy_per_class": None if balanced is None else dict(zip(names, tested.recalls, strict=True)),
        "test_counts": {"right": tested.right, "by_class": tested.by_class.tolist()},
    }


def check_noisy_test(manifest: Mapping[str, Any]) -> None:
    """PrivacyError if the accuracies on private test rows do not follow from the noisy counts and the release.

    Earlier manifests state no counts.
    """
    counts = manifest.get("test_counts")
    if counts is None:
        return
    release = next((one for one in manifest["releases"] or () if one["purpose"] == PURPOSE), None)
    sizes = [len(pair) for pair in counts["by_class"]]
    if release is None or manifest["test_rows"] != "private" or sizes != [2] * manifest["n_classes"]:
        raise PrivacyError("test_counts are those of no release on private test rows by class; do not trust it")
    released = np.append(counts["right"], counts["by_class"])
    follows = noisy_figures(
        NoisyTest.of(released, release["noise_multiplier"]), manifest["n_test"], manifest["class_names"]
    )
    for key, value in follows.items():
        if manifest.get(key) != value:
            raise PrivacyError(
                f"{key} follows from test_counts as {value}, the manifest says {manifest.get(key)}; do not trust it"
            )
