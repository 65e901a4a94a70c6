"""The Gaussian mechanism: a clipped sum in, `Release(value, event)` out.

Dwork et al. 2006; exact privacy: Balle and Wang 2018. The event is recorded before the noise is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import GaussianEvent
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.parallel.array_api import namespace
from linprobe.parallel.process_group import ALONE, Group

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

    def add(self, contributions: NDArray[np.float64], noise_multiplier: float, sampling_rate: float) -> None:
        """Take in one release: contributions (n_private,) in units of its sensitivity, or nothing if empty."""
        if not len(contributions):
            return
        if sampling_rate == 1:
            squared_mu = (contributions / noise_multiplier) ** 2
            self.squared_mu = self.squared_mu + squared_mu if len(self.squared_mu) else squared_mu
            return
        if not self.levels.size:
            self.levels = np.zeros((contributions.size, LEVELS + 1), dtype=np.uint16)
        level = np.ceil(np.sqrt(contributions) * LEVELS).astype(np.intp)
        here = (np.arange(contributions.size), level)
        if self.levels.dtype == np.uint16 and self.levels[here].max() == np.iinfo(np.uint16).max:
            self.levels = self.levels.astype(np.uint32)
        self.levels[here] += 1


class Noise(Protocol):
    """`linprobe.mechanisms.noise.NoiseSource`, or the same on a device."""

    draws: int

    def standard_normal(self, shape: tuple[int, ...]) -> Any:
        """Independent N(0, 1) variates, float64."""


class GaussianMechanism:
    """The one way from private sums to the outside, one per run.

    A step that does not end, because the process is stopped, must leave no trace in what is kept for going on; so what
    records contributed is taken in by `settle`, once a step is over.

    Args:
        source: where the noise comes from.
        record: called with each event before its noise is drawn, e.g. `Ledger.append`.
        first_step: number of the first release.
        group: processes that hold a part of the rows each. Rank 0 draws the noise, once, and tells the others.
        repeated: values already released by the run that this one goes on with, in order: they are given again.
    """

    def __init__(
        self,
        source: Noise,
        record: Callable[[GaussianEvent], None],
        first_step: int = 0,
        *,
        group: Group = ALONE,
        repeated: Sequence[NDArray[np.float64]] = (),
    ) -> None:
        self._source, self._record, self._group = source, record, group
        self.next_step = first_step
        self._contributed = Contributed()
        self._waiting: list[tuple[NDArray[np.float64], float, float]] = []
        self._repeated = list(repeated)
        self.early: list[NDArray[np.float64]] = []
        self._settled = False

    def settle(self) -> None:
        """Take in what records contributed since the last call. From the first on, releases are not kept any more."""
        for contribution in self._waiting:
            self._contributed.add(*contribution)
        self._waiting.clear()
        self._settled = True

    @property
    def contributed(self) -> Contributed:
        """What records contributed to all releases so far. Private."""
        self.settle()
        return self._contributed

    def state(self) -> dict[str, NDArray[Any]]:
        """All that a mechanism needs to go on from here, noise included; as secret as the private rows."""
        return {
            "next_step": np.array(self.next_step),
            "draws": np.array(self._source.draws),
            "squared_mu": self.contributed.squared_mu,
            "levels": self.contributed.levels,
            **{f"early_{place}": value for place, value in enumerate(self.early)},
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a `state`."""
        self.next_step, self._source.draws = int(state["next_step"]), int(state["draws"])
        self.settle()
        self._contributed.squared_mu, self._contributed.levels = state["squared_mu"], state["levels"]

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
        step = self.next_step
        self.next_step += 1
        event = GaussianEvent(purpose, step, clipped.sensitivity, noise_multiplier, clipped.sampling_rate)
        self._record(event)
        if self._repeated:
            value = self._repeated.pop(0)
        elif noise_multiplier > 0:
            value = self._group.broadcast(self._noised(clipped, noise_multiplier, projection))
            self._waiting.append((clipped.contributions, noise_multiplier, clipped.sampling_rate))
        else:
            value = clipped.value if projection is None else projection.project(clipped.value)
        if not self._settled:
            self.early.append(value)
        return Release(value, event)

    def _noised(
        self, clipped: ClippedSum, noise_multiplier: float, projection: Projection | None
    ) -> NDArray[np.float64]:
        """The released value, at rank 0."""
        if self._group.rank > 0:
            self._source.draws += 1
            return clipped.value
        std = noise_multiplier * clipped.sensitivity
        value: NDArray[np.float64] = std * self._source.standard_normal(tuple(clipped.value.shape))
        value += clipped.value
        if projection is not None:
            value = projection.project(value)
        grid = 2.0 ** (math.floor(math.log2(std)) - GRID_BITS)
        value /= grid
        namespace(value).round(value, out=value)
        value *= grid
        return value
