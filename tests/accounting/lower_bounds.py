"""Lower bounds on epsilon that share no code with the accountants, in ball arithmetic.

    python -m tests.accounting.lower_bounds sums 300       # sampled sums of up to 10^6 releases
    python -m tests.accounting.lower_bounds records 1000    # epsilons of single records

Each prints how many figures are below a bound; any at all is an error of the accountant.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import scipy
from flint import arb, ctx, fmpz
from numpy.typing import NDArray

from linprobe.accounting.accountants import PLD
from linprobe.accounting.events import Releases
from linprobe.accounting.per_instance import ORDERS, record_losses

REACH = 13.0  # standard deviations of a binomial number that are summed
BITS = 192


@dataclass(frozen=True)
class Setting:
    """`count` sums over samples at `rate` with noise multiplier `sigma`, and one over all rows, of 0 for none."""

    rate: float
    sigma: float
    count: int
    delta: float
    full: float = 0.0

    def releases(self) -> list[Releases]:
        """As the accountant takes them."""
        whole = [Releases("mean", self.full, 1.0, 1)] if self.full else []
        return [*whole, Releases("gradient", self.sigma, self.rate, self.count)]

    def joined(self) -> NDArray[np.int64]:
        """Likely numbers of samples that hold the record."""
        mean, deviation = self.count * self.rate, math.sqrt(self.count * self.rate * (1 - self.rate))
        low, high = math.floor(mean - REACH * deviation - 40), math.ceil(mean + REACH * deviation + 40)
        return np.arange(max(0, low), min(self.count, high) + 1)


def random_settings(seed: int, n: int, least: float, most: float) -> list[Setting]:
    """Settings with 10^least to 10^most releases; a third of them beside a sum over all rows."""
    rng, found = np.random.default_rng(seed), []
    for place in range(n):
        rate, count = float(10 ** rng.uniform(-4, -0.01)), int(10 ** rng.uniform(least, most))
        mu, delta = float(10 ** rng.uniform(-1.5, 0.8)), float(10 ** rng.uniform(-13, -3))
        full = float(10 ** rng.uniform(0, 1)) if place % 3 == 0 else 0.0
        found.append(Setting(rate, 1 / math.sqrt(math.log1p(mu**2 / rate**2 / count)), count, delta, full))
    return found


def delta_of_the_sum(setting: Setting, epsilon: float) -> arb:
    """A lower bound on delta(epsilon): P(S) - exp(epsilon) Q(S), where S is a sum of all releases above a threshold.

    The sum of rate x_t / sigma^2 over the samples, plus y / full^2, is N(0, V) under Q. Under P its mean is
    rate B / sigma^2 + 1 / full^2, where B is binomial; its unlikely values are left out, which makes P(S) smaller. The
    weights are those of the losses where the noise is large.
    """
    joined = setting.joined()
    shift = 1 / setting.full**2 if setting.full else 0.0
    weight, noise = setting.rate / setting.sigma**2, setting.count * (setting.rate / setting.sigma) ** 2
    means, variance = joined * weight + shift, noise + shift
    logs = scipy.stats.binom.logpmf(joined, setting.count, setting.rate)

    def excess(place: float) -> float:
        """Logarithm of the ratio of the densities, less epsilon."""
        return float(scipy.special.logsumexp(logs + means * (place - means / 2) / variance)) - epsilon

    low, high = -40 * math.sqrt(variance), 2.0 * float(means[-1]) + 40 * math.sqrt(variance)
    threshold = float(scipy.optimize.brentq(excess, low, high)) if excess(low) < 0 < excess(high) else low
    with ctx.workprec(BITS):
        shift = 1 / arb(setting.full) ** 2 if setting.full else arb(0)
        step = arb(setting.rate) / arb(setting.sigma) ** 2
        root = (2 * (setting.count * step * setting.rate + shift)).sqrt()
        chance = _binomial(setting, int(joined[0]))
        ratio, present = arb(setting.rate) / (1 - arb(setting.rate)), arb(0)
        for number in joined.tolist():
            present += chance * ((arb(threshold) - number * step - shift) / root).erfc() / 2
            chance *= ratio * (setting.count - number) / (number + 1)
        return present - arb(epsilon).exp() * (arb(threshold) / root).erfc() / 2


def _binomial(setting: Setting, number: int) -> arb:
    """Probability that the record is in `number` samples, a ball."""
    log = arb(setting.count + 1).lgamma() - arb(number + 1).lgamma() - arb(setting.count - number + 1).lgamma()
    rate = arb(setting.rate)
    return (log + number * rate.log() + (setting.count - number) * (1 - rate).log()).exp()


def epsilon_of_the_sum(setting: Setting, below: float) -> float:
    """A lower bound on epsilon at the setting's delta, by bisection up to `below`."""
    low, high = 0.0, below
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_the_sum(setting, middle) > setting.delta else (low, middle)
    return low


