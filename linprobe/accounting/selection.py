"""The cost of private selection: the best of a random number of runs.

Liu and Talwar 2019; Papernot and Steinke 2022. The bound is from Koskela, Redberg and Wang 2024, "Privacy Profiles
for Private Selection" (arXiv 2402.06701), for the truncated negative binomial distribution with eta = 1:

    Q     one run, whose output has a score; delta_Q(eps) is its privacy profile
    K     geometric on 1, 2, ... with mean m
    A     the output with the highest score among K runs of Q

    delta_A(eps) <= m delta_Q(eps - 2 eps_1)    for every eps_1 >= 0 with delta_Q(eps_1) <= (e^eps_1 - 1) / (m - 1)

so eps_A(delta) = eps_Q(delta / m) + 2 eps_1. `docs/tuning.md` has the proof. Q draws one of several settings, each with
its own releases; its profile is at most the largest of their profiles.

The cross-check is the Renyi bound of Papernot and Steinke (`accountants.repeated_epsilon`). It shares neither the
theorem nor the code, and is looser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from linprobe.accounting import accountants
from linprobe.accounting.events import LARGEST_FIGURE, Releases
from linprobe.accounting.figures import rounded_up
from linprobe.errors import ParameterError, PrivacyError
from linprobe.parallel.array_api import Reals

DISTRIBUTION = "geometric"
MOST_REPETITIONS = 1000
MOST_RELEASES = 10**12  # of one kind in one run
LOSS_GRID = 256
PROFILE_ROUNDING = 1e-9
TOLERANCE = 1e-3  # of epsilon, left unspent by the search
SEARCHES = 24


@dataclass(frozen=True)
class SelectionEvent:
    """One private selection, recorded before its first run. Adjacency: as for the releases."""

    mean_repetitions: int  # m, the mean number of runs. The number itself is secret
    runs: tuple[tuple[Releases, ...], ...]  # the releases of one run, once for every possible budget

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": "selection",
            "distribution": DISTRIBUTION,
            "mean_repetitions": self.mean_repetitions,
            "runs": [[asdict(release) for release in run] for run in self.runs],
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> SelectionEvent:
        """Inverse of `as_dict`. Raises KeyError, TypeError or ValueError on anything else."""
        if (fields["event"], fields["distribution"]) != ("selection", DISTRIBUTION):
            raise ValueError(f"{fields['event']!r} with distribution {fields['distribution']!r} is not known")
        runs = tuple(tuple(Releases(**release) for release in run) for run in fields["runs"])
        mean = fields["mean_repetitions"]
        if not isinstance(mean, int):
            raise ValueError(f"mean_repetitions is {str(mean)[:40]!r}")
        for release in (release for run in runs for release in run):
            sigma, rate, count = release.noise_multiplier, release.sampling_rate, release.count
            plain = all(isinstance(value, int | float) for value in (sigma, rate)) and isinstance(count, int)
            if not (plain and 0 < sigma <= LARGEST_FIGURE and 0 < rate <= 1 and 0 < count <= MOST_RELEASES):
                raise ValueError(f"{release} has noise, rate or count outside their ranges")
        if not runs or not all(runs):
            raise ValueError("a run without releases")
        return cls(check_repetitions(mean), runs)

    @property
    def releases(self) -> tuple[Releases, ...]:
        return tuple(release for run in self.runs for release in run)


def check_repetitions(mean: int) -> int:
    """`mean` if it is a whole number from 2 to `MOST_REPETITIONS`; otherwise ParameterError."""
    if mean != int(mean) or not 2 <= mean <= MOST_REPETITIONS:
        raise ParameterError(f"repetitions is {mean}; allowed: a whole number from 2 to {MOST_REPETITIONS}")
    return int(mean)


def selection_epsilon(event: SelectionEvent, delta: float, accountant: accountants.Accountant) -> float:
    """Epsilon of a selection at `delta`; `accountant` judges a single run. Infinity if the bound does not apply."""
    base, first = _losses(event, delta, accountant)
    return math.nextafter(base + 2 * first, math.inf)


def _losses(event: SelectionEvent, delta: float, accountant: accountants.Accountant) -> tuple[float, float]:
    """eps_Q(delta / m), and eps_1, which is at most that."""
    mean = event.mean_repetitions
    each = math.nextafter(delta / mean, 0)  # at most the quotient, which was rounded
    base = max(accountant.epsilon(run, each) for run in event.runs)
    return base, first_loss(lambda epsilons: _profile(event, epsilons, delta, accountant), mean, base)


def selection_deltas(
    event: SelectionEvent, epsilons: Sequence[float], delta: float, accountant: accountants.Accountant
) -> Reals:
    """delta(epsilon) of a selection: upper bounds, shape (len(epsilons),). `delta`: of the guarantee."""
    left = np.asarray(epsilons, dtype=np.float64) - 2 * _losses(event, delta, accountant)[1]
    deltas = np.ones(len(left))
    profile = _profile(event, left[left >= 0], delta, accountant)
    deltas[left >= 0] = np.minimum(np.nextafter(event.mean_repetitions * profile, 1), 1)
    return deltas


def selection_cross_check(event: SelectionEvent, delta: float) -> float:
    """Epsilon by the Renyi bound, the largest over the possible budgets: each is judged as if it were the only one."""
    return max(accountants.repeated_epsilon(run, event.mean_repetitions, delta) for run in event.runs)


def selection_limit(event: SelectionEvent, delta: float, accountant: accountants.Accountant) -> accountants.AttackLimit:
    """The limit of an attack on one record after a private selection; `accountant` judges a single run."""
    epsilons = accountants.LIMIT_EPSILONS * selection_epsilon(event, delta, accountant)
    deltas = selection_deltas(event, epsilons.tolist(), delta, accountant)
    source = f"all pairs of epsilon and delta, private selection, {accountant.words}"
    return accountants.AttackLimit(source, None, epsilons, deltas)


def selection_divergences(one: Reals, mean: int) -> Reals:
    """Renyi divergences of the best of a geometric number of runs at `FILTER_ORDERS`, shape (len(FILTER_ORDERS),).

    Papernot and Steinke 2022, Theorem 2 with eta = 1 and gamma = 1 / m, with the best of the other orders.

    Args:
        one: of one run, of the same shape: the largest of any budget.
    """
    orders = np.array(accountants.FILTER_ORDERS, dtype=np.float64)
    others = 2 * ((1 - 1 / orders) * one + math.log(mean) / orders)
    return np.asarray((one + others.min() + math.log(mean) / (orders - 1)) * (1 + PROFILE_ROUNDING))


def _profile(event: SelectionEvent, epsilons: Reals, delta: float, accountant: accountants.Accountant) -> Reals:
    """delta_Q at `epsilons`."""
    small = delta / event.mean_repetitions
    return np.asarray(np.max([accountant.deltas(run, epsilons.tolist(), small) for run in event.runs], axis=0))


def first_loss(profile: Callable[[Reals], Reals], mean: int, most: float) -> float:
    """The least eps_1 of a grid on [0, most] that fulfils its condition; infinity if none does.

    Args:
        profile: from epsilons to delta_Q, both shape (n,).
    """
    if not math.isfinite(most):
        return math.inf
    low, high = 0.0, most
    for _ in range(2):  # the second grid lies between two points of the first
        grid = np.linspace(low, high, LOSS_GRID + 1)[1:]
        holds = np.flatnonzero(profile(grid) <= np.expm1(grid) / (mean - 1) * (1 - PROFILE_ROUNDING))
        if not holds.size:
            return math.inf
        low, high = float(grid[holds[0] - 1]) if holds[0] else low, float(grid[holds[0]])
    return high


def calibrate_selection(
    runs_at: Callable[[float], Sequence[tuple[Releases, ...]]],
    *,
    mean_repetitions: int,
    epsilon: float,
    delta: float,
    accountant: str = "auto",
) -> tuple[float, accountants.Accountant, SelectionEvent]:
    """The budget of one run for which the whole selection costs at most `epsilon` at `delta`.

    Args:
        runs_at: from the epsilon of one run, at delta / m, to the releases of every possible budget.
        accountant: `auto`, or one of `ACCOUNTANTS`; it judges a single run.
    Returns: epsilon of one run at delta / m, the accountant, the event.
    Raises PrivacyError: no budget of one run is small enough.
    """
    best: tuple[float, accountants.Accountant, SelectionEvent] | None = None
    one, low, high = epsilon / 2, 0.0, epsilon
    for _ in range(SEARCHES):
        event = SelectionEvent(mean_repetitions, tuple(dict.fromkeys(runs_at(one))))
        judge = accountants.choose_accountant(accountant, event.releases)
        cost = selection_epsilon(event, delta, judge)
        if cost <= epsilon:
            best, low = (one, judge, event), one
            if cost >= (1 - TOLERANCE) * epsilon:
                break
        else:
            high = one
        guess = one * (1 - TOLERANCE / 2) * epsilon / cost
        one = guess if low < guess < high else (low + high) / 2
        if high - low <= TOLERANCE * high / 10:
            break
    if best is None:
        raise PrivacyError(
            f"epsilon is {rounded_up(epsilon)}, and no single run is private enough to be repeated "
            f"{mean_repetitions} times on average; allowed: a larger epsilon; raise --eps or lower --repetitions"
        )
    return best
