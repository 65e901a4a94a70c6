"""What the runs of a budget book cost together.

Sums over all rows compose exactly, as Gaussian differential privacy. If any run took Poisson samples, privacy-loss
distributions compose everything, or above `MOST_KINDS` kinds of releases the faster Renyi bound. Every figure is an
upper bound for a record, or a person, that was private in all runs.

Runs that protect records and runs that protect people have different neighbours, so a figure is for one unit. A run by
record bounds nothing for a person, whose number of rows is unknown. A run by owner bounds the loss of a record: without
one row, the clipped sum of its person is another one. Both have a norm of at most the sensitivity, so they differ by at
most twice the sensitivity. A sum over all people therefore counts for a record with half its noise multiplier, in a
private selection as well. For a Poisson sample of people there is no such rule here, and no epsilon.

A private selection is no Gaussian release. Basic composition joins k selections and everything else: each part has an
equal share of delta, and the epsilons add up,

    epsilon(delta) <= epsilon_rest(delta / (k + 1)) + sum_i epsilon_i(delta / (k + 1))        (k without a rest)

(Dwork and Roth 2014, Theorem 3.16). It holds in any order and for later runs that depend on earlier results: a pair of
distributions dominates each part, and the product of the pairs dominates the whole (Zhu, Dong, Wang 2022).

`Fits` keeps the same account for the fits of one process: a record may have been in several of them. Grid searches,
cross-validation, refits and clones fit the same rows, or overlapping parts of them. For every record, about 16 bytes
hold a hash and the fits that it was in. The reported cost bounds the cost of every record of the new fit: for each kind
of release, the largest number that any of them was in.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.accountants import GAUSSIAN, RENYI, Accountant, choose_accountant, gaussian_figures, gdp_mu
from linprobe.accounting.book import Cap, Contents, Entry
from linprobe.accounting.events import OWNER, RECORD, UNITS, Releases
from linprobe.accounting.figures import NO_EPSILON, ONE, cost_in_words, rounded_up
from linprobe.accounting.selection import selection_epsilon
from linprobe.errors import PrivacyError

MOST_KINDS = 32  # of sampled releases; 16 take a second by privacy-loss distributions
SMALLEST_DELTA = 1e-300  # of a selection; float64 cannot divide smaller ones
MOST_HISTORIES = 64  # of the records of one fit; above, all get the bound on all
FitKinds = Counter[tuple[str, float, float]]  # unit, noise multiplier and sampling rate of releases


@dataclass(frozen=True)
class Spending:
    """The cost of several runs together.

    Attributes:
        runs: number of runs that released something with noise. not_private_runs: those that no epsilon covers.
        unit: what the figures protect: `owner` if every run does, else `record`.
        epsilon, delta: of all `runs` together; infinity if it cannot be bounded.
        gdp_mu, zcdp_rho: the same; None if any release was sampled, or any run was a private selection.
        accountant: of record, in words.
        epsilon_by_unit: epsilon for each unit that any run protects.
    """

    runs: int
    not_private_runs: int
    unit: str
    epsilon: float
    delta: float
    gdp_mu: float | None
    zcdp_rho: float | None
    accountant: str
    epsilon_by_unit: dict[str, float]


def spending(entries: Sequence[Entry], delta: float | None = None) -> Spending:
    """The cost of `entries` together at `delta`; None is the largest delta of the runs."""
    private = [entry for entry in entries if entry.private and entry.counts]
    if delta is None:
        delta = max((entry.delta for entry in private if entry.delta is not None), default=0.0)
    units = units_of(private)
    costs = {unit: together(private, delta, unit) for unit in units}
    epsilon, accountant = costs[units[0]]
    selects = any(entry.selection is not None for entry in private)
    return Spending(
        runs=len(private),
        not_private_runs=sum(not entry.private for entry in entries),
        unit=units[0],
        epsilon=epsilon,
        delta=delta,
        **(dict.fromkeys(("gdp_mu", "zcdp_rho")) if selects else gaussian_figures(_releases(private, units[0]))),
        accountant=accountant,
        epsilon_by_unit={unit: cost for unit, (cost, _) in costs.items()},
    )


def units_of(entries: Iterable[Entry]) -> list[str]:
    """The units that the private ones of `entries` protect, `record` first; `record` without any."""
    found = {entry.unit for entry in entries if entry.private} or {RECORD}
    return [unit for unit in UNITS if unit in found]


def of_unit(releases: Iterable[Releases], protected: str, unit: str) -> tuple[Releases, ...]:
    """Releases that cost a `unit` at least what `releases` do, whose guarantee is for `protected`.

    Guarantee: for a record, sums over all people with half their noise multiplier, rounded down. Where nothing bounds
    the cost, the noise multiplier is 0, and epsilon is infinite.
    """
    if protected == unit:
        return tuple(releases)
    return tuple(
        replace(release, noise_multiplier=math.nextafter(release.noise_multiplier / 2, 0))
        if unit == RECORD and release.sampling_rate == 1
        else replace(release, noise_multiplier=0.0, sampling_rate=1.0)
        for release in releases
    )


def _releases(entries: Iterable[Entry], unit: str) -> list[Releases]:
    """All releases outside selections, as `of_unit`."""
    return [release for entry in entries for release in of_unit(entry.total, entry.unit, unit)]


def together(entries: Sequence[Entry], delta: float, unit: str) -> tuple[float, str]:
    """Epsilon of private `entries` together for a `unit` at `delta`, an upper bound, and its accountant in words."""
    selections = [
        replace(entry.selection, runs=tuple(of_unit(run, entry.unit, unit) for run in entry.selection.runs))
        for entry in entries
        if entry.selection is not None
    ]
    releases = _releases(entries, unit)
    if not selections:
        epsilon, accountant = composed(releases, delta)
        return epsilon, accountant.words
    parts = len(selections) + bool(releases)
    part = delta if parts == 1 else math.nextafter(delta / parts, 0)
    words = f"{len(selections)} private selection{'' if len(selections) == 1 else 's'} by privacy profiles"
    if part < SMALLEST_DELTA:
        return math.inf, words
    judges = [choose_accountant("auto", event.releases) for event in selections]
    costs = [selection_epsilon(event, part, judge) for event, judge in zip(selections, judges, strict=True)]
    if releases:
        epsilon, accountant = composed(releases, part)
        costs.append(epsilon)
        words = f"{accountant.words}, added to {words}"
    return (costs[0] if parts == 1 else math.nextafter(math.fsum(costs), math.inf)), words


def composed(releases: Sequence[Releases], delta: float, *, rough: bool = False) -> tuple[float, Accountant]:
    """Epsilon of all `releases` together at `delta`, an upper bound, and its accountant.

    `rough` is as in `Accountant.epsilon`.
    """
    accountant = choose_accountant("auto", releases)
    if accountant is GAUSSIAN:
        return accountant.epsilon(releases, delta) if releases else 0.0, accountant
    merged = _merged(releases)
    if len(merged) > MOST_KINDS:
        accountant = RENYI
    return accountant.epsilon(merged, delta, rough=rough), accountant


def _merged(releases: Sequence[Releases]) -> list[Releases]:
    """The same releases in fewer kinds: sums over all rows are one Gaussian mechanism."""
    counts: Counter[tuple[float, float]] = Counter()
    for release in releases:
        counts[release.noise_multiplier, release.sampling_rate] += release.count
    kinds = [Releases("", *kind, count) for kind, count in counts.items()]
    full = [kind for kind in kinds if kind.sampling_rate == 1]
    if len(full) > 1:
        kinds = [kind for kind in kinds if kind.sampling_rate < 1]
        kinds.append(Releases("", math.nextafter(1 / gdp_mu(full), 0), 1.0, 1))
    return kinds


def refuse_above(
    cap: Cap, others: Contents, entry: Entry, finished: Entry | None = None, *, unit: str | None = None
) -> None:
    """Raise PrivacyError if `entry` and all other entries of a book cost more than `cap` together.

    Args:
        finished: the entry before a histogram of its run was added; None for a new run.
        unit: what the cap protects; None for every unit that any of the runs protects.
    """
    if not entry.private:
        raise PrivacyError(
            f"cap is epsilon {cap.epsilon:.9g}, and no epsilon covers a run of {entry.method} without secret noise; "
            "nothing was spent; leave that run out (in compare: --no-baselines)"
        )
    costs = spending([*others.counted, entry], cap.delta).epsilon_by_unit
    for above in (one for one in costs if unit in (None, one) and costs[one] > cap.epsilon):
        if len(costs) > 1 and math.isinf(costs[above]):
            mixed = len(units_of(others.counted)) > 1
            step = "use other rows" if mixed else f"give --unit {OWNER if entry.unit == RECORD else RECORD}"
            raise PrivacyError(f"cap is epsilon {cap.epsilon:.9g}, and {NO_EPSILON[above]}; nothing was spent; {step}")
        added, flag = ("this one", "--eps") if finished is None else ("the histogram", "--publish-epsilon")
        before = spending(others.counted if finished is None else [*others.counted, finished], cap.delta)
        runs = f"{before.runs} run{'' if before.runs == 1 else 's'}"
        after = rounded_up(costs[above]) + (f" for {ONE[above]}" if len(costs) > 1 else "")
        raise PrivacyError(
            f"cap is epsilon {cap.epsilon:.9g} at delta {rounded_up(cap.delta)}; what these rows have spent is "
            f"{rounded_up(before.epsilon)} in {runs}, with {added} it would be {after}; nothing was spent; give a "
            f"smaller {flag}, or raise the cap"
        )


class Fits:
    """Remembers fits, and bounds what the records of the last one have been in."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, dtype=np.uint64)  # sorted
        self._history = np.empty(0, dtype=np.int64)  # index into `_table`, for each hash
        self._table: list[tuple[int, FitKinds]] = [(0, Counter())]  # number of fits, and their releases; first: none
        self._lock = threading.Lock()

    def add(
        self, hashes: NDArray[np.uint64], releases: Iterable[Releases], unit: str
    ) -> tuple[int, dict[str, list[Releases]]]:
        """Remember one fit on the records with these hashes, any shape (n,). Its guarantee is for `unit`.

        Two records with the same hash count as one that was in the fits of both.

        Returns: the largest number of fits that any of the records was in, this one included, and by protected
            unit releases that bound the releases of each record.
        """
        new: FitKinds = Counter()
        for release in releases:
            new[unit, release.noise_multiplier, release.sampling_rate] += release.count
        with self._lock:
            return self._added(np.unique(hashes), new)

    def _added(self, hashes: NDArray[np.uint64], new: FitKinds) -> tuple[int, dict[str, list[Releases]]]:
        everyone = np.union1d(self._hashes, hashes)
        history = np.zeros(len(everyone), dtype=np.int64)
        history[np.searchsorted(everyone, self._hashes)] = self._history
        here = np.searchsorted(everyone, hashes)
        before, inverse = np.unique(history[here], return_inverse=True)
        histories = [(self._table[place][0] + 1, self._table[place][1] + new) for place in before.tolist()]
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
