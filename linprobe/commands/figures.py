"""Privacy figures as the command line shows them. See `linprobe.accounting.figures` for the rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linprobe.accounting.figures import gaussian_words as gaussian_words
from linprobe.accounting.figures import rounded_down as rounded_down
from linprobe.accounting.figures import rounded_up as rounded_up

SAMPLED = "none: Poisson samples or private selection"


def guarantee_rows(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of epsilon, delta, mu and rho of a run, or dashes if it has no epsilon."""
    if claim["epsilon"] is None:
        return [("epsilon", "-"), ("delta", rounded_up(claim["delta"]))]
    rows = [(name, rounded_up(claim[name])) for name in ("epsilon", "delta")]
    return [
        *rows,
        *(
            (name, SAMPLED if claim[key] is None else rounded_up(claim[key]))
            for name, key in (("GDP mu", "gdp_mu"), ("zCDP rho", "zcdp_rho"))
        ),
    ]
