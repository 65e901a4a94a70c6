"""`linprobe verify`: whether a run is private, intact, and judged alike by two accountants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.accounting.per_instance import RecordLosses
from linprobe.errors import DataError, PrivacyError
from linprobe.options.requests import VerifyRequest
from linprobe.runs import signature
from linprobe.runs.derived import check_derived, check_names, not_checked, not_covered
from linprobe.runs.figures_file import read_test_figures
from linprobe.runs.manifest import read_manifest
from linprobe.runs.per_record_file import read_per_record
from linprobe.runs.run_files import MANIFEST, PER_RECORD, RUN_FILES, RunFiles
from linprobe.runs.run_folder import LoadedRun, loaded
from linprobe.runs.selected_run import check_run, words_of

FINDINGS = (
    "private",
    "epsilon",
    "epsilon_cross_check",
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


@dataclass(frozen=True)
class VerifiedRun:
    """A run whose manifest, ledger and files agree.

    Attributes:
        files: the bytes that were checked. run: manifest and model from these bytes.
        figures: the recomputed figures, from `check_run`. test_figures: as `read_test_figures` gives them.
        per_record: ids, losses and commitment key, private; None without a per-record file.
    """

    files: RunFiles
    run: LoadedRun
    figures: dict[str, Any]
    test_figures: dict[str, Any] | None
    per_record: tuple[list[str], RecordLosses, bytes] | None

    @property
    def manifest(self) -> dict[str, Any]:
        """The JSON object of the manifest."""
        return self.run.manifest


def verified(files: RunFiles) -> VerifiedRun:
    """Recompute a run's epsilon from its ledger with both accountants, and check every file.

    A run that is not private passes if its manifest says so. What a caller then uses of the run it takes from the
    result, never from the folder, where a file may have been exchanged in the meantime.

    Raises:
        PrivacyError: any mismatch, or an incomplete or damaged run. DataError: not a run folder, or one of another
            format.
    """
    manifest = _manifest(files)
    figures = check_run(manifest, files)
    check_names(manifest, files)
    check_derived(manifest, words_of(manifest))
    try:
        run = loaded(files, manifest)
        test_figures = read_test_figures(files, manifest)
        per_record = read_per_record(files.folder, manifest) if PER_RECORD in files.names else None
    except DataError as error:
        raise PrivacyError(str(error)) from None
    if per_record is not None and len(per_record[0]) != manifest["n_private"]:
        raise PrivacyError(
            f"n_private is {manifest['n_private']}, and {PER_RECORD} names {len(per_record[0])}; do not trust it"
        )
    return VerifiedRun(files, run, figures, test_figures, per_record)


def _manifest(files: RunFiles) -> dict[str, Any]:
    if MANIFEST not in files.names and not files.names.isdisjoint(RUN_FILES):
        raise PrivacyError(
            f"run {files.folder} is incomplete: it has no {MANIFEST}, which states the guarantee; restore it, or "
            "finish the run with linprobe train --resume"
        )
    return read_manifest(files, damaged=PrivacyError)


def verify(request: VerifyRequest) -> dict[str, Any]:
    """Judge whether a run is private, intact, and judged alike by two accountants.

    Returns: run, verified, private, epsilon, epsilon_cross_check, delta, gdp_mu, zcdp_rho, releases, data, signature
        and per_record (what was checked, in words), not_covered (pages that no digest and so no signature covers),
        stated_not_checked (keys of the manifest and files that nothing in the folder proves), refused (why it is not
        verified). Figures that were not verified are None.

    Raises:
        DataError: not a run folder, or an unreadable key or feature file.
    """
    folder = request.run
    result: dict[str, Any] = {"run": str(folder), "verified": False, **dict.fromkeys(FINDINGS)}
    files = RunFiles(folder)
    try:
        _check_signed(files, request.public_key, result)
        manifest = _check_private(files, request.features, result)
        for name, limit, stated in (
            ("max-eps", request.max_epsilon, manifest["epsilon"]),
            ("max-delta", request.max_delta, manifest["delta"]),
        ):
            if limit is not None and stated > limit:
                raise PrivacyError(f"run {folder} states {stated:.9g}; allowed by --{name}: {limit:g}; train with less")
    except PrivacyError as error:
        return {**result, "refused": str(error)}
    return {**result, "verified": True}


def _check_signed(files: RunFiles, public_key: Path | None, result: dict[str, Any]) -> None:
    if public_key is None:
        if signature.is_signed(files):
            result["signature"] = "not checked: give --public-key FILE"
        return
    key = signature.public_key(public_key)
    manifest = _manifest(files)  # an incomplete run lacks more than a signature
    signature.check_signature(files, key)
    uncovered = not_covered(manifest, files)
    if uncovered:
        raise PrivacyError(
            f"{', '.join(uncovered)} of {files.folder}: not covered by the signature, since the manifest does not "
            "list them (as in releases of linprobe 0.2.0); move them away to verify the rest, or ask the owner for a "
            "release made with --sign KEY"
        )
    result["signature"] = f"by the key in {public_key}"


def _check_private(files: RunFiles, features: Path | None, result: dict[str, Any]) -> dict[str, Any]:
    """The manifest, if the run has a guarantee and, with `features`, was trained on their private rows."""
    run = verified(files)
    manifest = run.manifest
    result["private"] = manifest["private"]
    if not manifest["private"]:
        raise PrivacyError(
            f"run {files.folder} is {manifest['guarantee']}; train with a private method and without a seed"
        )
    result |= {**run.figures, "delta": manifest["delta"], "data": "not checked: give --features FILE"}
    committed = manifest["per_record_commitment"] is not None
    absent = "absent, not checked" if committed else "none: nothing was released about private rows"
    result["per_record"] = absent if run.per_record is None else "as committed to"
    result["not_covered"] = not_covered(manifest, files)
    result["stated_not_checked"] = not_checked(manifest, files)
    if features is not None:
        from linprobe.commands._row_sources import open_features, refuse_training_rows
        from linprobe.commands._stated_rows import check_stated, private_mask

        with open_features(features) as opened:
            refuse_training_rows(opened)
            private = private_mask(run.run, run.per_record, opened)
            proved = check_stated(run.run, opened)
        result["stated_not_checked"] = [key for key in result["stated_not_checked"] if key not in proved]
        result["data"] = "the private rows are those the run was trained on"
        if private is None:
            result["data"] = "not committed to: the run makes no release about private rows"
    return manifest
