"""The manifest: one JSON object that a privacy reviewer can check line by line.

`docs/run-folder.md` explains every key. The manifest holds digests of the run's files and of itself. They detect an
edit, but not a forger who rewrites everything. To detect that, sign the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple
from importlib.metadata import version
from pathlib import Path
from typing import Any

from linprobe._version import __version__ as __version__
from linprobe.accounting.accountants import (
    ACCOUNTANTS,
    CROSS_CHECKS,
    accountant_versions,
    accountants_agree,
    composed_epsilon,
    gaussian_figures,
)
from linprobe.accounting.calibrate import GRADIENT, Budget
from linprobe.accounting.events import GaussianEvent, Releases, grouped
from linprobe.accounting.figures import gaussian_words, rounded_up
from linprobe.accounting.tradeoff import AttackLimit, attack_limit
from linprobe.atomic_files import open_regular, read_text
from linprobe.errors import DataError, LinprobeError, PrivacyError
from linprobe.mechanisms.noise import INSECURE, SECURE
from linprobe.methods import METHODS, Method
from linprobe.runs.derived import mechanism_text
from linprobe.runs.manifest_keys import RUN_FILES as RUN_FILES
from linprobe.runs.manifest_keys import check_keys, shown
from linprobe.runs.units import ADJACENCIES, COUNTED, PROTECTED, RECORD, unit_of
from linprobe.runs.unsealed import stopped_publishing, unsealed_events

MANIFEST_FORMAT = 3
TEST_FIGURES = "test_figures.json"  # of a run with public test rows
CONFIG = "config.toml"  # of a run of linprobe train
OPTIONAL_FILES = (TEST_FIGURES, CONFIG)
PUBLIC_QUANTITIES = (
    "public rows and their labels",
    "test rows, unless declared private, and the accuracy on them",
    "class names and their number",
    "method, options, clip norms, steps, noise multipliers",
    "weights of classes and rows, if given",
)
# gdp is a closed form; the other accountants compute on grids, which may round differently on another machine
STATED_TOLERANCE = {"gdp": 1e-12, "pld": 1e-6, "rdp": 1e-9}
SEED_KINDS = {SECURE: "os", INSECURE: "insecure", "none drawn": "none"}
FIGURES = (
    "epsilon",
    "delta",
    "epsilon_target",
    "gdp_mu",
    "zcdp_rho",
    "noise_multiplier",
    "sampling_rate",
    "steps",
    "releases",
    "accountant",
)


def privacy_statement(
    method: Method,
    budget: Budget | None,
    events: list[GaussianEvent],
    *,
    n_private: int,
    n_public: int,
    noise_kind: str,
    insecure: bool,
    unit: str = RECORD,
) -> dict[str, Any]:
    """The guarantee of one training run, recomputed from the recorded events, not from the plan.

    Args:
        n_private: number of private units. unit: `record` or `owner`.

    Raises:
        PrivacyError: the events cost more than the target. This would be a bug; no result is written.
    """
    statement: dict[str, Any] = {
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
        "software": _software_versions(),
    }
    if budget is None or not method.private:
        return {**_without_noise(method.private), **statement}
    releases = grouped(events)
    epsilon = composed_epsilon(releases, budget.delta, budget.accountant)
    if epsilon > budget.epsilon_target or _sorted_releases(releases) != _sorted_releases(budget.releases):
        raise PrivacyError(
            f"the ledger holds {len(events)} releases worth epsilon {rounded_up(epsilon, 9)}; allowed: "
            f"{sum(release.count for release in budget.releases)} as planned, worth at most "
            f"{budget.epsilon_target:.9g}; nothing was written; please report this"
        )
    return {
        "guarantee": guarantee_text(epsilon, budget.delta, releases, insecure=insecure, unit=unit),
        "private": not insecure,
        "mechanism": mechanism_text(budget.sampling_rate < 1, unit),
        "epsilon": None if insecure else epsilon,
        "epsilon_if_seed_were_secret": epsilon if insecure else None,
        "delta": budget.delta,
        "epsilon_target": budget.epsilon_target,
        **gaussian_figures(releases),
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.sampling_rate,
        "steps": budget.n_steps,
        "releases": [asdict(release) for release in releases],
        "accountant": ACCOUNTANTS[budget.accountant],
        "cross_check": ACCOUNTANTS[CROSS_CHECKS[budget.accountant]],
        "accountant_versions": accountant_versions(),
        **statement,
    }


def _without_noise(private: bool) -> dict[str, Any]:
    """The claims of a run that released nothing with noise: no guarantee, or `private`, private rows were not used."""
    if not private:
        return {
            "guarantee": "not private: the private rows were used without protection",
            "private": False,
            "mechanism": "none",
            **dict.fromkeys(FIGURES),
        }
    return {
        "guarantee": "the private rows were not used: epsilon = 0, delta = 0",
        "private": True,
        "mechanism": "none",
        **dict.fromkeys(FIGURES),
        "epsilon": 0.0,
        "delta": 0.0,
        "gdp_mu": 0.0,
        "zcdp_rho": 0.0,
        "steps": 0,
        "releases": [],
    }


def _sorted_releases(releases: Iterable[Releases]) -> list[Releases]:
    """Releases merged by kind and sorted, so that a comparison does not depend on their order."""
    counts: Counter[tuple[str, float, float]] = Counter()
    for release in releases:
        counts[release.purpose, release.noise_multiplier, release.sampling_rate] += release.count
    return sorted((Releases(*kind, count) for kind, count in counts.items()), key=astuple)


def guarantee_text(epsilon: float, delta: float, releases: Sequence[Releases], *, insecure: bool, unit: str) -> str:
    """The guarantee in one sentence: the headline figures, rounded up, what is protected, and the adjacency."""
    if insecure:
        return "not private: the noise came from a seed the user gave"
    return (
        f"({rounded_up(epsilon)}, {rounded_up(delta)})-differential privacy of {PROTECTED[unit]} "
        f"({gaussian_words(**gaussian_figures(releases))}) under {ADJACENCIES[unit]}"
    )


def _software_versions() -> dict[str, str]:
    """Versions of linprobe, Python, and the libraries whose arithmetic decides the result."""
    names = ("numpy", "scipy", "scikit-learn", "cryptography")
    return {
        "linprobe": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _canonical_digest(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "manifest_digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seal(manifest: dict[str, Any], folder: Path, files: tuple[str, ...]) -> dict[str, Any]:
    """The manifest with fresh digests of `files` in `folder` and of itself."""
    sealed = {**manifest, "files": {name: file_digest(folder / name) for name in files}}
    sealed["manifest_digest"] = _canonical_digest(sealed)
    return sealed


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated keys: a person would read the first value, a program the last."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return dict(pairs)


def _no_such_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def read_manifest(folder: Path, damaged: type[LinprobeError] = DataError) -> dict[str, Any]:
    """The manifest of a run folder.

    Raises:
        DataError: not a run folder, or a manifest of another format. `damaged`: an unreadable or incomplete manifest.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        raise DataError(f"{folder} is not a run folder: it has no manifest.json; give what `linprobe train` printed")
    try:
        manifest = json.loads(read_text(path), object_pairs_hook=_no_repeated_keys, parse_constant=_no_such_number)
        found = manifest.get("format")
    except (ValueError, AttributeError, OSError, RecursionError) as error:
        raise damaged(f"{path} cannot be read ({error}); restore it from a copy") from None
    if found != MANIFEST_FORMAT:
        raise DataError(
            f"{path} has format {shown(found)}; this linprobe ({__version__}) reads format {MANIFEST_FORMAT}; "
            "use the version that wrote it"
        )
    try:
        check_keys(manifest)
    except ValueError as error:
        raise damaged(f"{path}: {error}; restore it from a copy") from None
    return dict(manifest)


