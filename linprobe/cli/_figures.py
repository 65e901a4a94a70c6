"""Privacy figures as the command line shows them. See `linprobe.accounting.figures` for the rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linprobe.accounting.figures import OF_SAMPLES as OF_SAMPLES
from linprobe.accounting.figures import gaussian_words as gaussian_words
from linprobe.accounting.figures import rounded_down as rounded_down
from linprobe.accounting.figures import rounded_up as rounded_up
from linprobe.runs.guarantee import NOUNS

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


def rows_in_words(outcome: Mapping[str, Any]) -> str:
    """The method of a run, its private rows or people, and its public rows."""
    noun = NOUNS[outcome["unit"]]
    return f"{outcome['method']}: {outcome['n_units']} private {noun}, {outcome['n_public']} public rows"
