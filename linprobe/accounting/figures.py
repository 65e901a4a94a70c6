"""Privacy figures: epsilon, delta and mu of Gaussian differential privacy as proven bounds, and every figure as text.

A mu-GDP mechanism is (epsilon, delta)-differentially private exactly for

    delta >= delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle, Wang 2018, Theorem 8). In float64 the difference loses digits: most where mu or delta is small. Here it is
evaluated in ball arithmetic (Arb), which encloses the exact value, with the precision that the comparison needs.

Rounding to text keeps a bound: epsilon, delta, mu and rho are rounded up, lower bounds and noise down. Every
figure that linprobe prints, draws or states in words is from here. JSON objects hold the floats themselves.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import Any

from linprobe.accounting.events import OWNER, RECORD

DIGITS = 6
ONE = {RECORD: "a record", OWNER: "a person"}
NOUNS = {RECORD: "rows", OWNER: "people"}
NOUN = {RECORD: "row", OWNER: "person"}
NO_PERSON = "no epsilon covers a person with any number of rows (a run by record protects single rows)"
OF_SAMPLES = "no GDP mu or zCDP rho: Poisson samples"


def rounded_up(value: float | None, digits: int = DIGITS) -> str:
    """The least number of `digits` significant digits that is at least `value`; a dash for None.

    Guarantee: `float(text) >= value`. A value with fewer digits is shown as it is: 0.1 is not rounded up to 0.100001.
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float | None, digits: int = DIGITS) -> str:
    """The largest number of `digits` significant digits that is at most `value`, as noise; a dash for None."""
    return _rounded(value, digits, ROUND_FLOOR)


def gaussian_words(gdp_mu: float | None, zcdp_rho: float | None) -> str:
    """mu of Gaussian DP and rho of zCDP in words; None for sampled releases, which have neither."""
    if gdp_mu is None:
        return f"{OF_SAMPLES} or private selection"
    return f"GDP mu {rounded_up(gdp_mu)}, zCDP rho {rounded_up(zcdp_rho)}"


def finite(value: float | None) -> float | None:
    """`value`, or None if it is infinite."""
    return value if value is not None and math.isfinite(value) else None


def cost_in_words(epsilon_by_unit: Mapping[str, float], delta: float) -> str:
    return "; ".join(
        NO_PERSON
        if unit == OWNER and math.isinf(cost)
        else f"epsilon {rounded_up(cost)} at delta {rounded_up(delta)} for {ONE[unit]}"
        for unit, cost in epsilon_by_unit.items()
    )


def limit_percent(limit: float) -> str:
    """The limit of an attack in per cent, rounded up to two decimals, without a sign."""
    percent = 100 * Decimal(repr(float(limit)))
    return str(percent.quantize(Decimal("0.01"), ROUND_CEILING))


def _rounded(value: float | None, digits: int, towards: str) -> str:
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    # repr is the shortest decimal that float() reads as `value`, so rounding it and reading it back keeps the order
    rounded = Context(prec=digits, rounding=towards).create_decimal(Decimal(repr(float(value))))
    return format(float(rounded), f".{digits}g")


BITS = tuple(128 << doublings for doublings in range(6))  # of the balls, until they decide
LARGEST_MU = 1e3  # above, epsilon would be over 500,000, and is infinite here


def mu_and_rho(terms: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """mu and rho = mu^2 / 2 of `count` Gaussian mechanisms with `noise_multiplier` for each pair, rounded up.

    mu is sqrt(sum of count / multiplier^2): Dong, Roth, Su 2022, Corollary 3.3. rho is of zero-concentrated
    differential privacy. Both are infinite if a multiplier is 0 or mu overflows.
    """
    from flint import arb, ctx

    with ctx.workprec(BITS[0]):
        squared = arb(0)
        for count, multiplier in terms:
            if multiplier == 0:
                return math.inf, math.inf
            squared += arb(count) / arb(multiplier) ** 2
        return upper_float(squared.sqrt()), upper_float(squared / 2)


def delta_of(epsilon: float, mu: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism, in [0, 1]: at most one unit in the last place above the exact value."""
    if mu == 0:
        return 0.0
    if mu > LARGEST_MU:
        return 1.0
    from flint import ctx

    for bits in BITS:
        with ctx.workprec(bits):
            delta = _delta(epsilon, mu)
            found = min(1.0, upper_float(delta))
        if delta.rel_accuracy_bits() > 64:
            break
    return found


@lru_cache(maxsize=4096)
def epsilon_of(mu: float, delta: float) -> float:
    """The least float64 epsilon at which a mu-GDP mechanism has delta(epsilon) <= `delta`, proven.

    So the figure never understates the privacy loss. Infinite if mu is above `LARGEST_MU`.
    """
    if mu > LARGEST_MU:
        return math.inf
    # delta(eps) <= Phi(mu/2 - eps/mu) <= exp(-(eps/mu - mu/2)^2 / 2) bounds epsilon from above
    high = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    return _least(lambda epsilon: holds(epsilon, delta, mu), high)


@lru_cache(maxsize=4096)
def largest_mu(epsilon: float, delta: float) -> float:
    """The largest float64 mu of a mechanism that is (`epsilon`, `delta`)-differentially private, proven."""
    least_above = _least(lambda mu: not holds(epsilon, delta, mu), 1.0)
    return math.nextafter(least_above, 0.0)


def holds(epsilon: float, delta: float, mu: float) -> bool:
    """Whether a mu-GDP mechanism is (`epsilon`, `delta`)-differentially private; False unless it is proven."""
    if mu == 0:
        return True
    from flint import arb, ctx

    for bits in BITS:
        with ctx.workprec(bits):
            found = _delta(epsilon, mu)
            if found <= arb(delta):
                return True
            if found > arb(delta):
                return False
    return False


def _delta(epsilon: float, mu: float) -> Any:
    """A ball that holds delta(epsilon)."""
    from flint import arb

    loss, half, root = arb(epsilon) / arb(mu), arb(mu) / 2, arb(2).sqrt()
    return (((loss - half) / root).erfc() - arb(epsilon).exp() * ((loss + half) / root).erfc()) / 2


def renyi_conversion(order: int, delta: float) -> float:
    """What turns a Renyi divergence into epsilon (Canonne, Kamath, Steinke 2020, Proposition 12), rounded up."""
    from flint import arb

    return upper_float((1 - 1 / arb(order)).log() - (arb(delta) * order).log() / (order - 1))


def _least(condition: Callable[[float], bool], high: float) -> float:
    """The least positive float64 at which a condition holds that stays true from there on; 0 if it holds at 0."""
    if condition(0.0):
        return 0.0
    low = 0.0
    while not condition(high):
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        if condition(middle):
            high = middle
        else:
            low = middle


def upper_float(ball: Any) -> float:
    """The least float64 that is no smaller than any number in `ball`, or the next."""
    value = float(ball.upper())
    return value if ball <= value else math.nextafter(value, math.inf)