def check_manifest(
    manifest: dict[str, Any], folder: Path, events: list[GaussianEvent], *, recovering: bool = False
) -> dict[str, Any]:
    """Recompute a run's guarantee from its ledger with both accountants, and compare every figure and digest.

    With `recovering`, the ledger file may hold unsealed histograms after `events`.

    Returns: the recomputed `epsilon`, `epsilon_cross_check`, `gdp_mu`, `zcdp_rho`, `releases`.

    Raises:
        PrivacyError: an edited manifest, weights or ledger, a missing file, or any figure that does not match.
    """
    try:
        return _recomputed(manifest, folder, events, recovering)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrivacyError(f"{folder}/manifest.json has a missing or malformed {error}; do not trust it") from None


def _recomputed(
    manifest: dict[str, Any], folder: Path, events: list[GaussianEvent], recovering: bool
) -> dict[str, Any]:
    check_digests(manifest, folder, recovering)
    if manifest["accountant"] is None:
        if events:
            raise PrivacyError(
                f"{folder}/ledger.jsonl holds {len(events)} releases, the manifest says that none were made"
            )
        return _nothing_released(manifest)
    accountant = accountant_of(manifest)
    releases, delta = grouped(events), manifest["delta"]
    figures = gaussian_figures(releases)
    if accountant == "gdp" and figures["gdp_mu"] is None:
        raise PrivacyError("the ledger holds sampled releases, which the manifest's accountant does not cover")
    epsilon = composed_epsilon(releases, delta, accountant)
    cross_check = composed_epsilon(releases, delta, CROSS_CHECKS[accountant])
    if not (delta > 0 and delta * manifest["n_private"] < 1):
        raise PrivacyError(
            f"delta is {rounded_up(delta)} for {manifest['n_private']} private units; allowed: above 0 and below 1/N"
        )
    check_seed(manifest)
    _check_releases(manifest, events, releases)
    stated = stated_epsilon(manifest)
    if stated < epsilon * (1 - STATED_TOLERANCE[accountant]):
        raise PrivacyError(f"the ledger costs epsilon {rounded_up(epsilon, 9)}, the manifest says {stated:.9g}")
    for name, value in figures.items():
        found = manifest[name]
        if (value is None) != (found is None) or (value is not None and abs(found - value) > 1e-9 * value):
            raise PrivacyError(f"{name} follows from the ledger as {value}, the manifest says {found}")
    unit = checked_unit(manifest)
    if manifest["guarantee"] != guarantee_text(stated, delta, releases, insecure=not manifest["private"], unit=unit):
        raise PrivacyError(f"the manifest's guarantee ({manifest['guarantee']!r}) does not follow from the ledger")
    if not accountants_agree(accountant, stated, cross_check):
        raise PrivacyError(
            f"{ACCOUNTANTS[CROSS_CHECKS[accountant]]} finds epsilon {rounded_up(cross_check)}, "
            f"the manifest says {rounded_up(stated)}"
        )
    if not math.isfinite(stated):
        raise PrivacyError(f"epsilon is {stated}, which is no guarantee")
    if stated > manifest["epsilon_target"]:
        raise PrivacyError(f"epsilon {rounded_up(stated, 9)} is above the target, {manifest['epsilon_target']:.9g}")
    return {
        "epsilon": epsilon,
        "epsilon_cross_check": cross_check,
        **figures,
        "releases": len(events),
    }


