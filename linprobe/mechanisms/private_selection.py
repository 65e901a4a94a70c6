"""Private selection: the best of a random number of runs, each with a setting drawn at random.

Liu and Talwar 2019, "Private selection from private candidates"; Papernot and Steinke 2022, "Hyperparameter tuning with
Renyi differential privacy", Algorithm 2 with eta = 1.

    1  K <- geometric on 1, 2, ... with mean m
    2  for k = 1..K:  j <- uniform among the settings;  (score, output) <- run(j), with fresh noise
    3  return the output with the highest score

Guarantee: `linprobe.accounting.selection`, if run(j) is private for every j, its score included. It holds for the
returned output alone. K, the other scores and the other outputs must not leave: they are not returned, and the time
that the selection takes must stay secret as well.

All choices come from the system's entropy and are exact: P(K = k) = (1 - 1/m)^(k-1) / m.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

Output = TypeVar("Output")


def geometric(mean: int) -> int:
    """A whole number K >= 1 with P(K = k) = (1 - 1/mean)^(k-1) / mean, for a whole `mean` of at least 1."""
    count = 1
    while secrets.randbelow(mean):
        count += 1
    return count


def private_selection(run: Callable[[int], tuple[float, Output]], n_settings: int, mean_repetitions: int) -> Output:
    """The output with the highest score among K runs.

    Args:
        run: from a setting, 0 to n_settings - 1, to a score and an output, with fresh noise at every call. It must not
            fail for a reason that depends on private rows.
        mean_repetitions: m, at least 2.

    Raises:
        ValueError: fewer settings than 1 or a mean below 2.
    """
    if n_settings < 1 or mean_repetitions < 2:
        raise ValueError(f"{n_settings} settings, mean {mean_repetitions}; allowed: at least 1, at least 2")
    best = run(secrets.randbelow(n_settings))
    for _ in range(geometric(mean_repetitions) - 1):
        one = run(secrets.randbelow(n_settings))
        if one[0] > best[0]:
            best = one
    return best[1]
