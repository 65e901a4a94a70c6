"""The check of a manifest: every figure recomputed from the ledger, every file compared with its digest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from linprobe.accounting.accountants import (
    ACCOUNTANTS,
    AUTODP,
    GAUSSIAN,
    Accountant,
    AttackLimit,
    gaussian_figures,
    third_opinion,
)
from linprobe.accounting.calibrate import GRADIENT
from linprobe.accounting.events import GaussianEvent, Releases, grouped
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.ledger import unreadable
from linprobe.errors import PrivacyError
from linprobe.mechanisms.noise import INSECURE, SECURE
from linprobe.methods import METHODS
from linprobe.runs.manifest import canonical_digest, guarantee_text, without_noise
from linprobe.runs.run_files import LEDGER, MANIFEST, PAGES, RunFiles, digest_of
from linprobe.runs.units import ADJACENCIES, unit_of
from linprobe.runs.unsealed import stopped_publishing, unsealed_events


def check_manifest(
    manifest: dict[str, Any], files: RunFiles, events: list[GaussianEvent], *, recovering: bool = False
) -> dict[str, Any]:
    """Recompute a run's guarantee from its ledger with all accountants, and compare every figure and digest.

    With `recovering`, the ledger file may hold unsealed histograms after `events`, and the pages may state their cost.

    Returns: the recomputed `epsilon`, `epsilon_cross_check`, `epsilon_autodp` (None without an opinion),
        `gdp_mu`, `zcdp_rho`, `releases`.

    Raises:
        PrivacyError: an edited manifest, weights or ledger, a missing file, or any figure that does not match.
    """
    try:
        return _recomputed(manifest, files, events, recovering)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrivacyError(f"{files.folder}/{MANIFEST} has a missing or malformed {error}; do not trust it") from None


def _recomputed(
    manifest: dict[str, Any], files: RunFiles, events: list[GaussianEvent], recovering: bool
) -> dict[str, Any]:
    check_digests(manifest, files, recovering)
    if manifest["accountant"] is None:
        if events:
            raise PrivacyError(
                f"{files.folder}/{LEDGER} holds {len(events)} releases, the manifest says that none were made; do "
                "not trust it"
            )
        return _nothing_released(manifest)
    accountant = accountant_of(manifest)
    releases, delta = grouped(events), manifest["delta"]
    figures = gaussian_figures(releases)
    if not accountant.covers(releases):
        raise PrivacyError(
            "the ledger holds sampled releases, which the manifest's accountant does not cover; do not trust it"
        )
    epsilon = accountant.epsilon(releases, delta)
    cross_check, opinion = accountant.cross_check.epsilon(releases, delta), third_opinion(accountant, releases, delta)
    if not (delta > 0 and delta * manifest["n_private"] < 1):
        raise PrivacyError(
            f"delta is {rounded_up(delta)} for {manifest['n_private']} private units; allowed: above 0 and below 1/N; "
            "do not trust it"
        )
    check_seed(manifest)
    _check_releases(manifest, events, releases)
    stated = stated_epsilon(manifest)
    if stated < epsilon * (1 - accountant.tolerance):
        raise PrivacyError(
            f"the ledger costs epsilon {rounded_up(epsilon, 9)}, the manifest says {stated:.9g}; do not trust it"
        )
    for name, value in figures.items():
        found = manifest[name]
        if found != value:
            raise PrivacyError(f"{name} follows from the ledger as {value}, the manifest says {found}; do not trust it")
    unit = checked_unit(manifest)
    if manifest["guarantee"] != guarantee_text(stated, delta, releases, insecure=not manifest["private"], unit=unit):
        raise PrivacyError(
            f"the manifest's guarantee ({manifest['guarantee']!r}) does not follow from the ledger; do not trust it"
        )
    if not accountant.agrees(stated, cross_check):
        raise PrivacyError(
            f"{accountant.cross_check.words} finds epsilon {rounded_up(cross_check)}, "
            f"the manifest says {rounded_up(stated)}; do not trust it"
        )
    if opinion is not None and not AUTODP.agrees(epsilon, opinion):
        raise PrivacyError(
            f"{AUTODP.words} finds epsilon {rounded_up(opinion, 9)}, the ledger costs {rounded_up(epsilon, 9)}; do not "
            "trust it"
        )
    if not math.isfinite(stated):
        raise PrivacyError(f"epsilon is {stated}, which is no guarantee; do not trust it")
    if stated > manifest["epsilon_target"]:
        raise PrivacyError(
            f"epsilon {rounded_up(stated, 9)} is above the target, {manifest['epsilon_target']:.9g}; do not trust it"
        )
    return {
        "epsilon": epsilon,
        "epsilon_cross_check": cross_check,
        "epsilon_autodp": opinion,
        **figures,
        "releases": len(events),
    }


def check_digests(manifest: dict[str, Any], files: RunFiles, recovering: bool = False) -> None:
    """Compare the manifest and every file it lists with their digests."""
    if manifest.get("manifest_digest") != canonical_digest(manifest):
        raise PrivacyError(
            f"{files.folder}/{MANIFEST} was edited: its digest does not match its content; do not trust it"
        )
    for name, digest in manifest["files"].items():
        found = _digest_or_why(files, name)
        if found == digest or (recovering and name in PAGES):
            continue
        if name == LEDGER and unsealed_events(ledger_of(files), digest) is not None:
            if recovering:
                continue
            raise PrivacyError(stopped_publishing(files.folder))
        found = found[:16] if len(found) == len(digest) else found
        raise PrivacyError(
            f"{files.folder / name} has digest {found}, the manifest says {digest[:16]}; do not trust this run"
        )


def ledger_of(files: RunFiles) -> bytes:
    """The content of the ledger. PrivacyError if it cannot be read."""
    try:
        return files[LEDGER]
    except OSError as error:
        raise unreadable(files.folder / LEDGER, error) from None


def _digest_or_why(files: RunFiles, name: str) -> str:
    """The digest of a regular file, or why there is none."""
    try:
        return digest_of(files[name])
    except OSError as error:
        return "missing" if isinstance(error, FileNotFoundError) else f"none: {error.strerror}"


def _nothing_released(manifest: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run without noisy releases, whose claims must be those of its method."""
    method = METHODS.get(manifest["method"])
    if method is None or method.spends or manifest["published"]:
        raise PrivacyError(
            f"method {manifest['method']} releases sums with noise, the ledger is empty; do not trust it"
        )
    for key, value in without_noise(method.private).items():
        if manifest[key] != value:
            raise PrivacyError(
                f"{key} is {value!r} for {method.name}, the manifest says {manifest[key]!r}; do not trust it"
            )
    return {
        "epsilon": manifest["epsilon"],
        "epsilon_cross_check": manifest["epsilon"],
        "epsilon_autodp": None,
        "gdp_mu": manifest["gdp_mu"],
        "zcdp_rho": manifest["zcdp_rho"],
        "releases": 0,
    }


