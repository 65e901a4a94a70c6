"""`linprobe verify`: check that a run is private and intact, and that all accountants agree on its guarantee."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from linprobe.accounting.figures import rounded_up
from linprobe.errors import PrivacyError
from linprobe.options.requests import VerifyRequest
from linprobe.runs import signature
from linprobe.runs.check import check_complete, check_signature, not_checked, not_covered, verified
from linprobe.runs.manifest import PER_RECORD, SIGNATURE, Manifest
from linprobe.runs.run_folder import RunFolder

FINDINGS = (
    "private",
    "epsilon",
    "epsilon_cross_check",
    "epsilon_autodp",
    "epsilon_dp_accounting",
    "delta",
    "gdp_mu",
    "zcdp_rho",
    "releases",
    "data",
    "signature",
    "per_record",
    "not_covered",
    "stated_not_checked",
    "refused",
)


def verify_run(request: VerifyRequest) -> dict[str, Any]:
    """Check that a run is private and intact, and that all accountants agree on its guarantee.

    Returns: run, verified, private, epsilon, epsilon_cross_check, epsilon_autodp and epsilon_dp_accounting (third
        opinions on sums over all rows and over samples; None where the library has none), delta, gdp_mu, zcdp_rho,
        releases, data, signature and per_record (what was checked, in words), not_covered (pages that no digest and so
        no signature covers), stated_not_checked (keys of the manifest and files that nothing in the folder proves),
        refused (why it is not verified). Figures that were not verified are None.
    Raises DataError: not a run folder, or an unreadable key or feature file.
    """
    folder, features, unlabelled, before = request.run, request.features, request.unlabelled, request.before
    result: dict[str, Any] = {"run": str(folder), "verified": False, **dict.fromkeys(FINDINGS)}
    run = RunFolder(folder)
    try:
        proved = _check_signed(run, request.public_key, result)
        bound = _check_private(run, features, result).bound
        if unlabelled is not None or before is not None:
            from linprobe.runs.refinement import check_refinement

            proved += check_refinement(run, unlabelled, before, features)
        result["stated_not_checked"] = [key for key in result["stated_not_checked"] if key not in proved]
        limits = (("epsilon", "max-eps", request.max_epsilon), ("delta", "max-delta", request.max_delta))
        for (what, flag, limit), stated in zip(limits, bound, strict=True):
            if limit is not None and stated > limit:
                raise PrivacyError(
                    f"run {folder} has {what} {rounded_up(stated)}, above --{flag} {limit:g}; ask for a run with a "
                    f"smaller {what}"
                )
    except PrivacyError as error:
        return {**result, "refused": str(error)}
    return {**result, "verified": True}


def _check_signed(run: RunFolder, public_key: Path | None, result: dict[str, Any]) -> list[str]:
    """The files that the key proves."""
    if public_key is None:
        if SIGNATURE in run.names:
            result["signature"] = "not checked: give --public-key FILE"
        return []
    key = signature.public_key(public_key)
    check_complete(run)  # an incomplete run lacks more than a signature
    check_signature(run, key)
    uncovered = not_covered(run)
    if uncovered:
        raise PrivacyError(
            f"{', '.join(uncovered)} of {run.folder}: not covered by the signature, since the manifest does not "
            "list them (as in releases of linprobe 0.2.0); move them away to verify the rest, or ask the owner for a "
            "release made with --sign KEY"
        )
    result["signature"] = f"by the key in {public_key}"
    return [SIGNATURE]


def _check_private(run: RunFolder, features: Path | None, result: dict[str, Any]) -> Manifest:
    """The manifest, if the run has a guarantee and, with `features`, was trained on their private rows."""
    recomputed, manifest = verified(run), run.manifest
    result["private"] = manifest.private
    if not manifest.private:
        raise PrivacyError(f"run {run.folder} is {manifest.guarantee}; train with a private method and without a seed")
    result |= {**asdict(recomputed), "delta": manifest.delta, "data": "not checked: give --features FILE"}
    committed = manifest.per_record_commitment is not None
    absent = "absent, not checked" if committed else "none: nothing was released about private rows"
    if run.may_read_per_record:
        result["per_record"] = "matches its commitment; losses not recomputed"
    else:
        hidden = "private, and this user may not read it; not checked"
        result["per_record"] = hidden if PER_RECORD in run.names else absent
    result["not_covered"] = not_covered(run)
    result["stated_not_checked"] = not_checked(run)
    if features is not None:
        from linprobe.data.dataset import open_features, refuse_training_rows
        from linprobe.runs.matching import check_stated, private_mask

        with open_features(features) as opened:
            refuse_training_rows(opened)
            private = private_mask(run, opened)
            proved = check_stated(run, opened)
        result["stated_not_checked"] = [key for key in result["stated_not_checked"] if key not in proved]
        result["data"] = "private rows match the run"
        if private is None:
            result["data"] = "not committed to: the run makes no release about private rows"
    return manifest