def least_record_epsilon(levels: dict[int, int], sigma: float, rate: float, squared_mu: float, delta: float) -> arb:
    """The least epsilon that a Renyi divergence at one of `ORDERS` gives a record, a ball.

    Args:
        levels: number of sampled releases by level; a level bounds the contribution by (level / 64)^2.
        squared_mu: of releases from all rows.
    """
    found = arb(math.inf)
    q, inverse = arb(rate), 1 / (2 * arb(sigma) ** 2)
    for order in ORDERS.tolist():
        total = arb(squared_mu) * order / 2
        for level, count in levels.items():
            share = arb(level**2) / 4096
            terms = (
                fmpz(math.comb(order, k)) * q**k * (1 - q) ** (order - k) * (share**2 * inverse * (k * (k - 1))).exp()
                for k in range(order + 1)
            )
            total += count * sum(terms, arb(0)).log() / (order - 1)
        found = found.min(total + (1 - 1 / arb(order)).log() - (arb(delta).log() + arb(order).log()) / (order - 1))
    return found.max(arb(0))


def check_record(rng: np.random.Generator, sampled_only: bool) -> tuple[bool, float]:
    """Whether the epsilon of a record with random losses is at least the exact one, and its relative excess."""
    rate, sigma, delta = (float(10 ** rng.uniform(*ends)) for ends in ((-6, -1e-3), (-0.5, 3), (-12, -2)))
    squared_mu = 0.0 if sampled_only else float(10 ** rng.uniform(-4, 1))
    counters, levels = np.zeros((1, 65), np.uint32), {}
    for level in rng.choice(64, 2, replace=False).tolist():
        levels[level + 1] = int(counters[0, level + 1] + 10 ** rng.uniform(0, 5))
        counters[0, level + 1] = levels[level + 1]
    steps = Releases("gradient", sigma, rate, sum(levels.values()))
    found = float(record_losses(1, np.array([squared_mu]), counters, steps, ()).epsilon(delta, math.inf)[0])
    with ctx.workprec(BITS):
        exact = least_record_epsilon(levels, sigma, rate, squared_mu, delta)
        excess = float((arb(found) / exact - 1).mid()) if exact > arb(1e-6) else 0.0
        return bool(arb(found) >= exact), excess


def main(what: str, n: int) -> None:
    """Print the figures of `n` random settings."""
    below, figures = 0, []
    rng = np.random.default_rng(4)
    for place, setting in enumerate(random_settings(5, n, math.log10(1400), 6)):
        if what == "records":
            holds, figure = check_record(rng, place % 2 == 0)
        else:
            epsilon = PLD.epsilon(setting.releases(), setting.delta)
            holds = math.isinf(epsilon) or bool(delta_of_the_sum(setting, epsilon) <= setting.delta)
            figure = epsilon_of_the_sum(setting, epsilon) / epsilon if math.isfinite(epsilon) else 0.0
        below += not holds
        figures.append(figure)
        if not holds:
            print("below:", setting if what == "sums" else place, flush=True)
    quantiles = ", ".join(f"{each:.3g}" for each in np.quantile(figures, (0, 0.1, 0.5, 0.9, 1)))
    meaning = "lower bound by figure" if what == "sums" else "relative excess"
    print(f"{n} settings, {below} below; {meaning}: {quantiles} (least, 10 %, 50 %, 90 %, most)")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
