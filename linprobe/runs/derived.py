"""What a manifest states beside its privacy figures: what follows from other keys is checked, the rest is listed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from linprobe.errors import PrivacyError
from linprobe.methods import METHODS
from linprobe.runs.noisy_test import check_noisy_test
from linprobe.runs.run_files import HISTORY, MANIFEST, MODEL, OPTIONAL_FILES, PAGES, PER_RECORD, SIGNATURE, RunFiles
from linprobe.runs.task import check_task
from linprobe.runs.units import NOUNS

# keys that `verify` recomputes, compares with another key, or compares with the files
CHECKED = frozenset(
    (
        *("format", "guarantee", "private", "mechanism", "epsilon", "epsilon_if_seed_were_secret", "delta", "gdp_mu"),
        *("zcdp_rho", "noise_multiplier", "sampling_rate", "steps", "releases", "accountant", "cross_check", "method"),
        *("paper", "adjacency", "noise_source", "seed_kind", "n_features", "n_classes", "files", "manifest_digest"),
        *("published", "test_balanced_accuracy", "per_record_commitment", "unit", "selection"),
    )
)
UNCHECKED_FILES = (MODEL, HISTORY, *OPTIONAL_FILES, *PAGES)  # at most their digests are compared


def mechanism_text(sampled: bool, unit: str) -> str:
    """How a run with noise used the private rows."""
    over = "Poisson samples of" if sampled else "all"
    return f"Gaussian noise on clipped sums over {over} private {NOUNS[unit]}, composed"


def check_derived(manifest: Mapping[str, Any], words: tuple[str, str] | None) -> None:
    """Compare the keys that follow from others.

    Args:
        words: the mechanism and the cross-check that follow from the releases; None if nothing was released.

    Raises:
        PrivacyError: a key contradicts another one.
    """
    method = METHODS.get(manifest["method"])
    if method is None:
        raise PrivacyError(f"method {manifest['method']!r} is not known; do not trust it")
    _same(manifest, "paper", method.paper)
    check_task(manifest)
    if words is not None:
        _same(manifest, "mechanism", words[0])
        _same(manifest, "cross_check", words[1])
        if manifest["private"]:
            _same(manifest, "epsilon_if_seed_were_secret", None)
            if manifest["adjacency"] not in manifest["guarantee"]:
                raise PrivacyError(
                    f"adjacency is {manifest['adjacency']!r}, which is not that of the guarantee; do not trust it"
                )
        stated = {"delta": "delta", "n_steps": "steps", "noise_multiplier": "noise_multiplier"}
        for option, key in {**stated, "sampling_rate": "sampling_rate"}.items():
            given = manifest["options"].get(option)
            if given is not None and given != manifest[key]:
                raise PrivacyError(f"option {option} is {given}, the manifest's {key} {manifest[key]}; do not trust it")
    if (manifest["test_rows"] == "none") != (manifest["n_test"] == 0):
        raise PrivacyError(f"test_rows is {manifest['test_rows']} and n_test {manifest['n_test']}; do not trust it")
    _check_accuracy(manifest)
    check_noisy_test(manifest)
    try:
        datetime.fromisoformat(manifest["created"])
    except ValueError:
        raise PrivacyError(f"created is {manifest['created'][:40]!r}, which is no time; do not trust it") from None


def _check_accuracy(manifest: Mapping[str, Any]) -> None:
    by_class, balanced = manifest["test_accuracy_per_class"], manifest["test_balanced_accuracy"]
    if by_class is None:
        _same(manifest, "test_balanced_accuracy", None)
        return
    unknown = set(by_class) - set(manifest["class_names"])
    if unknown:
        raise PrivacyError(f"test_accuracy_per_class names {min(unknown)!r}, which is no class; do not trust it")
    found = [value for value in by_class.values() if value is not None]
    if found and (balanced is None or not math.isclose(balanced, sum(found) / len(found), abs_tol=1e-9)):
        raise PrivacyError(
            f"test_balanced_accuracy is {balanced}, and the classes give {sum(found) / len(found):.9g}; do not trust it"
        )


def _same(manifest: Mapping[str, Any], key: str, value: Any) -> None:
    if manifest.get(key) != value:
        raise PrivacyError(
            f"{key} follows from the run as {value!r}, the manifest says {manifest.get(key)!r}; do not trust it"
        )


def check_names(manifest: Mapping[str, Any], files: RunFiles) -> None:
    """PrivacyError if the folder holds anything that is no part of the run."""
    known = {MANIFEST, SIGNATURE, PER_RECORD, *PAGES, *manifest["files"]}
    unknown = sorted(files.names - known)
    if unknown:
        raise PrivacyError(f"{files.folder} holds {unknown[0]!r}, which the manifest does not list; move it away")
    for name in sorted(files.names & {SIGNATURE, *PAGES}):
        try:
            files[name]
        except OSError as error:
            raise PrivacyError(f"{files.folder / name} cannot be read ({error.strerror}); move it away") from None


def not_covered(manifest: Mapping[str, Any], files: RunFiles) -> list[str]:
    """The pages in the folder that the manifest has no digest of: those of a release by linprobe 0.2.0.

    Neither a digest nor a signature says anything about them.
    """
    return [name for name in PAGES if name in files.names and name not in manifest["files"]]


def not_checked(manifest: Mapping[str, Any], files: RunFiles) -> list[str]:
    """The keys and files that a run states and nothing in the folder proves."""
    histograms = [release["file"] for release in manifest["published"] if release["file"] is not None]
    stated = [name for name in UNCHECKED_FILES if name in files.names]
    return [*(key for key in manifest if key not in CHECKED), *stated, *histograms]
