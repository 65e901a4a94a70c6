"""Privacy figures as text. Rounding keeps a bound: epsilon, delta, mu and rho are rounded up, lower bounds down.

Every figure that linprobe prints, draws or states in words is from here. JSON objects hold the floats themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from linprobe.accounting.events import OWNER, RECORD

DIGITS = 6
ONE = {RECORD: "a record", OWNER: "a person"}
NOUNS = {RECORD: "rows", OWNER: "people"}
NO_PERSON = "no epsilon covers a person with any number of rows (a run by record protects single rows)"
OF_SAMPLES = "no GDP mu or zCDP rho: Poisson samples"


def rounded_up(value: float | None, digits: int = DIGITS) -> str:
    """The least number of `digits` significant digits that is at least `value`; a dash for None.

    Guarantee: `float(text) >= value`. A value with fewer digits is shown as it is: 0.1 is not rounded up to 0.100001.
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float | None, digits: int = DIGITS) -> str:
    """The largest number of `digits` significant digits that is at most `value`, a lower bound; a dash for None."""
    return _rounded(value, digits, ROUND_FLOOR)


def gaussian_words(gdp_mu: float | None, zcdp_rho: float | None) -> str:
    """mu of Gaussian DP and rho of zCDP in words; None for sampled releases, which have neither."""
    if gdp_mu is None:
        return f"{OF_SAMPLES} or private selection"
    return f"GDP mu {rounded_up(gdp_mu)}, zCDP rho {rounded_up(zcdp_rho)}"


def cost_in_words(epsilon_by_unit: Mapping[str, float], delta: float) -> str:
    """What several runs cost together, and for whom."""
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
