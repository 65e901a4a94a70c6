"""Clip factors, and clipped sums with their sensitivity.

`linprobe.gradients.rounding` states the adjacency and proves the margin that covers rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.parallel.array_api import Array


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A sum over private rows and its sensitivity. Not private: add noise before release.

    Attributes:
        value: the sum, shape (n_features, n_classes), float64.
        sensitivity: L2 bound on the change when one record is added or removed.
        contributions: norm of each record's contribution divided by `sensitivity`, shape (n_local,), in [0, 1]. For
            records outside the sample, the contribution they would have made. Empty if not computed.
        sampling_rate: probability with which Poisson sampling selected each record.
    """

    value: NDArray[np.float64]
    sensitivity: float
    contributions: NDArray[np.float64]
    sampling_rate: float = 1.0


def longest_left(clip_norm: float, margin: float) -> float:
    """Largest norm of a clipped gradient: the clip norm less the margin for rounding."""
    return clip_norm * (1 - margin)


def clip_factors(norms: Array, clip_norm: float, margin: float) -> Array:
    """Factors c, shape (n,), with `c * norms` at most `longest_left`; an infinite clip norm gives ones."""
    with np.errstate(divide="ignore"):
        return (longest_left(clip_norm, margin) / norms).clip(None, 1.0)


def relative_contributions(clipped_norms: Array, clip_norm: float, margin: float) -> Array:
    """Contribution norms in units of the sensitivity, rounding margin included, at most 1."""
    return (clipped_norms / clip_norm + margin).clip(None, 1.0)
