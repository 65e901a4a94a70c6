"""Events: what a mechanism did to the private rows, for which neighbours, in the units that an accountant needs.

An event says what happened, not what it cost. Accountants (`accounting.accountants`) compute the cost.

A relation states which two data sets a guarantee compares. Every run states its relation by its unit: `REMOVED[unit]`.
All its releases have that relation. Suppose a chain of n steps, each between neighbours of the stated relation, leads
from one data set of a wanted pair to the other. Sums over all rows then differ by at most n times the sensitivity
(triangle inequality), so the noise multiplier is divided by n, and mu is multiplied by n.
`docs/proofs/relations.md` proves the table and the rules for Poisson samples:

    k rows that join on their own        multiplier / k, sampling rate 1 - (1 - q)^k
    one coin for both data sets          multiplier / n, sampling rate 1

Everything else is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from linprobe.errors import PrivacyError

UNITS = RECORD, OWNER = "record", "owner"  # what a guarantee protects
LARGEST_FIGURE = 1e300  # noise multiplier or sensitivity
INHERITED = "inherited"  # purpose of the releases of the run that a run started from
TEST_ACCURACY = "test accuracy"  # purpose of the release on private test rows
HISTOGRAM = "histogram"  # purpose of the release of `pdp-report --publish-epsilon`
OF_FILE = f"{HISTOGRAM} of file"  # and a digest: one of version 0.2, whose books call each `histogram`
NO_CHOICE = "no result decided the noise, the sampling rate or the number of steps of a later release"


_NUMBER = (int, float)
FIELDS: dict[str, type | tuple[type, ...]] = {
    "purpose": str,
    "step": int,
    "sensitivity": _NUMBER,
    "noise_multiplier": _NUMBER,
    "sampling_rate": _NUMBER,
}


@dataclass(frozen=True, slots=True)
class GaussianEvent:
    """One release of a sum over private rows with Gaussian noise added.

    Adjacency: zero-out of one record (one record is present, or its place is empty).
    """

    purpose: str  # what the sum was used for, e.g. `gradient`, `mean` or `histogram`
    step: int  # index of the release within its run, from 0
    sensitivity: float  # L2 bound on one record's contribution to the sum (public)
    noise_multiplier: float  # noise standard deviation divided by `sensitivity`, dimensionless
    sampling_rate: float = 1.0  # Poisson probability that a record joined the sum; 1 for all rows

    def as_dict(self) -> dict[str, Any]:
        return {"event": "gaussian", **asdict(self)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> GaussianEvent:
        """Inverse of `as_dict`. Raises KeyError, TypeError, AttributeError or ValueError on anything else."""
        if fields.get("event") != "gaussian":
            raise ValueError(f"event {fields.get('event')!r} is not known to this version; known: 'gaussian'")
        for name, kind in FIELDS.items():
            if not isinstance(fields[name], kind) or isinstance(fields[name], bool):
                raise ValueError(f"{name} is {str(fields[name])[:40]!r}")
        purpose, step, *figures = (fields[name] for name in FIELDS)
        return cls(purpose, step, *map(float, figures))


@dataclass(frozen=True, slots=True)
class Releases:
    """`count` equal releases, as an accountant needs them. Fields as in `GaussianEvent`."""

    purpose: str
    noise_multiplier: float
    sampling_rate: float
    count: int

    @property
    def is_histogram(self) -> bool:
        """Whether it is a published histogram; in budget books a name follows in its purpose."""
        return self.purpose.partition(" ")[0] == HISTOGRAM


def grouped(events: Iterable[GaussianEvent]) -> tuple[Releases, ...]:
    """Events by purpose, multiplier and rate, in order of first occurrence."""
    counts = Counter((event.purpose, event.noise_multiplier, event.sampling_rate) for event in events)
    return tuple(Releases(*kind, count) for kind, count in counts.items())


def hold_without_a_choice(releases: Iterable[Releases]) -> bool:
    """Whether the epsilon of `releases` holds only if `NO_CHOICE`: a result was known before one of them, and some are
    of samples. Of sums over all rows alone it holds in any case (docs/proofs/adaptive.md).
    """
    kinds = {(one.purpose == INHERITED or one.is_histogram, one.sampling_rate < 1) for one in releases}
    return any(later for later, _ in kinds) and any(sampled for _, sampled in kinds)


@dataclass(frozen=True)
class Relation:
    """Two data sets are neighbours if one unit is present in one of them, and its place is empty in the other."""

    unit: str
    rows: int | None = None  # the most that a person has; None if no bound is public; 1 for a record

    def __post_init__(self) -> None:
        if self.unit == RECORD:
            object.__setattr__(self, "rows", 1)

    def __str__(self) -> str:
        bound = "" if self.unit == RECORD or self.rows is None else f" with at most {self.rows} rows"
        return f"{'record' if self.unit == RECORD else 'person'}{bound} removed"


REMOVED = {unit: Relation(unit) for unit in UNITS}  # what runs state


def neighbours_between(unit: str, wanted: Relation) -> int | None:
    """The most neighbours by one `unit`, one after the other, that a `wanted` pair needs; None for no bound."""
    if unit == RECORD:
        return wanted.rows
    return 1 if wanted.unit == OWNER else 2  # a person with the row, without any row, and without the row


def converted(releases: Iterable[Releases], unit: str, wanted: Relation) -> tuple[Releases, ...]:
    """Releases that cost `wanted` neighbours at least what `releases` cost a `unit`. PrivacyError: no rule."""
    number = neighbours_between(unit, wanted)
    if number is None:
        raise PrivacyError(
            f"a guarantee for neighbours with one {REMOVED[unit]} bounds nothing for one {wanted}; allowed: a relation "
            "that it covers; use runs of one --unit, or a public bound on the rows of a person"
        )
    return tuple(release if number == 1 else _for_several(release, number, unit) for release in releases)


def _for_several(release: Releases, number: int, unit: str) -> Releases:
    """A release for neighbours that are `number` of its own neighbours apart."""
    rate = release.sampling_rate
    if rate < 1:
        joined = math.nextafter(-math.expm1(number * math.log1p(-rate)) * (1 + 2**-48), 1)
        rate = min(1.0, joined) if unit == RECORD else 1.0
    return replace(release, noise_multiplier=math.nextafter(release.noise_multiplier / number, 0), sampling_rate=rate)
