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

from linprobe.accounting.events import Releases
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.spending import composed

MOST_HISTORIES = 64  # of the records of one fit; above, all get the bound on all
Kinds = Counter[tuple[float, float]]


class Fits:
    """Remembers fits, and bounds what the records of the last one have been in."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, dtype=np.uint64)  # sorted
        self._history = np.empty(0, dtype=np.int64)  # index into `_table`, for each hash
        self._table: list[tuple[int, Kinds]] = [(0, Counter())]  # number of fits, and their releases; first: none
        self._lock = threading.Lock()

    def add(self, hashes: NDArray[np.uint64], releases: Iterable[Releases]) -> tuple[int, list[Releases]]:
        """Remember one fit on the records with these hashes, any shape (n,).

        Two records with the same hash count as one that was in the fits of both.

        Returns: the largest number of fits that any of the records was in, this one included, and releases that bound
            those of every one of them.
        """
        new: Kinds = Counter()
        for release in releases:
            new[release.noise_multiplier, release.sampling_rate] += release.count
        with self._lock:
            return self._added(np.unique(hashes), new)

    def _added(self, hashes: NDArray[np.uint64], new: Kinds) -> tuple[int, list[Releases]]:
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
        return fits, [Releases("", *kind, count) for kind, count in bound.items()]


FITS = Fits()


def refit_warning(hashes: NDArray[np.uint64], releases: Sequence[Releases], delta: float) -> str | None:
    """Remember a fit of this process; one line on the cost of all, if any record was in an earlier fit."""
    fits, bound = FITS.add(hashes, releases)
    if fits < 2:
        return None
    epsilon, _ = composed(bound, delta, rough=True)  # every further fit would wait for the last digits
    return (
        f"some of these rows were in {fits} fits of this process, which together cost epsilon {rounded_up(epsilon)} at "
        f"delta {rounded_up(delta)}; a choice among the fits is a release of all of them"
    )
