"""The method of a run that names none, from public facts.

`CHOICES` is the table: the first row that holds decides. `benchmarks/accuracy/results.json` has the measurements.
No row needs epsilon or the number of rows: with little budget, the default score noise keeps a method at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """Public facts about a run: whether some labelled rows are public, and whether there are text weights."""

    public: bool
    text: bool


@dataclass(frozen=True)
class Chosen:
    """A row of the table: the method, and when and why it is chosen."""

    method: str
    when: str
    why: str
    holds: Callable[[Facts], bool]


CHOICES = (
    Chosen("adamix", "some labelled rows are public", "it starts from them", lambda facts: facts.public),
    Chosen("noisy-gd", "no row is public and there are text weights", "it starts from them", lambda facts: facts.text),
    Chosen("noisy-gd", "no row is public", "it can centre rows on a private mean", lambda facts: True),
)


def choose(facts: Facts) -> Chosen:
    """The first row of `CHOICES` that holds."""
    return next(choice for choice in CHOICES if choice.holds(facts))
