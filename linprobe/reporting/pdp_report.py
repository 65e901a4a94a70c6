"""The per-record report: a summary of each private record's own epsilon_i. Private unless released with noise.

Source: AdaMix (Golatkar et al. 2022), Figure 3 and Proposition 14.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe import atomic_files
from linprobe.accounting.per_instance import summary

VALIDITY = "given the released weights of every step; each figure is at most the worst-case epsilon"
VALIDITY_SAMPLED = (
    "individual Renyi accounting of Poisson samples, for the trajectory of weights that was released; "
    "each figure is at most the worst-case epsilon"
)
SPARK = "▁▂▃▄▅▆▇█"


def per_record_report(epsilons: NDArray[np.float64], epsilon: float, delta: float, *, sampled: bool) -> dict[str, Any]:
    """The JSON report: epsilon, delta, records, max, mean, quantiles, share_below_half. Private."""
    return {
        "private": True,
        "note": "PRIVATE: computed from private rows without noise; do not publish",
        "epsilon": epsilon,
        "delta": delta,
        **summary(epsilons, epsilon),
        "valid": VALIDITY_SAMPLED if sampled else VALIDITY,
    }


def sparkline(epsilons: NDArray[np.float64], epsilon: float, width: int = 60) -> str:
    """The sorted curve as text, one column per quantile, full height at the worst case `epsilon`."""
    if not epsilons.size:
        return ""
    heights = np.quantile(epsilons, (np.arange(width) + 0.5) / width) / epsilon
    return "".join(SPARK[min(len(SPARK) - 1, int(height * len(SPARK)))] for height in heights)


def write_csv(path: Path, ids: list[str], epsilons: NDArray[np.float64]) -> None:
    """Write one line per record, `id,epsilon`, mode 0600."""
    figures = zip(ids, epsilons.tolist(), strict=True)
    atomic_files.write_csv(path, ({"id": name, "epsilon": f"{value:.6g}"} for name, value in figures), private=True)
