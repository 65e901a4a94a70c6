"""What the runs of a budget book cost together.

Sums over all rows compose exactly, as Gaussian differential privacy. If any run took Poisson samples, privacy-loss
distributions compose everything, or above `MOST_KINDS` kinds of releases the faster Renyi bound. Every figure is an
upper bound for a record that was private in all runs.

A private selection is no Gaussian release. Basic composition joins k selections and everything else: each part has an
equal share of delta, and the epsilons add up,

    epsilon(delta) <= epsilon_rest(delta / (k + 1)) + sum_i epsilon_i(delta / (k + 1))        (k without a rest)

(Dwork and Roth 2014, Theorem 3.16). It holds in any order and for later runs that depend on earlier results: a pair of
distributions dominates each part, and the product of the pairs dominates the whole (Zhu, Dong, Wang 2022).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from linprobe.accounting.accountants import ACCOUNTANTS, choose_accountant, composed_epsilon, gaussian_figures, gdp_mu
from linprobe.accounting.book import RECORD, Cap, Contents, Entry
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.selection import selection_epsilon
from linprobe.errors import PrivacyError

MOST_KINDS = 32  # of sampled releases; 16 take a second by privacy-loss distributions
LEAST_DELTA = 1e-300  # of a selection; float64 cannot divide smaller ones


@dataclass(frozen=True)
class Spending:
    """The cost of several runs together.

    Attributes:
        runs: number of runs that released something with noise. not_private_runs: those that no epsilon covers.
        unit: what the figures protect: `owner` if every run does, else `record`.
        epsilon, delta: of all `runs` together; infinity if it cannot be bounded.
        gdp_mu, zcdp_rho: the same; None if any release was sampled, or any run was a private selection.
        accountant: of record, in words.
    """

    runs: int
    not_private_runs: int
    unit: str
    epsilon: float
    delta: float
    gdp_mu: float | None
    zcdp_rho: float | None
    accountant: str


def spending(entries: Sequence[Entry], delta: float | None = None) -> Spending:
    """The cost of `entries` together at `delta`; None is the largest delta of the runs."""
    private = [entry for entry in entries if entry.private and entry.counts]
    if delta is None:
        delta = max((entry.delta for entry in private if entry.delta is not None), default=0.0)
    epsilon, accountant = together(private, delta)
    releases = [release for entry in private for release in entry.total]
    selects = any(entry.selection is not None for entry in private)
    units = {entry.unit for entry in private}
    return Spending(
        runs=len(private),
        not_private_runs=sum(not entry.private for entry in entries),
        unit=units.pop() if len(units) == 1 else RECORD,
        epsilon=epsilon,
        delta=delta,
        **(dict.fromkeys(("gdp_mu", "zcdp_rho")) if selects else gaussian_figures(releases)),
        accountant=accountant,
    )


def together(entries: Sequence[Entry], delta: float) -> tuple[float, str]:
    """Epsilon of private `entries` together at `delta`, an upper bound, and its accountant in words."""
    selections = [entry.selection for entry in entries if entry.selection is not None]
    releases = [release for entry in entries for release in entry.total]
    if not selections:
        epsilon, accountant = composed(releases, delta)
        return epsilon, ACCOUNTANTS[accountant]
    parts = len(selections) + bool(releases)
    part = delta if parts == 1 else math.nextafter(delta / parts, 0)
    words = f"{len(selections)} private selection{'' if len(selections) == 1 else 's'} by privacy profiles"
    if part < LEAST_DELTA:
        return math.inf, words
    judges = [choose_accountant("auto", event.releases) for event in selections]
    costs = [selection_epsilon(event, part, judge) for event, judge in zip(selections, judges, strict=True)]
    if releases:
        epsilon, accountant = composed(releases, part)
        costs.append(epsilon)
        words = f"{ACCOUNTANTS[accountant]}, added to {words}"
    return (costs[0] if parts == 1 else math.nextafter(math.fsum(costs), math.inf)), words


def composed(releases: Sequence[Releases], delta: float, *, rough: bool = False) -> tuple[float, str]:
    """Epsilon of all `releases` together at `delta`, an upper bound, and the name of its accountant.

    `rough` is as in `composed_epsilon`.
    """
    accountant = choose_accountant("auto", releases)
    if not releases:
        return 0.0, accountant
    if accountant == "gdp":
        return composed_epsilon(releases, delta, accountant), accountant
    merged = _merged(releases)
    if len(merged) > MOST_KINDS:
        accountant = "rdp"
    return composed_epsilon(merged, delta, accountant, rough=rough), accountant


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


def refuse_above(cap: Cap, others: Contents, entry: Entry, finished: Entry | None = None) -> None:
    """Raise PrivacyError if `entry` and all other entries of a book cost more than `cap` together.

    `finished` is the entry before a histogram of its run was added; None for a new run.
    """
    if not entry.private:
        raise PrivacyError(
            f"cap is epsilon {cap.epsilon:.9g}, and no epsilon covers a run of {entry.method} without secret noise; "
            "nothing was spent; leave that run out (in compare: --no-baselines)"
        )
    spent = spending([*others.counted, entry], cap.delta)
    if spent.epsilon > cap.epsilon:
        added, flag = ("this one", "--eps") if finished is None else ("the histogram", "--publish-epsilon")
        before = spending(others.counted if finished is None else [*others.counted, finished], cap.delta)
        runs = f"{before.runs} run{'' if before.runs == 1 else 's'}"
        raise PrivacyError(
            f"cap is epsilon {cap.epsilon:.9g} at delta {rounded_up(cap.delta)}; what these rows have spent is "
            f"{rounded_up(before.epsilon)} in {runs}, with {added} it would be {rounded_up(spent.epsilon)}; nothing "
            f"was spent; give a smaller {flag}, or raise the cap"
        )
