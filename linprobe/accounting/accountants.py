"""Accountants: events in, epsilon out. The only file that imports autodp and dp_accounting.

Accountant of record: exact Gaussian differential privacy. A composition of Gaussian mechanisms with
multipliers sigma_t is mu-GDP with mu = sqrt(sum_t 1 / sigma_t^2) (Dong, Roth, Su 2022, Corollary 3.3), and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)      (Balle, Wang 2018, Theorem 8)

inverted by autodp and then rounded so that the epsilon reported is never below the true one.
Cross-check: Google's dp-accounting, privacy-loss distributions, which err on the high side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version

from linprobe.accounting.events import GaussianEvent

ACCOUNTANT_OF_RECORD = "exact Gaussian DP (autodp)"
CROSS_CHECK = "privacy-loss distribution (dp-accounting)"
AGREEMENT_RELATIVE = 2e-3
AGREEMENT_ABSOLUTE = 5e-4


def accountant_versions() -> dict[str, str]:
    """Installed versions of the two accountants."""
    return {name: version(name) for name in ("autodp", "dp-accounting")}


def gdp_mu(events: Iterable[GaussianEvent]) -> float:
    """mu of the whole composition, dimensionless; 0 for no events, infinity if any release had no noise."""
    counts = Counter(event.noise_multiplier for event in events)
    if any(multiplier == 0 for multiplier in counts):
        return math.inf
    return math.sqrt(math.fsum(count / multiplier**2 for multiplier, count in counts.items()))


def log_delta_of(epsilon: float, mu: float) -> float:
    """Natural logarithm of the exact delta of a mu-GDP mechanism at `epsilon`."""
    from autodp.dp_bank import get_logdelta_ana_gaussian

    return float(get_logdelta_ana_gaussian(1.0 / mu, epsilon))


@lru_cache(maxsize=4096)
def epsilon_of(mu: float, delta: float) -> float:
    """Exact epsilon of a mu-GDP mechanism at `delta`, rounded up by at most one part in 10^9.

    Guarantee: delta(result) <= delta, so the figure never understates the privacy loss.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    from autodp.dp_bank import get_eps_ana_gaussian

    epsilon = float(get_eps_ana_gaussian(1.0 / mu, delta))
    slack = 1e-15
    while log_delta_of(epsilon, mu) > math.log(delta):
        epsilon += slack * max(1.0, epsilon)
        slack *= 10
    return epsilon


def epsilon_by_cross_check(events: Iterable[GaussianEvent], delta: float) -> float:
    """Epsilon of the same events by dp-accounting's privacy-loss distributions, a slight over-estimate."""
    counts = Counter(event.noise_multiplier for event in events)
    if not counts:
        return 0.0
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for multiplier, count in counts.items():
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), count))
    return float(accountant.get_epsilon(delta))


def accountants_agree(record: float, cross_check: float) -> bool:
    """Whether two epsilons agree within the discretisation error of the cross-check."""
    return abs(record - cross_check) <= AGREEMENT_RELATIVE * record + AGREEMENT_ABSOLUTE
