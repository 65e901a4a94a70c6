"""Shrink the update of a finished run: W_1 + c (W - W_1), with the c that has most correct private predictions.

All candidates depend on the same releases, so they cost nothing; the noisy counts that compare them do
(`linprobe.mechanisms.correct_predictions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.mechanisms.correct_predictions import correct_counts_sensitivity


@dataclass(frozen=True)
class Selected:
    """The shrinkage of a run, and the released counts that chose it.

    Attributes:
        shrink: c. counts: noisy number of correct predictions on private rows for each factor. std: of their noise.
    """

    shrink: float
    counts: tuple[float, ...]
    std: float

    @property
    def score(self) -> float:
        """The noisy count of the chosen factor."""
        return max(self.counts)


def best_of(
    factors: Sequence[float], released: NDArray[np.float64], noise_multiplier: float, n_private: int
) -> Selected:
    """The factor with the largest released count; `released` are correct minus wrong predictions, halved, (k,)."""
    counts = released + n_private / 2
    std = noise_multiplier * correct_counts_sensitivity(len(factors))
    return Selected(factors[int(released.argmax())], tuple(counts.tolist()), std)
