"""`linprobe account`: what sampled Gaussian releases cost. No data is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from linprobe.accounting import planning
from linprobe.accounting.accountants import gaussian_figures
from linprobe.accounting.calibrate import GRADIENT
from linprobe.accounting.events import Releases
from linprobe.options.requests import AccountRequest


def account(request: AccountRequest) -> dict[str, Any]:
    """The cost of sampled Gaussian releases.

    Returns: sampling_rate, noise_multiplier, steps, delta, gdp_mu and zcdp_rho (None if q < 1), accountant (of
        record), and for every applicable accountant its epsilon under its name, the accountant of record first; None
        if epsilon is not finite.
    """
    rate, sigma, n_steps, delta = request.sampling_rate, request.noise_multiplier, request.n_steps, request.delta
    costs = planning.account(rate, sigma, n_steps, delta)
    figures = {name: cost if np.isfinite(cost) else None for name, cost in costs.items()}
    return {
        "sampling_rate": rate,
        "noise_multiplier": sigma,
        "steps": n_steps,
        "delta": delta,
        **gaussian_figures([Releases(GRADIENT, sigma, rate, n_steps)]),
        "accountant": next(iter(figures)),
        **figures,
    }
