"""Poisson sampling: each step selects each record independently, with the same probability.

The accounting of Abadi et al. 2016 and Mironov et al. 2019 holds for this sampling only, not for batches of a fixed
size or shuffled passes. An empty batch is also noised, released and accounted for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linprobe.mechanisms.noise import NoiseSource


class PoissonSampler:
    """Draws Poisson samples.

    Args:
        source: cryptographic source; each draw uses its own stream.
        rate: sampling probability q, in (0, 1]. At 1 the sample is all rows, and nothing is drawn.
    """

    def __init__(self, source: NoiseSource, rate: float) -> None:
        self.rate = rate
        self._source = source

    def draw(self, n_rows: int, first: int = 0) -> NDArray[np.bool_]:
        """Mask of a sample of `n_rows` rows, shape (n_rows,).

        Rows are selected independently; the probability is at most `rate` and more than `rate` - 2^-63. A process draws
        for its shard, which begins at row `first`; the masks of all processes are one draw for all rows.
        """
        if self.rate >= 1:
            return np.ones(n_rows, dtype=bool)
        return self._source.bernoulli(self.rate, n_rows, first)
