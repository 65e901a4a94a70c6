"""Events: what a mechanism did to the private rows, in the units that an accountant needs.

An event says what happened, not what it cost. Accountants (`accounting.accountants`) compute the cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

UNITS = RECORD, OWNER = "record", "owner"  # what a guarantee protects
LARGEST_FIGURE = 1e300  # noise multiplier or sensitivity
INHERITED = "inherited"  # purpose of the releases of the run that a run started from


@dataclass(frozen=True, slots=True)
class GaussianEvent:
    """One release of a sum over private rows with Gaussian noise added.

    Adjacency: zero-out of one record (one record is present, or its place is empty).

    Attributes:
        purpose: what the sum was used for, e.g. `gradient`, `mean` or `histogram`.
        step: index of the release within its run, from 0.
        sensitivity: L2 bound on one record's contribution to the sum (public).
        noise_multiplier: noise standard deviation divided by `sensitivity`, dimensionless.
        sampling_rate: Poisson probability that a record joined the sum; 1 for a sum over all rows.
    """

    purpose: str
    step: int
    sensitivity: float
    noise_multiplier: float
    sampling_rate: float = 1.0

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON-ready fields."""
        return {"event": "gaussian", **asdict(self)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> GaussianEvent:
        """Inverse of `as_dict`. Raises KeyError, TypeError or ValueError on anything else."""
        if fields.get("event") != "gaussian":
            raise ValueError(f"event {fields.get('event')!r} is not known to this version; known: 'gaussian'")
        return cls(
            purpose=str(fields["purpose"]),
            step=int(fields["step"]),
            sensitivity=float(fields["sensitivity"]),
            noise_multiplier=float(fields["noise_multiplier"]),
            sampling_rate=float(fields["sampling_rate"]),
        )


@dataclass(frozen=True, slots=True)
class Releases:
    """`count` equal releases, as an accountant needs them. Fields as in `GaussianEvent`."""

    purpose: str
    noise_multiplier: float
    sampling_rate: float
    count: int


def grouped(events: Iterable[GaussianEvent]) -> tuple[Releases, ...]:
    """Events by purpose, multiplier and rate, in order of first occurrence."""
    counts = Counter((event.purpose, event.noise_multiplier, event.sampling_rate) for event in events)
    return tuple(Releases(*kind, count) for kind, count in counts.items())
