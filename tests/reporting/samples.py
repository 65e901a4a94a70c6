"""Figures on test rows, for tests of the page."""

from __future__ import annotations

from typing import Any


def figures_on(classes: list[str], rows: int = 10) -> dict[str, Any]:
    """Figures on test rows, as `figures_by_task` returns them: class i has recall i / classes, class 0 no rows."""
    n = len(classes)
    one = {"predicted": 9, "precision": 0.5, "precision_interval": [0.2, 0.8], "auroc": 0.75}
    per_class: dict[str, Any] = {
        name: {"n": rows, "recall": index / n, "recall_interval": [0.0, 1.0], **one}
        for index, name in enumerate(classes)
    }
    per_class[classes[0]] |= {"n": 0, "recall": None, "recall_interval": None, "auroc": None}
    return {
        "test_rows": 120,
        "test_accuracy": 0.5,
        "balanced_accuracy": 0.5,
        "macro_auroc": 0.75,
        "calibration_error": 0.1,
        "commonest_class": classes[-1],
        "commonest_share": 0.9,
        "per_class": per_class,
        "confusion_matrix": [[0] * n, *([rows - 1] + [0] * (n - 2) + [1] for _ in classes[1:])],
        "calibration": [],
    }
