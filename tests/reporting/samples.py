"""Results of attacks, for tests of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