def checked_unit(manifest: dict[str, Any]) -> str:
    """The unit of privacy, with which adjacency and number of units agree."""
    unit = unit_of(manifest)
    n_units = manifest.get("n_units", manifest["n_private"])
    if unit not in ADJACENCIES or manifest["adjacency"] != ADJACENCIES[unit] or n_units != manifest["n_private"]:
        raise PrivacyError(
            f"the manifest's unit {unit!r}, its adjacency and its numbers {n_units} and {manifest['n_private']} of "
            f"private units contradict each other; allowed: {', '.join(ADJACENCIES)}; do not trust it"
        )
    return unit


def check_seed(manifest: dict[str, Any]) -> None:
    """Compare the four places that say where the key of the noise came from."""
    kind, source, seed = manifest["seed_kind"], manifest["noise_source"], manifest["options"].get("insecure_seed")
    stated = (manifest["private"], kind, source, seed is not None)
    if stated not in ((True, "os", SECURE, False), (False, "insecure", INSECURE, True)):
        raise PrivacyError(
            f"the manifest says private: {manifest['private']}, noise from {source!r}, seed kind {kind!r} and seed "
            f"{seed}, which contradict each other; do not trust it"
        )


def _check_releases(manifest: dict[str, Any], events: list[GaussianEvent], releases: Sequence[Releases]) -> None:
    """Compare the steps, the published histograms and the list of releases with the ledger."""
    steps = [release for release in releases if release.purpose == GRADIENT]
    claimed = [Releases(GRADIENT, manifest["noise_multiplier"], manifest["sampling_rate"], manifest["steps"])]
    if steps != claimed:
        raise PrivacyError(
            f"the ledger holds {_described(steps)} for the steps, the manifest {_described(claimed)}; do not trust it"
        )
    paid = sorted(event.noise_multiplier for event in events if event.purpose == "histogram")
    listed = sorted(release["noise_multiplier"] for release in manifest["published"])
    if paid != listed:
        raise PrivacyError(
            f"the manifest lists published histograms with noise {listed}, the ledger paid for {paid}; do not trust it"
        )
    for release in manifest["published"]:
        if release["file"] is not None and release["file"] not in manifest["files"]:
            raise PrivacyError(f"the manifest has no digest of the published {release['file']}; do not trust it")
    if manifest["releases"] != [asdict(release) for release in releases]:
        raise PrivacyError(
            f"the manifest's list of releases is not the ledger's, {_described(releases)}; do not trust it"
        )


def limit_of(manifest: dict[str, Any]) -> AttackLimit | None:
    """What the guarantee of a verified run allows an attack on one record; None for a run without a guarantee."""
    if not manifest["private"]:
        return None
    if manifest["accountant"] is None:
        return GAUSSIAN.attack_limit((), manifest["delta"])
    releases = [Releases(**release) for release in manifest["releases"]]
    return accountant_of(manifest).attack_limit(releases, manifest["delta"])


def accountant_of(manifest: dict[str, Any]) -> Accountant:
    """The accountant that the manifest states in words.

    Raises:
        PrivacyError: no known accountant has that description.
    """
    by_words = {accountant.words: accountant for accountant in ACCOUNTANTS.values()}
    if manifest["accountant"] not in by_words:
        raise PrivacyError(
            f"the manifest's accountant is {manifest['accountant']!r}; allowed: {', '.join(by_words)}; do not trust it"
        )
    return by_words[manifest["accountant"]]


def stated_epsilon(manifest: dict[str, Any]) -> float:
    """Epsilon of a run that released something; for a run with an insecure seed, as if the seed were secret."""
    epsilon: float = manifest["epsilon"] if manifest["private"] else manifest["epsilon_if_seed_were_secret"]
    return epsilon


def _described(releases: Iterable[Releases]) -> str:
    return ", ".join(
        f"{release.count} {release.purpose} releases at noise multiplier {release.noise_multiplier:g} and sampling "
        f"rate {release.sampling_rate:g}"
        for release in releases
    )
