"""What the fits of one process cost together, as they may share records: searches, cross-validation, refits, clones.

About 16 bytes per record hold a hash and the fits that used the record. The reported cost bounds the cost of every
record of the new fit: it counts, for each kind of release, the largest number of releases that used any one of these
records. It holds if no private row decides which rows a fit gets.
"""

import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.book import composed
from linprobe.accounting.events import REMOVED, UNITS, Releases, converted, neighbours_between
from linprobe.accounting.figures import cost_in_words
from linprobe.errors import counted
from linprobe.parallel.array_api import among, distinct

COPIES_BY_CHANCE = 1000  # one row in so many
FEW_COPIES = 3
MOST_HISTORIES = 64  # of the records of one fit; above, all get the bound on all
FitKinds = Counter[tuple[str, float, float]]  # unit, noise multiplier and sampling rate of releases
WITHOUT_NOISE = (Releases("", 0.0, 1.0, 1),)  # of a fit without privacy
MIXED = (
    "some of these rows were in a private fit of this process and in one without privacy (a baseline or a seed); no "
    "epsilon covers these fits together; publish nothing of those without privacy"
)


class Fits:
    """Remembers fits, and bounds what the records of the last one have been in."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, dtype=np.uint64)  # sorted
        self._history = np.empty(0, dtype=np.int64)  # index into `_table`, for each hash
        self._table: list[tuple[int, FitKinds]] = [(0, Counter())]  # private fits, and releases of all; first: none
        self._public = np.empty(0, dtype=np.uint64)  # rows that a fit used as public, sorted
        self._private = np.empty(0, dtype=np.uint64)  # rows that a fit with a guarantee began with, sorted
        self.lock = threading.Lock()

    def add(
        self, hashes: NDArray[np.uint64], releases: Iterable[Releases], unit: str
    ) -> tuple[int, dict[str, list[Releases]]]:
        """Remember one fit on records with these hashes, whose guarantee is for `unit`.

        Returns: the largest number of private fits that any of the records was in, this one included, and by unit
        releases that bound those of each record.
        """
        new: FitKinds = Counter()
        for release in releases:
            new[unit, release.noise_multiplier, release.sampling_rate] += release.count
        with self.lock:
            return self._added(distinct(hashes), new)

    def _added(self, hashes: NDArray[np.uint64], new: FitKinds) -> tuple[int, dict[str, list[Releases]]]:
        everyone = distinct(np.concatenate([self._hashes, hashes]))
        history = np.zeros(len(everyone), dtype=np.int64)
        history[np.searchsorted(everyone, self._hashes)] = self._history
        here = np.searchsorted(everyone, hashes)
        before, inverse = np.unique(history[here], return_inverse=True)
        private = int(all(sigma > 0 for _, sigma, _ in new))
        histories = [(self._table[place][0] + private, self._table[place][1] + new) for place in before.tolist()]
        fits = max((count for count, _ in histories), default=0)
        bound: FitKinds = Counter()
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

    def crossed(self, private: NDArray[np.uint64], public: NDArray[np.uint64]) -> tuple[int, int]:
        """Remember rows of a fit when it begins; how many of `public` had been private, and of `private` public."""
        public = distinct(public)  # a row may be among the labelled and the unlabelled ones
        with self.lock:
            found = among(public, self._private).sum(), among(private, self._public).sum()
            self._public = distinct(np.concatenate([self._public, public]))
            self._private = distinct(np.concatenate([self._private, private]))
        return int(found[0]), int(found[1])


FITS = Fits()
if hasattr(os, "register_at_fork"):  # a child has no other thread that would release the lock
    os.register_at_fork(before=FITS.lock.acquire, after_in_parent=FITS.lock.release, after_in_child=FITS.lock.release)


def crossing_warning(private: NDArray[np.uint64], public: NDArray[np.uint64]) -> str | None:
    """Remember public rows of this process; one line if a row is public in one fit and private in another."""
    hidden, shown = FITS.crossed(private, public)
    if not hidden and not shown:
        return None
    crossed = (
        f"{counted(hidden, 'public row')} had been private"
        if hidden
        else f"{counted(shown, 'row')} of X had been public"
    )
    return f"{crossed} in an earlier fit here; a row that one fit uses as public has no guarantee; give other rows"


def copies_warning(hashes: NDArray[np.uint64], row: str = "row of X") -> str | None:
    """One line if more than a few of the protected rows, with these hashes (n,), are copies of others. Private."""
    if len(hashes) - len(distinct(hashes)) <= max(FEW_COPIES, len(hashes) // COPIES_BY_CHANCE):
        return None
    return (
        f"more than one {row} in {COPIES_BY_CHANCE:,} equals another: if these are of one record or person, epsilon "
        "does not protect them together; leave copies out, or give owners"
    )


def refit_warning(hashes: NDArray[np.uint64], releases: Sequence[Releases], delta: float, unit: str) -> str | None:
    """Remember a fit; one line on the cost of all if a record was in an earlier one, and any fit had privacy."""
    fits, released = FITS.add(hashes, releases, unit)
    noisy = {one: [release for release in kept if release.noise_multiplier > 0] for one, kept in released.items()}
    bound = {one: kept for one, kept in noisy.items() if kept}
    mixed = bool(bound) and bound != released
    if fits < 2 or releases == WITHOUT_NOISE:
        return MIXED if mixed else None
    costs = {}
    for one in (unit for unit in UNITS if unit in bound):
        costs[one] = math.inf
        if all(neighbours_between(protected, REMOVED[one]) is not None for protected in bound):
            costing = [each for protected in bound for each in converted(bound[protected], protected, REMOVED[one])]
            # every further fit would wait for the last digits
            costs[one] = composed(costing, delta, rough=True)[0]
    rows = f"{MIXED}; some were in {fits} private fits" if mixed else f"some of these rows were in {fits} fits"
    return (
        f"{rows} of this process, which together cost {cost_in_words(costs, delta)}; the figure holds unless private "
        "rows decide which rows a fit gets, as in StratifiedKFold (the default for classifiers) and GroupKFold; no "
        "epsilon covers their scores on private rows, or a choice by such scores"
    )
