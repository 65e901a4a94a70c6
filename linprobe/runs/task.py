"""The task of a run: one class a row, or several labels a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linprobe.data.labels import MULTICLASS as MULTICLASS
from linprobe.data.labels import MULTILABEL as MULTILABEL
from linprobe.errors import PrivacyError
from linprobe.methods import METHODS

ONLY_OF_CLASSES = ("test_accuracy", "test_balanced_accuracy", "test_calibration_error", "test_accuracy_per_class")
ONLY_OF_LABELS = ("test_label_accuracy", "test_macro_average_precision")


def task_of(manifest: Mapping[str, Any]) -> str:
    """The task that a manifest states; earlier manifests had one."""
    return str(manifest.get("task", MULTICLASS))


def check_task(manifest: Mapping[str, Any]) -> None:
    """PrivacyError if a manifest states a method or figures that its task does not have."""
    several = task_of(manifest) == MULTILABEL
    if several and not METHODS[manifest["method"]].several_labels:
        raise PrivacyError(f"task is {MULTILABEL}, which method {manifest['method']} does not train; do not trust it")
    for key in ONLY_OF_CLASSES if several else ONLY_OF_LABELS:
        if manifest.get(key) is not None:
            raise PrivacyError(f"{key} is {manifest[key]}, and task {task_of(manifest)} has none; do not trust it")
