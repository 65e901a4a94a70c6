"""The guarantee of a run in figures and in words, recomputed from the recorded events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from typing import Any

from linprobe.accounting import accountants
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.events import INHERITED, OWNER, RECORD, GaussianEvent, Releases, grouped
from linprobe.accounting.figures import NOUNS, gaussian_words, rounded_up
from linprobe.accounting.selection import SelectionEvent, selection_epsilon, selection_limit
from linprobe.errors import PrivacyError
from linprobe.mechanisms.noise import INSECURE, SECURE
from linprobe.methods import Method
from linprobe.runs.manifest import NO_NOISE, Manifest, PrivacyStatement

ADJACENCIES = {
    RECORD: "zero-out adjacency (one private record is present, or its place is empty; the number of places is public)",
    OWNER: "zero-out adjacency of people (all private rows of one person are present, or none of them; the number of "
    "people is public, the number of rows of a person is not)",
}
PLAINLY = {
    RECORD: "Take one private record out of the data and leave its place empty, or put it back. Whoever sees the model "
    "can hardly tell which of the two was done.",
    OWNER: "Take one person out of the data with all of that person's rows, or put the person back. Whoever sees the "
    "model can hardly tell which of the two was done.",
}
PROTECTED = {RECORD: "the private rows", OWNER: "people, each with all of their private rows"}
COUNTED = {RECORD: "number of private records", OWNER: "number of people with private rows"}
SCORE = {
    RECORD: "a noisy count of right private rows",
    OWNER: "a noisy sum over people of the share of their rows that are right",
}
PUBLIC_ROWS = "public rows and their labels"
TEST_ROWS = "test rows, unless declared private, and the accuracy on them"
PUBLIC_QUANTITIES = (
    PUBLIC_ROWS,
    TEST_ROWS,
    "class names and their number",
    "method, options, clip norms, steps, noise multipliers",
    "weights of classes and rows, if given",
)
SEED_KINDS = {SECURE: "os", INSECURE: "insecure", "none drawn": "none"}
WITH_FIRST = " with the releases of the run that it started from"
SELECTION_CROSS_CHECK = "Renyi DP of repeated selection (dp-accounting)"


def privacy_statement(
    method: Method,
    budget: Budget | None,
    events: list[GaussianEvent],
    *,
    n_private: int,
    n_public: int,
    noise_kind: str,
    insecure: bool,
    software: dict[str, str],
    unit: str = RECORD,
) -> PrivacyStatement:
    """The guarantee of one training run, recomputed from the recorded events, not from the plan.

    Raises PrivacyError: the events are not the planned ones, or cost more than the target. This is an error in the
    method or in linprobe; no result is written.
    """
    facts: dict[str, Any] = {
        "method": method.name,
        "paper": method.paper,
        "adjacency": ADJACENCIES[unit],
        "public": [*PUBLIC_QUANTITIES, COUNTED[unit]],
        "unit": unit,
        "n_units": n_private,
        "n_private": n_private,
        "n_public": n_public,
        "noise_source": noise_kind,
        "seed_kind": SEED_KINDS[noise_kind],
        "software": software,
    }
    if budget is None or not method.private:
        return PrivacyStatement(**without_noise(method.private), **facts, absent=NO_NOISE)
    releases = grouped(events)
    n_planned = sum(release.count for release in budget.releases)
    if len(events) != n_planned:
        raise PrivacyError(
            f"method {method.name!r} released {len(events)} of {n_planned} planned sums; nothing was written; please "
            "report this to the author of the method"
        )
    epsilon = budget.accountant.epsilon(releases, budget.delta)
    if epsilon > budget.epsilon_target or _sorted_releases(releases) != _sorted_releases(budget.releases):
        raise PrivacyError(
            f"the ledger holds {len(events)} releases worth epsilon {rounded_up(epsilon, 9)}; allowed: "
            f"{n_planned} as planned, worth at most "
            f"{budget.epsilon_target:.9g}; nothing was written; please report this"
        )
    facts |= accountants.gaussian_figures(releases)
    return PrivacyStatement(
        guarantee=guarantee_text(epsilon, budget.delta, releases, insecure=insecure, unit=unit),
        private=not insecure,
        mechanism=mechanism_text(budget.sampling_rate < 1, unit, releases),
        epsilon=None if insecure else epsilon,
        epsilon_if_seed_were_secret=epsilon if insecure else None,
        delta=budget.delta,
        epsilon_target=budget.epsilon_target,
        noise_multiplier=budget.noise_multiplier,
        sampling_rate=budget.sampling_rate,
        steps=budget.n_steps,
        releases=releases,
        accountant=budget.accountant.words,
        cross_check=budget.accountant.cross_check.words,
        accountant_versions=accountants.accountant_versions(),
        **facts,
    )


def without_noise(private: bool) -> dict[str, Any]:
    """The claims of a run that released nothing with noise: no guarantee, or `private`, private rows were not used."""
    zero = 0.0 if private else None
    claims: dict[str, Any] = {
        "guarantee": "the private rows were not used: epsilon = 0, delta = 0"
        if private
        else "not private: the private rows were used without protection",
        "private": private,
        "mechanism": "none",
        **dict.fromkeys(("epsilon", "delta", "gdp_mu", "zcdp_rho"), zero),
        **dict.fromkeys(("epsilon_target", "noise_multiplier", "sampling_rate", "accountant")),
        "steps": 0 if private else None,
        "releases": () if private else None,
    }
    return claims


def _sorted_releases(releases: Iterable[Releases]) -> list[Releases]:
    """Releases merged by kind and sorted, so that a comparison does not depend on their order."""
    counts: Counter[tuple[str, float, float]] = Counter()
    for release in releases:
        counts[release.purpose, release.noise_multiplier, release.sampling_rate] += release.count
    return sorted((Releases(*kind, count) for kind, count in counts.items()), key=astuple)


def guarantee_text(
    epsilon: float, delta: float, releases: Sequence[Releases] | None, *, insecure: bool = False, unit: str
) -> str:
    """The guarantee in one sentence, rounded up, with the adjacency; `releases` is None for a private selection."""
    if insecure:
        return "not private: the noise came from a seed the user gave"
    kind = "private selection" if releases is None else gaussian_words(**accountants.gaussian_figures(releases))
    return (
        f"({rounded_up(epsilon)}, {rounded_up(delta)})-differential privacy of {PROTECTED[unit]} ({kind}) under "
        f"{ADJACENCIES[unit]}"
    )


def mechanism_text(sampled: bool, unit: str, releases: Iterable[Releases] = ()) -> str:
    """How a run with noise used the private rows; its `releases` say whether it counts those of another run."""
    over = "Poisson samples of" if sampled else "all"
    first = WITH_FIRST if any(one.purpose == INHERITED for one in releases) else ""
    return f"Gaussian noise on clipped sums over {over} private {NOUNS[unit]}, composed{first}"


def selection_mechanism_text(unit: str) -> str:
    return (
        f"private selection: the best of a geometric number of runs by {SCORE[unit]}; each run is Gaussian noise on "
        "clipped sums, composed"
    )


def selection_accountant_text(accountant: accountants.Accountant) -> str:
    """The accountant of record of a private selection, in words; `accountant` judges a single run."""
    return f"privacy profile of private selection, single runs by {accountant.words}"


def selected(
    manifest: Manifest,
    event: SelectionEvent,
    *,
    epsilon_target: float,
    delta: float,
    accountant: accountants.Accountant,
) -> Manifest:
    """The manifest of the run that a selection chose. PrivacyError, a bug: unplanned releases, or above the target."""
    made = sorted(map(astuple, manifest.releases or ()))
    if made not in [sorted(map(astuple, planned)) for planned in event.runs]:
        raise PrivacyError("the releases of the run differ from its plan; nothing was written; please report this")
    epsilon = selection_epsilon(event, delta, accountant)
    if not epsilon <= epsilon_target:
        raise PrivacyError(
            f"the selection costs epsilon {rounded_up(epsilon, 9)}; allowed: at most {epsilon_target:.9g}; nothing was "
            "written; please report this"
        )
    return replace(
        manifest,
        guarantee=guarantee_text(epsilon, delta, None, unit=manifest.unit),
        mechanism=selection_mechanism_text(manifest.unit),
        epsilon=epsilon,
        delta=delta,
        epsilon_target=epsilon_target,
        gdp_mu=None,
        zcdp_rho=None,
        releases=(),
        selection=event,
        accountant=selection_accountant_text(accountant),
        cross_check=SELECTION_CROSS_CHECK,
    )


def accountant_of(manifest: Manifest) -> accountants.Accountant:
    """The accountant that a manifest states; of a selection, that of a single run. PrivacyError: none, or unfit."""
    selection = manifest.selection
    known = {
        one.words if selection is None else selection_accountant_text(one): one
        for one in accountants.ACCOUNTANTS.values()
    }
    if accountants.GOOGLE.words in str(manifest.accountant):
        raise PrivacyError(
            f"the accountant is {manifest.accountant!r}, by which version 0.2 could state too small an epsilon of sums "
            "over samples; nothing says that the run was edited; linprobe account computes a proven epsilon of "
            "training steps alone; or train anew"
        )
    if manifest.accountant not in known:
        raise PrivacyError(f"the accountant is {manifest.accountant!r}; allowed: {', '.join(known)}; do not trust it")
    found = known[manifest.accountant]
    return found if selection is None else accountants.choose_accountant(found.name, selection.releases)


def claimed_texts(manifest: Manifest) -> tuple[str, str] | None:
    """The mechanism and the cross-check that follow from the releases of a run; None if it made none."""
    if manifest.accountant is None:
        return None
    if manifest.selection is not None:
        return selection_mechanism_text(manifest.unit), SELECTION_CROSS_CHECK
    sampled = manifest.sampling_rate is not None and manifest.sampling_rate < 1
    return mechanism_text(sampled, manifest.unit, manifest.releases or ()), accountant_of(manifest).cross_check.words


def limit_of(manifest: Manifest) -> accountants.AttackLimit | None:
    """Upper bound of an attack on one record, from the guarantee of a verified run; None without a guarantee."""
    if not manifest.private:
        return None
    _, delta = manifest.bound
    if manifest.selection is not None:
        return selection_limit(manifest.selection, delta, accountant_of(manifest))
    accountant = accountants.GAUSSIAN if manifest.accountant is None else accountant_of(manifest)
    return accountant.attack_limit(manifest.releases or (), delta)
