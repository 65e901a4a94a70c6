"""The claim of a run that private selection chose, and its check.

The ledger of such a run is a single line: the selection, with every budget that one of its runs may have spent.
"""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

from linprobe.accounting.accountants import ACCOUNTANTS, PLD, Accountant, AttackLimit, choose_accountant
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.ledger import read_ledger, read_selection
from linprobe.accounting.selection import SelectionEvent, selection_cross_check, selection_epsilon, selection_limit
from linprobe.errors import PrivacyError
from linprobe.runs.derived import mechanism_text
from linprobe.runs.manifest_check import (
    accountant_of,
    check_digests,
    check_manifest,
    check_seed,
    checked_unit,
    ledger_of,
    limit_of,
)
from linprobe.runs.run_files import LEDGER, MANIFEST, RunFiles
from linprobe.runs.units import ADJACENCIES, OWNER, PROTECTED, RECORD, unit_of

COUNT = {
    RECORD: "a noisy count of right private rows",
    OWNER: "a noisy sum over people of the share of their rows that are right",
}
CROSS_CHECK = "Renyi DP of repeated selection (dp-accounting)"


def accountant_words(accountant: Accountant) -> str:
    """The accountant of record in words; `accountant` judges a single run."""
    return f"privacy profile of private selection, single runs by {accountant.words}"


def mechanism_words(unit: str) -> str:
    """The selection in words."""
    return (
        f"private selection: the best of a geometric number of runs by {COUNT[unit]}; each run is Gaussian noise on "
        "clipped sums, composed"
    )


def selected_guarantee(epsilon: float, delta: float, unit: str) -> str:
    """The guarantee in one sentence."""
    return (
        f"({rounded_up(epsilon)}, {rounded_up(delta)})-differential privacy of {PROTECTED[unit]} (private selection) "
        f"under {ADJACENCIES[unit]}"
    )


def selected_statement(
    run: dict[str, Any], event: SelectionEvent, *, epsilon_target: float, delta: float, accountant: Accountant
) -> dict[str, Any]:
    """The claim of the selected run.

    Args:
        run: the statement of `privacy_statement` about the run alone. Its releases must be those of `event`.

    Raises:
        PrivacyError: other releases than planned, or a selection that costs more than the target. Both would be bugs.
    """
    made = sorted(astuple(Releases(**release)) for release in run["releases"])
    if made not in [sorted(map(astuple, planned)) for planned in event.runs]:
        raise PrivacyError("a run made other releases than planned; nothing was written; please report this")
    epsilon = selection_epsilon(event, delta, accountant)
    if not epsilon <= epsilon_target:
        raise PrivacyError(
            f"the selection costs epsilon {rounded_up(epsilon, 9)}; allowed: at most {epsilon_target:.9g}; nothing was "
            "written; please report this"
        )
    return {
        **run,
        "guarantee": selected_guarantee(epsilon, delta, unit_of(run)),
        "mechanism": mechanism_words(unit_of(run)),
        "epsilon": epsilon,
        "delta": delta,
        "epsilon_target": epsilon_target,
        "gdp_mu": None,
        "zcdp_rho": None,
        "releases": [],
        "selection": event.as_dict(),
        "accountant": accountant_words(accountant),
        "cross_check": CROSS_CHECK,
    }


def check_run(manifest: dict[str, Any], files: RunFiles) -> dict[str, Any]:
    """Recompute the guarantee of a run, selected or not, from its ledger: `check_selected` or `check_manifest`."""
    path, content = files.folder / LEDGER, ledger_of(files)
    selection = read_selection(path, content)
    if selection is None:
        return check_manifest(manifest, files, read_ledger(path, content))
    return check_selected(manifest, files, selection)


def words_of(manifest: dict[str, Any]) -> tuple[str, str] | None:
    """The mechanism and the cross-check that follow from the releases of a checked run; None if it made none."""
    if manifest["accountant"] is None:
        return None
    if "selection" in manifest:
        return mechanism_words(unit_of(manifest)), CROSS_CHECK
    words = accountant_of(manifest).cross_check.words
    return mechanism_text(manifest["sampling_rate"] < 1, unit_of(manifest)), words


