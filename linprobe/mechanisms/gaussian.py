"""Clipped sums with their sensitivity, and the Gaussian mechanism: a clipped sum in, its noisy value out.

`linprobe.gradients.rounding` states the adjacency of a clipped sum, and proves the margin that covers rounding.

Dwork et al. 2006; delta at each epsilon: Balle and Wang 2018. The event is recorded before the noise is drawn. Released
numbers are roundings of the sum plus a real Gaussian (`linprobe.mechanisms.noise`), so the guarantee needs no term for
floating-point arithmetic.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import GaussianEvent
from linprobe.mechanisms.noise import NoiseSource
from linprobe.parallel.array_api import Array, Reals, on_host
from linprobe.parallel.process_group import ALONE, Group

LEVELS = 64


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A sum over private rows and its sensitivity. Not private: add noise before release."""

    value: Reals  # the sum, (n_features, n_classes), float64
    sensitivity: float  # L2 bound on the change when one record is added or removed
    contributions: Reals  # norm of each record's over `sensitivity`, had it joined, (n_local,), in [0, 1]; or empty
    sampling_rate: float = 1.0  # probability with which Poisson sampling selected each record


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


class Projection(Protocol):
    """An orthogonal projection U U^T of the feature axis, U (n_features, dim) with orthonormal columns."""

    def coordinates(self, matrix: Reals) -> Reals:
        """U^T matrix, shape (dim, n_classes). The norm of a change does not grow, up to the margin of the clip."""

    def embed(self, coordinates: Reals) -> Reals:
        """U coordinates, shape (n_features, n_classes)."""


class Contributed:
    """What each private record contributed to the releases of a run. Private.

    Attributes:
        squared_mu: mu_i^2 summed over full-batch releases (AdaMix, Proposition 14), shape (n_private,).
        levels: counts of sampled releases by contribution, shape (n_private, LEVELS + 1). A count in column `level`
            bounds the record's contribution by (level / LEVELS)^2 of the sensitivity, had it been in the sample.
            Both are empty until a release has contributions.
    """

    def __init__(self) -> None:
        self.squared_mu = np.zeros(0)
        self.levels: NDArray[np.unsignedinteger] = np.zeros((0, LEVELS + 1), dtype=np.uint16)

    def add(self, contributions: Reals, noise_multiplier: float, sampling_rate: float) -> None:
        """Add one release: contributions (n_private,) in units of its sensitivity. An empty array adds nothing."""
        if not len(contributions):
            return
        if sampling_rate == 1:
            squared_mu = (contributions / noise_multiplier) ** 2
            self.squared_mu = self.squared_mu + squared_mu if len(self.squared_mu) else squared_mu
            return
        contributions = on_host(contributions)
        if not self.levels.size:
            self.levels = np.zeros((contributions.size, LEVELS + 1), dtype=np.uint16)
        here = np.ceil(np.sqrt(contributions) * LEVELS).astype(np.intp)
        here += np.arange(0, self.levels.size, LEVELS + 1)
        counts = self.levels.take(here)
        if self.levels.dtype == np.uint16 and counts.max() == np.iinfo(np.uint16).max:
            self.levels, counts = self.levels.astype(np.uint32), counts.astype(np.uint32)
        self.levels.put(here, counts + 1)


class GaussianMechanism:
    """Adds noise to private sums and releases them; no other code releases one. A run has one mechanism.

    An interrupted step must leave no trace in the checkpoint, so `settle` adds the contributions of a step after it is
    complete.

    Args:
        source: source of the noise, on the device of the sums.
        record: called with each event before its noise is drawn, e.g. `Ledger.append`.
        first_step: number of the first release.
        group: the processes, each with a shard of the rows. Rank 0 draws the noise once and broadcasts the value.
        repeated: values that the resumed run released before its first step, in order. They are returned again.
    """

    def __init__(
        self,
        source: NoiseSource,
        record: Callable[[GaussianEvent], None],
        first_step: int = 0,
        *,
        group: Group = ALONE,
        repeated: Sequence[Reals] = (),
    ) -> None:
        self._source, self._record, self._group = source, record, group
        self.next_step = first_step
        self._contributed = Contributed()
        self._waiting: list[tuple[Reals, float, float]] = []
        self._repeated = list(repeated)
        self.early: list[Reals] = []
        self._settled = False

    def settle(self) -> None:
        """Add the contributions since the last call. The first call closes `early`."""
        for contribution in self._waiting:
            self._contributed.add(*contribution)
        self._waiting.clear()
        self._settled = True

    @property
    def contributed(self) -> Contributed:
        """Contributions to all releases so far. Private."""
        self.settle()
        return self._contributed

    def state(self) -> dict[str, NDArray[Any]]:
        """All that a mechanism needs to continue, the key of the noise included. As secret as the private rows."""
        return {
            "next_step": np.array(self.next_step),
            "draws": np.array(self._source.draws),
            "key": np.frombuffer(self._source.key, dtype=np.uint8),
            "squared_mu": self.contributed.squared_mu,
            "levels": self.contributed.levels,
            **{f"early_{place}": value for place, value in enumerate(self.early)},
        }

    def ratchet(self) -> None:
        """Replace the key of the noise. No later `state` reveals the noise released so far."""
        self._source.ratchet()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a `state`. The source must have its key."""
        self.next_step, self._source.draws = int(state["next_step"]), int(state["draws"])
        self.settle()
        self._contributed.squared_mu, self._contributed.levels = state["squared_mu"], state["levels"]

    def release(
        self, clipped: ClippedSum, noise_multiplier: float, *, purpose: str, projection: Projection | None = None
    ) -> Reals:
        """`clipped.value + N(0, (noise_multiplier * sensitivity)^2 I)`, projected if asked.

        Guarantee: (1 / noise_multiplier)-GDP under zero-out of one record that is in the sample.
        The value is rounded to a public grid of about 2^-20 of the noise: a post-processing of the mechanism on real
        numbers (docs/proofs/gaussian.md). With a projection, noise is added to the coordinates of the sum, and the
        result is embedded again, so `clipped.contributions` may be measured in the subspace.

        Raises ValueError: a negative or non-finite multiplier, or noise asked for an unbounded sum.
        """
        if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
            raise ValueError(f"noise multiplier is {noise_multiplier}; allowed: a finite number of at least 0")
        if noise_multiplier > 0 and not (0 < clipped.sensitivity < math.inf):
            raise ValueError(f"sensitivity is {clipped.sensitivity}; allowed with noise: finite, above 0")
        step = self.next_step
        self.next_step += 1
        self._record(GaussianEvent(purpose, step, clipped.sensitivity, noise_multiplier, clipped.sampling_rate))
        if self._repeated:
            value = self._repeated.pop(0)
        elif noise_multiplier > 0:
            value = clipped.value if projection is None else projection.coordinates(clipped.value)
            value = self._group.broadcast(self._noised(value, noise_multiplier * clipped.sensitivity))
            value = value if projection is None else projection.embed(value)
            self._waiting.append((clipped.contributions, noise_multiplier, clipped.sampling_rate))
        else:
            value = clipped.value
            value = value if projection is None else projection.embed(projection.coordinates(value))
        if not self._settled:
            self.early.append(value)
        return value

    def _noised(self, value: Reals, std: float) -> Reals:
        """The released numbers at rank 0. Other ranks only advance the number of draws."""
        if self._group.rank > 0:
            self._source.next_draw()
            return value
        noised: Reals = self._source.add_noise(value, math.nextafter(std, math.inf))
        return noised
