"""A noisy mean of unit rows: one Gaussian release of their sum, shrunk by the share of noise in it.

Sun, Suresh, Menon, "The importance of feature preprocessing for differentially private linear optimization", ICLR 2024,
Algorithm 3, line 1. The paper omits the factor 1/N of the noise. The second line is ours.

    1  m <- 1/N (sum_i x_i + N(0, sigma_m^2 I)),  ||x_i|| = 1, so one record moves the sum by at most 1
    2  m <- m_0 + (m - m_0) s / (s + D (sigma_m / N)^2),  s = ||m - m_0||^2 - D (sigma_m / N)^2, from 0 to 1,
       which estimates the true one; m_0 is 0, or a public guess of the mean

Guarantee: 1/sigma_m - Gaussian DP under zero-out of one record, or of one person, whose rows count by their mean.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from linprobe.data.rows import Rows
from linprobe.gradients.backend import Backend
from linprobe.gradients.clipped_sum import row_sum
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.parallel.array_api import Reals, on_host
from linprobe.parallel.process_group import Group

MEAN = "mean"


def released_mean(
    rows: Rows,
    mechanism: GaussianMechanism,
    noise_multiplier: float,
    group: Group,
    backend: Backend,
    guess: Reals | None = None,
) -> Reals:
    """The mean of unit rows, shape (n_features,); `guess` is m_0."""
    total = row_sum(rows, 1.0, all_reduce=group.all_reduce)
    placed = replace(total, value=backend.put(total.value), contributions=backend.put(total.contributions))
    released = mechanism.release(placed, noise_multiplier, purpose=MEAN)
    return shrunk_mean(on_host(released.value)[:, 0], noise_multiplier, rows.n_rows, guess)


def shrunk_mean(total: Reals, noise_multiplier: float, n_private: int, guess: Reals | None = None) -> Reals:
    """Line 2 from the released sum of unit rows, shape (n_features,)."""
    start = np.zeros_like(total) if guess is None else guess
    offset = total / n_private - start
    noise = len(offset) * (noise_multiplier / n_private) ** 2
    signal = min(max(float(offset @ offset) - noise, 0.0), 1.0)
    return np.asarray(start + offset * (signal / (signal + noise))) if signal else start