def check_selected(manifest: dict[str, Any], files: RunFiles, event: SelectionEvent) -> dict[str, Any]:
    """Recompute the guarantee of a selected run from its ledger, and compare every figure and digest.

    Returns: the recomputed `epsilon`, `epsilon_cross_check`, `epsilon_autodp`, `gdp_mu` and `zcdp_rho` (None),
        and `releases`, 1.

    Raises:
        PrivacyError: an edited manifest, weights or ledger, a missing file, or any figure that does not match.
    """
    try:
        check_digests(manifest, files)
        return _recomputed(manifest, event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrivacyError(f"{files.folder}/{MANIFEST} has a missing or malformed {error}; do not trust it") from None


def _recomputed(manifest: dict[str, Any], event: SelectionEvent) -> dict[str, Any]:
    delta, stated, accountant = manifest["delta"], manifest["epsilon"], selection_accountant(manifest, event)
    check_seed(manifest)
    if not manifest["private"]:
        raise PrivacyError("the manifest says that a selected run is not private, which none is; do not trust it")
    if not (delta > 0 and delta * manifest["n_private"] < 1):
        raise PrivacyError(
            f"delta is {rounded_up(delta)} for {manifest['n_private']} private units; allowed: above 0 and below 1/N; "
            "do not trust it"
        )
    unit = checked_unit(manifest)
    if manifest["selection"] != event.as_dict():
        raise PrivacyError("the manifest's selection is not the ledger's; do not trust it")
    steps = Releases("gradient", manifest["noise_multiplier"], manifest["sampling_rate"], manifest["steps"])
    unexpected = {name: manifest[name] for name in ("gdp_mu", "zcdp_rho", "releases", "published") if manifest[name]}
    if unexpected or not any(steps in run for run in event.runs):
        raise PrivacyError(
            f"the manifest states {unexpected or steps}, which no run of the ledger has; do not trust it"
        )
    epsilon, cross_check = selection_epsilon(event, delta, accountant), selection_cross_check(event, delta)
    if stated < epsilon * (1 - PLD.tolerance):
        raise PrivacyError(
            f"the ledger costs epsilon {rounded_up(epsilon, 9)}, the manifest says {stated:.9g}; do not trust it"
        )
    if manifest["guarantee"] != selected_guarantee(stated, delta, unit):
        raise PrivacyError(
            f"the manifest's guarantee ({manifest['guarantee']!r}) does not follow from the ledger; do not trust it"
        )
    # both figures are upper bounds, as for sampled sums
    if not (math.isfinite(stated) and PLD.agrees(stated, cross_check)):
        raise PrivacyError(
            f"{CROSS_CHECK} finds epsilon {rounded_up(cross_check)}, the manifest says {rounded_up(stated)}; do not "
            "trust it"
        )
    if stated > manifest["epsilon_target"]:
        raise PrivacyError(
            f"epsilon {rounded_up(stated, 9)} is above the target, {manifest['epsilon_target']:.9g}; do not trust it"
        )
    return {
        "epsilon": epsilon,
        "epsilon_cross_check": cross_check,
        "epsilon_autodp": None,
        "gdp_mu": None,
        "zcdp_rho": None,
        "releases": 1,
    }


def limit_of_run(manifest: dict[str, Any]) -> AttackLimit | None:
    """What the guarantee of a verified run, selected or not, allows an attack on one record; None without one."""
    if "selection" not in manifest:
        return limit_of(manifest)
    event = SelectionEvent.from_dict(manifest["selection"])
    return selection_limit(event, manifest["delta"], selection_accountant(manifest, event))


def selection_accountant(manifest: dict[str, Any], event: SelectionEvent) -> Accountant:
    """The accountant of a single run.

    Raises:
        PrivacyError: an unknown one, or one that does not apply to the releases.
    """
    names = {accountant_words(accountant): name for name, accountant in ACCOUNTANTS.items()}
    if manifest["accountant"] not in names:
        raise PrivacyError(
            f"the manifest's accountant is {manifest['accountant']!r}, which judges no selection; do not trust it"
        )
    return choose_accountant(names[manifest["accountant"]], event.releases)
