"""The Gaussian mechanism: a clipped sum in, `Release(value, event)` out.

Dwork et al. 2006; exact privacy: Balle and Wang 2018. The event is recorded before the noise is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import GaussianEvent
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.entropy import NoiseSource

GRID_BITS = 20
LEVELS = 64


class Projection(Protocol):
    """An orthogonal projection of the feature axis."""

    def project(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """U U^T matrix, shape unchanged."""


@dataclass(frozen=True, slots=True)
class Release:
    """A value that carries its noise, and the event that pays for it."""

    value: NDArray[np.float64]
    event: GaussianEvent


class Contributed:
    """What each private record itself put into the releases of a run. Private.

    Attributes:
        squared_mu: mu_i^2 summed over releases from all rows (AdaMix, Proposition 14), shape (n_private,).
        levels: number of sampled releases to which a record contributed, if it joined, at most (level / LEVELS)^2 of
            the sensitivity; shape (n_private, LEVELS + 1). Both are empty before a release that looked.
    """

    def __init__(self) -> None:
        self.squared_mu = np.zeros(0)
        self.levels: NDArray[np.unsignedinteger] = np.zeros((0, LEVELS + 1), dtype=np.uint16)
        self._n_sampled = 0

    def add(self, contributions: NDArray[np.float64], noise_multiplier: float, sampling_rate: float) -> None:
        """Take in one release: contributions (n_private,) in units of its sensitivity, or nothing if empty."""
        if not contributions.size:
            return
        if sampling_rate == 1:
            if not self.squared_mu.size:
                self.squared_mu = np.zeros(contributions.size)
            self.squared_mu += (contributions / noise_multiplier) ** 2
            return
        if not self.levels.size:
            self.levels = np.zeros((contributions.size, LEVELS + 1), dtype=np.uint16)
        elif self._n_sampled == np.iinfo(np.uint16).max:
            self.levels = self.levels.astype(np.uint32)
        self._n_sampled += 1
        level = np.ceil(np.sqrt(contributions) * LEVELS).astype(np.intp)
        self.levels[np.arange(contributions.size), level] += 1


class GaussianMechanism:
    """The one way from private sums to the outside, one per run.

    Args:
        source: where the noise comes from.
        record: called with each event before its noise is drawn, e.g. `Ledger.append`.
        first_step: number of the first release.
    """

    def __init__(self, source: NoiseSource, record: Callable[[GaussianEvent], None], first_step: int = 0) -> None:
        self._source = source
        self._record = record
        self._next_step = first_step
        self.contributed = Contributed()

    def release(
        self,
        clipped: ClippedSum,
        noise_multiplier: float,
        *,
        purpose: str,
        projection: Projection | None = None,
    ) -> Release:
        """`clipped.value + N(0, (noise_multiplier * sensitivity)^2 I)`, projected if asked.

        Guarantee: (1 / noise_multiplier)-GDP under add/remove of one record, for every fixed sample it joined.
        Projecting sum and noise together has
        the law of projecting the sum and adding noise inside the subspace, so `clipped.contributions` may be
        measured there. The result is rounded to a public grid of 2^-20 of the noise, so that the last bits of a
        floating-point number say nothing about the sum under it (Mironov 2012).

        Raises:
            ValueError: a negative or non-finite multiplier, or noise asked for an unbounded sum.
        """
        if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
            raise ValueError(f"noise multiplier is {noise_multiplier}; allowed: a finite number of at least 0")
        if noise_multiplier > 0 and not (0 < clipped.sensitivity < math.inf):
            raise ValueError(f"sensitivity is {clipped.sensitivity}; allowed with noise: finite, above 0")
        step = self._next_step
        self._next_step += 1
        event = GaussianEvent(purpose, step, clipped.sensitivity, noise_multiplier, clipped.sampling_rate)
        self._record(event)
        value = clipped.value
        if noise_multiplier > 0:
            std = noise_multiplier * clipped.sensitivity
            value = value + std * self._source.standard_normal(value.shape)
            self.contributed.add(clipped.contributions, noise_multiplier, clipped.sampling_rate)
        if projection is not None:
            value = projection.project(value)
        if noise_multiplier > 0:
            grid = 2.0 ** (math.floor(math.log2(std)) - GRID_BITS)
            value = np.rint(value / grid) * grid
        return Release(value, event)
