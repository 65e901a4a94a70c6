"""Results of attacks, for tests of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def figures_on(classes: list[str], rows: int = 10) -> dict[str, Any]:
    """Figures on test rows, as `class_figures` returns them: class i has recall i / classes, class 0 no rows."""
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


def attack_on(run: Path, **changes: Any) -> dict[str, Any]:
    """Results with the keys of `linprobe attack` for this run, with `changes` applied."""
    manifest = json.loads((run / "manifest.json").read_text())
    return {
        "run": str(run),
        "manifest_digest": manifest["manifest_digest"],
        "method": manifest["method"],
        "attack": "threshold",
        "auc": 0.532,
        "auc_low": 0.501,
        "auc_high": 0.563,
        "tpr_at_fpr": {"0.001": 0.004, "0.01": 0.023},
        "members": 400,
        "non_members": 120,
        "shadows": None,
        "epsilon": manifest["epsilon"],
        "delta": manifest["delta"],
        **changes,
    }
