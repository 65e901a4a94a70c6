"""`linprobe account`: what sampled Gaussian releases cost. No data is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from linprobe.accounting.accountants import ACCOUNTANTS, AUTODP, gaussian_figures
from linprobe.accounting.calibrate import GRADIENT, epsilons
from linprobe.accounting.events import Releases

NAMES = (*ACCOUNTANTS, AUTODP.name)  # of all accountants, in the order of their figures


def releases_cost(sampling_rate: float, noise_multiplier: float, n_steps: int, delta: float) -> dict[str, Any]:
    """The cost of sampled Gaussian releases.

    Returns: sampling_rate, noise_multiplier, steps, delta, gdp_mu and zcdp_rho (None if q < 1), accountant (of
        record), and for every applicable accountant its epsilon under its name, one of `NAMES`, the accountant of
        record first; None if epsilon is not finite.
    """
    costs = epsilons(sampling_rate, noise_multiplier, n_steps, delta)
    figures = {name: cost if np.isfinite(cost) else None for name, cost in costs.items()}
    return {
        "sampling_rate": sampling_rate,
        "noise_multiplier": noise_multiplier,
        "steps": n_steps,
        "delta": delta,
        **gaussian_figures([Releases(GRADIENT, noise_multiplier, sampling_rate, n_steps)]),
        "accountant": next(iter(figures)),
        **figures,
    }