def check_digests(manifest: dict[str, Any], folder: Path, recovering: bool = False) -> None:
    """Compare the manifest and every file it lists with their digests."""
    if manifest.get("manifest_digest") != _canonical_digest(manifest):
        raise PrivacyError(f"{folder}/manifest.json was edited: its digest does not match its content; do not trust it")
    for name, digest in manifest["files"].items():
        path = folder / name
        found = _digest_or_why(path)
        if found != digest:
            if name == "ledger.jsonl" and unsealed_events(path, digest) is not None:
                if recovering:
                    continue
                raise PrivacyError(stopped_publishing(folder))
            found = found[:16] if len(found) == len(digest) else found
            raise PrivacyError(f"{path} has digest {found}, the manifest says {digest[:16]}; do not trust this run")


def _digest_or_why(path: Path) -> str:
    """The digest of a regular file, or why there is none."""
    try:
        return file_digest(path)
    except OSError as error:
        return "missing" if isinstance(error, FileNotFoundError) else f"none: {error.strerror}"


def _nothing_released(manifest: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run without noisy releases, whose claims must be those of its method."""
    method = METHODS.get(manifest["method"])
    if method is None or method.spends or manifest["published"]:
        raise PrivacyError(
            f"method {manifest['method']} releases sums with noise, the ledger is empty; do not trust it"
        )
    for key, value in _without_noise(method.private).items():
        if manifest[key] != value:
            raise PrivacyError(f"{key} is {value!r} for {method.name}, the manifest says {manifest[key]!r}")
    return {
        "epsilon": manifest["epsilon"],
        "epsilon_cross_check": manifest["epsilon"],
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
        return attack_limit((), manifest["delta"], "gdp")
    releases = [Releases(**release) for release in manifest["releases"]]
    return attack_limit(releases, manifest["delta"], accountant_of(manifest))


def accountant_of(manifest: dict[str, Any]) -> str:
    """The short name of the accountant that the manifest states in words.

    Raises:
        PrivacyError: no known accountant has that description.
    """
    names = {title: name for name, title in ACCOUNTANTS.items()}
    if manifest["accountant"] not in names:
        raise PrivacyError(
            f"the manifest's accountant is {manifest['accountant']!r}; allowed: {', '.join(names)}; do not trust it"
        )
    return names[manifest["accountant"]]


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
