"""What the runs of a budget book cost together.

Sums over all rows compose exactly, as Gaussian differential privacy. If any run took Poisson samples, privacy-loss
distributions compose everything, or above `MOST_KINDS` kinds of releases the faster Renyi bound. Every figure is an
upper bound for a record, or a person, that was private in all runs.

Runs that protect records and runs that protect people have different neighbours, so a figure is for one relation
(`relations.py`). Releases of a run with other neighbours are converted by a proven rule. A run by record bounds nothing
for a person with any number of rows, but does for a person with at most k rows.

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

from linprobe.accounting.accountants import (
    FILTER_ORDERS,
    GAUSSIAN,
    RENYI,
    Accountant,
    choose_accountant,
    gaussian_figures,
    gdp_mu,
    renyi_divergences,
)
from linprobe.accounting.book import Cap, Contents, Entry
from linprobe.accounting.events import OWNER, RECORD, UNITS, Releases
from linprobe.accounting.figures import NO_PERSON, ONE, cost_in_words, rounded_up
from linprobe.accounting.relations import REMOVED, Relation, converted, neighbours_between
from linprobe.accounting.selection import selection_divergence, selection_epsilon
from linprobe.errors import PrivacyError

MOST_KINDS = 32  # of sampled releases; 16 take a second by privacy-loss distributions
EXAMPLES = (2, 5, 10)  # rows of a person, chosen without a look at the data
SMALLEST_DELTA = 1e-300  # of a selection; float64 cannot divide smaller ones
MOST_HISTORIES = 64  # of the records of one fit; above, all get the bound on all
FitKinds = Counter[tuple[str, float, float]]  # unit, noise multiplier and sampling rate of releases


@dataclass(frozen=True)
class Spending:
    """The cost of several runs together.

    Attributes:
        runs: number of runs that released something with noise. not_private_runs: those that no epsilon covers.
        unit: what the figures protect: `owner` if every run does, else `record`. relation: the same, as neighbours.
        epsilon, delta: of all `runs` together; infinity if it cannot be bounded.
        gdp_mu, zcdp_rho: the same; None if any release was sampled, or any run was a private selection.
        accountant: of record, in words.
        epsilon_by_unit: epsilon for each unit that any run protects.
    """

    runs: int
    not_private_runs: int
    unit: str
    relation: str
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
    costs = {unit: together(private, delta, REMOVED[unit]) for unit in units}
    epsilon, accountant = costs[units[0]]
    selects = any(entry.selection is not None for entry in private)
    return Spending(
        runs=len(private),
        not_private_runs=sum(not entry.private for entry in entries),
        unit=units[0],
        relation=str(REMOVED[units[0]]),
        epsilon=epsilon,
        delta=delta,
        **(
            dict.fromkeys(("gdp_mu", "zcdp_rho"))
            if selects
            else gaussian_figures(_releases(private, REMOVED[units[0]]))
        ),
        accountant=accountant,
        epsilon_by_unit={unit: cost for unit, (cost, _) in costs.items()},
    )


def units_of(entries: Iterable[Entry]) -> list[str]:
    """The units that the private ones of `entries` protect, `record` first; `record` without any."""
    found = {entry.unit for entry in entries if entry.private} or {RECORD}
    return [unit for unit in UNITS if unit in found]


def rows_of_a_person(entries: Sequence[Entry], delta: float) -> dict[int, float]:
    """Epsilon of private `entries` together at `delta`, for a person with at most each of `EXAMPLES` rows.

    No number of rows comes from the data.
    """
    return {rows: together(entries, delta, Relation(OWNER, rows=rows))[0] for rows in EXAMPLES}


def together(entries: Sequence[Entry], delta: float, relation: Relation) -> tuple[float, str]:
    """Epsilon of private `entries` together for a relation at `delta`, an upper bound, and its accountant in words.

    Infinite if a run bounds nothing for that relation.
    """
    if any(neighbours_between(entry.relation, relation) is None for entry in entries):
        return math.inf, "none"
    selections = [
        replace(entry.selection, runs=tuple(converted(run, entry.relation, relation) for run in entry.selection.runs))
        for entry in entries
        if entry.selection is not None
    ]
    releases = _releases(entries, relation)
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


def _releases(entries: Iterable[Entry], relation: Relation) -> list[Releases]:
    """All releases outside selections, converted."""
    return [release for entry in entries for release in converted(entry.total, entry.relation, relation)]


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


def filter_order(cap: Cap) -> int:
    """The Renyi order at which a cap counts: the one that leaves a Gaussian mechanism the largest mu.

    It depends on the cap alone, so no result can change it. The order of a filter must not depend on results.
    """
    left = [(cap.epsilon - _conversion(order, cap.delta)) / order for order in FILTER_ORDERS]
    return FILTER_ORDERS[left.index(max(left))]


def _conversion(order: int, delta: float) -> float:
    """What turns a Renyi divergence into epsilon (Canonne, Kamath, Steinke 2020, Proposition 12), rounded up."""
    exact = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return exact + 1e-12 * (1 + abs(exact))


def under_cap(entries: Sequence[Entry], cap: Cap, relation: Relation) -> float:
    """Epsilon of private `entries` at the delta of a cap, each chosen after the results of the earlier ones.

    A privacy filter (`docs/proofs/adaptive.md`). Sums over all rows add mu^2: Gaussian DP. Otherwise Renyi divergences
    of all releases and selections add up at `filter_order`. The first run of a book depends on no result, so its own
    figure holds. Infinite if a run bounds nothing for the relation.
    """
    alone = len(entries) == 1
    if alone or all(entry.selection is None and GAUSSIAN.covers(entry.total) for entry in entries):
        return together(entries, cap.delta, relation)[0]
    if any(neighbours_between(entry.relation, relation) is None for entry in entries):
        return math.inf
    order = filter_order(cap)
    spent = math.fsum(_divergence(entry, relation, order) for entry in entries)
    return max(0.0, math.nextafter(spent + _conversion(order, cap.delta), math.inf))


def _divergence(entry: Entry, relation: Relation, order: int) -> float:
    """Renyi divergence of all releases of a run, or of a selection, for a relation."""
    place, selection = FILTER_ORDERS.index(order), entry.selection
    spent = renyi_divergences(converted(entry.total, entry.relation, relation))[place] if entry.total else 0.0
    if selection is None:
        return spent
    runs = [renyi_divergences(converted(run, entry.relation, relation)) for run in selection.runs]
    return spent + selection_divergence(np.max(runs, axis=0), selection.mean_repetitions, place)


def refuse_above(
    cap: Cap,
    others: Contents,
    entry: Entry,
    finished: Entry | None = None,
    *,
    unit: str | None = None,
    whose: str = "these rows",
) -> None:
    """Raise PrivacyError if `entry` and all other entries of a book cost more than `cap` together.

    Args:
        finished: the entry before a histogram of its run was added; None for a new run.
        unit: what the cap protects; None for every unit that any of the runs protects.
        whose: the rows under the cap, for the message.
    """
    if not entry.private:
        raise PrivacyError(
            f"cap is epsilon {cap.epsilon:.9g}, and no epsilon covers a run of {entry.method} without secret noise; "
            "nothing was spent; leave that run out (in compare: --no-baselines)"
        )
    entries = [*(other for other in others.counted if other.private), entry]
    costs = {one: under_cap(entries, cap, REMOVED[one]) for one in units_of(entries)}
    above = next((one for one in costs if unit in (None, one) and costs[one] > cap.epsilon), None)
    if above is None:
        return
    if above == OWNER and len(costs) > 1:  # after a run by record
        mixed = len(units_of(others.counted)) > 1
        step = "use other rows" if mixed else f"give --unit {OWNER if entry.unit == RECORD else RECORD}"
        raise PrivacyError(f"cap is epsilon {cap.epsilon:.9g}, and {NO_PERSON}; nothing was spent; {step}")
    counted, added, flag = others.counted, "this one", "--eps"
    if finished is not None:
        counted, added, flag = [*counted, finished], "the histogram", "--publish-epsilon"
    before = spending(counted, cap.delta)
    runs = f"{before.runs} run{'' if before.runs == 1 else 's'}"
    after = rounded_up(costs[above]) + (f" for {ONE[above]}" if len(costs) > 1 else "")
    raise PrivacyError(
        f"cap is epsilon {cap.epsilon:.9g} at delta {rounded_up(cap.delta)}; what {whose} have spent is "
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
        pairs = [(bound[protected], REMOVED[protected], REMOVED[one]) for protected in bound]
        covered = all(neighbours_between(stated, wanted) is not None for _, stated, wanted in pairs)
        costing = [release for pair in pairs for release in converted(*pair)] if covered else []
        # every further fit would wait for the last digits
        costs[one] = composed(costing, delta, rough=True)[0] if covered else math.inf
    return (
        f"some of these rows were in {fits} fits of this process, which together cost {cost_in_words(costs, delta)}; a "
        "choice among the fits is a release of all of them"
    )
