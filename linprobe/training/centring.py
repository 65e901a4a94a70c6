"""Centring without public rows: a noisy mean of the private rows, for a small share of epsilon.

Rows of most networks share a large mean. It dominates the largest eigenvalue of their second moment, so that steps must
be short, and directions that tell classes apart are learned slowly. With public rows, their mean is subtracted.
Without them:

    1  m <- the noisy mean of unit rows (`linprobe.methods.private_mean`), with noise multiplier sigma_m
    2  x_i <- (x_i - m) / ||x_i - m||;  rows stay as they are if ||m|| < `SHORTEST_MEAN`, where nothing is gained

sigma_m is calibrated for `SHARE` of epsilon. Budgets compose as mu^2, so a share of 5 % costs about 0.4 % of it. The
rule for `auto` knows public facts only: the mean is released if its noise, sqrt(D) sigma_m / N, is at most
`LARGEST_NOISE` of the length of a row.

Without line 2 the run has the default number of steps for rows that are not centred. The steps then share the same rest
of the budget: for every value of m they are as private as the others, so the two compose.

The mean is one Gaussian release in the ledger, and line 2 a map of single rows. `dpsgd-f` releases the same mean.
"""

from __future__ import annotations

import math
from dataclasses import replace

from linprobe.accounting.calibrate import calibrate
from linprobe.accounting.events import Releases
from linprobe.errors import UsageError
from linprobe.methods.private_mean import MEAN
from linprobe.options import Conditioning
from linprobe.options.declaration import declared
from linprobe.training.settings import Settings

SHARE = 0.05
LARGEST_NOISE = 1.0
SHORTEST_MEAN = 0.2


def mean_release(settings: Settings, n_private: int) -> Releases:
    """The release of the mean, with the noise that `SHARE` of epsilon buys."""
    budget = calibrate(
        epsilon=SHARE * float(settings.epsilon or 0.0), delta=settings.delta, n_private=n_private, steps=1
    )
    return Releases(MEAN, budget.noise_multiplier, 1.0, 1)


def settled(settings: Settings, n_private: int, n_features: int, *, known: str | None) -> Settings:
    """`settings` with `condition` either `mean` or `none`, and the release that it needs.

    Args:
        n_private, n_features: of the private rows; both are public.
        known: what makes a private mean unnecessary or impossible, such as public rows; None if nothing does.
    Raises ParameterError: an unknown condition. UsageError: condition `mean` with something known.
    """
    declared(Conditioning)["condition"].check(settings.condition)
    if settings.condition == "none":
        return settings
    if known is not None:
        if settings.condition == MEAN:
            raise UsageError(f"condition is 'mean', but there are {known}; use condition none, or leave it out")
        return replace(settings, condition="none")
    release = mean_release(settings, n_private)
    noise = math.sqrt(n_features) * release.noise_multiplier / n_private
    if settings.condition == "auto" and noise > LARGEST_NOISE:
        return replace(settings, condition="none")
    return replace(settings, condition=MEAN, others=(release,))
