"""What the fits of one process cost together: a record may have been in several of them.

Grid searches, cross-validation, refits and clones fit the same rows, or overlapping parts of them. For every record,
about 16 bytes hold a hash and the fits that it was in. The cost that is reported bounds that of every record of the new
fit: for each kind of release, the largest number that any of them was in.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import UNITS, Releases
from linprobe.accounting.figures import cost_in_words
from linprobe.accounting.spending import composed, of_unit

MOST_HISTORIES = 64  # of the records of one fit; above, all get the bound on all
Kinds = Counter[tuple[str, float, float]]  # unit, noise multiplier and sampling rate of releases


class Fits:
    """Remembers fits, and bounds what the records of the last one have been in."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, dtype=np.uint64)  # sorted
        self._history = np.empty(0, dtype=np.int64)  # index into `_table`, for each hash
        self._table: list[tuple[int, Kinds]] = [(0, Counter())]  # number of fits, and their releases; first: none
        self._lock = threading.Lock()

    def add(
        self, hashes: NDArray[np.uint64], releases: Iterable[Releases], unit: str
    ) -> tuple[int, dict[str, list[Releases]]]:
        """Remember one fit on the records with these hashes, any shape (n,). Its guarantee is for `unit`.

        Two records with the same hash count as one that was in the fits of both.

        Returns: the largest number of fits that any of the records was in, this one included, and releases that bound
            those of every one of them, by the unit that they protect.
        """
        new: Kinds = Counter()
        for release in releases:
            new[unit, release.noise_multiplier, release.sampling_rate] += release.count
        with self._lock:
            return self._added(np.unique(hashes), new)

    def _added(self, hashes: NDArray[np.uint64], new: Kinds) -> tuple[int, dict[str, list[Releases]]]:
        everyone = np.union1d(self._hashes, hashes)
        history = np.zeros(len(everyone), dtype=np.int64)
        history[np.searchsorted(everyone, self._hashes)] = self._history
        here = np.searchsorted(everyone, hashes)
        before, inverse = np.unique(history[here], return_inverse=True)
        histories = [(self._table[place][0] + 1, self._table[place][1] + new) for place in before.tolist()]
        fits = max((count for count, _ in histories), default=0)
        bound: Kinds = Counter()
        for _, kinds in histories:
            bound |= kinds
        if len(histories) > MOST_HISTORIES:
            histories, inverse = [(fits, bound)], np.zeros_like(inverse)
        history[here] = inverse + len(self._table)
        table = [*self._table, *histories]
        used, places = np.unique(np.append(0, history), return_inverse=True)
        self._hashes, self._history, self._table = everyone, places[1:], [table[place] for place in used.tolist()]
        by_unit: dict[str, list[Releases]] = {}
        for (unit, sigma, rate), count in bound.items():
            by_unit.setdefault(unit, []).append(Releases("", sigma, rate, count))
        return fits, by_unit


FITS = Fits()


def refit_warning(hashes: NDArray[np.uint64], releases: Sequence[Releases], delta: float, unit: str) -> str | None:
    """Remember a fit of this process; one line on the cost of all, if any record was in an earlier fit."""
    fits, bound = FITS.add(hashes, releases, unit)
    if fits < 2:
        return None
    costs = {}
    for one in (unit for unit in UNITS if unit in bound):
        costing = [release for protected in bound for release in of_unit(bound[protected], protected, one)]
        costs[one], _ = composed(costing, delta, rough=True)  # every further fit would wait for the last digits
    return (
        f"some of these rows were in {fits} fits of this process, which together cost {cost_in_words(costs, delta)}; a "
        "choice among the fits is a release of all of them"
    )
