"""`linprobe methods`: every method."""

from __future__ import annotations

from typing import Any

from linprobe.methods import METHODS


def methods() -> list[dict[str, Any]]:
    """Every method: method (its name), summary, needs, spends (whether it uses a privacy budget), paper."""
    return [
        {
            "method": method.name,
            "summary": method.summary,
            "needs": list(method.needs),
            "spends": method.spends,
            "paper": method.paper,
        }
        for method in METHODS.values()
    ]
