"""The per-record report: a summary of each private record's own epsilon_i. Private unless released with noise.

Source: AdaMix (Golatkar et al. 2022), Figure 3 and Proposition 14.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe import atomic_files
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.per_instance import summary
from linprobe.runs.manifest_check import stated_epsilon
from linprobe.runs.units import unit_of

VALIDITY = "given the released weights of every step; each figure is at most the worst-case epsilon"
VALIDITY_SAMPLED = (
    "individual Renyi accounting of Poisson samples, for the trajectory of weights that was released; "
    "each figure is at most the worst-case epsilon"
)
SEEDED = "nowhere: the noise came from a seed the user gave; the figures are those of a run whose seed is secret"
SPARK = "▁▂▃▄▅▆▇█"


def per_record_report(epsilons: NDArray[np.float64], manifest: dict[str, Any]) -> dict[str, Any]:
    """The JSON report: guarantee, epsilon (None for a seeded run), delta, unit, gdp_mu and zcdp_rho (None likewise),
    records (with unit owner, people), max, mean, quantiles, share_below_half, valid. Private.

    Args:
        epsilons: each record's own, (n,); of a seeded run, as if its seed were secret.
        manifest: of a run that released something with noise.
    """
    valid = VALIDITY_SAMPLED if manifest["gdp_mu"] is None else VALIDITY
    return {
        "private": True,
        "note": "PRIVATE: computed from private rows without noise; do not publish",
        "guarantee": manifest["guarantee"],
        "epsilon": manifest["epsilon"],
        "epsilon_if_seed_were_secret": manifest.get("epsilon_if_seed_were_secret"),
        "delta": manifest["delta"],
        "unit": unit_of(manifest),
        **{key: manifest[key] if manifest["private"] else None for key in ("gdp_mu", "zcdp_rho")},
        **summary(epsilons, stated_epsilon(manifest)),
        "valid": valid if manifest["private"] else SEEDED,
    }


def sparkline(epsilons: NDArray[np.float64], epsilon: float, width: int = 60) -> str:
    """The sorted curve as text, one column per quantile, full height at the worst case `epsilon`."""
    if not epsilons.size:
        return ""
    heights = np.quantile(epsilons, (np.arange(width) + 0.5) / width) / epsilon
    return "".join(SPARK[min(len(SPARK) - 1, int(height * len(SPARK)))] for height in heights)


def write_csv(path: Path, ids: list[str], epsilons: NDArray[np.float64], column: str) -> None:
    """Write one line per record, its id and, under the name `column`, its epsilon, rounded up; mode 0600."""
    figures = zip(ids, epsilons.tolist(), strict=True)
    atomic_files.write_csv(path, ({"id": name, column: rounded_up(value)} for name, value in figures), private=True)
