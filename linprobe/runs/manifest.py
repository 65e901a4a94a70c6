"""The manifest: one JSON object that a privacy reviewer can check line by line.

`docs/run-folder.md` explains every key. The manifest holds digests of the run's files and of itself. They detect an
edit, but not a forger who rewrites everything. To detect that, sign the folder.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from importlib.metadata import version
from typing import Any

from linprobe._version import __version__ as __version__
from linprobe.accounting.accountants import accountant_versions, gaussian_figures
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.events import GaussianEvent, Releases, grouped
from linprobe.accounting.figures import gaussian_words, rounded_up
from linprobe.errors import DataError, LinprobeError, PrivacyError
from linprobe.mechanisms.noise import INSECURE, SECURE
from linprobe.methods import Method
from linprobe.runs.derived import mechanism_text
from linprobe.runs.manifest_keys import check_keys, shown
from linprobe.runs.run_files import MANIFEST, RunFiles, digest_of
from linprobe.runs.units import ADJACENCIES, COUNTED, PROTECTED, RECORD

MANIFEST_FORMAT = 3
PUBLIC_QUANTITIES = (
    "public rows and their labels",
    "test rows, unless declared private, and the accuracy on them",
    "class names and their number",
    "method, options, clip norms, steps, noise multipliers",
    "weights of classes and rows, if given",
)
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
        return {**without_noise(method.private), **statement}
    releases = grouped(events)
    epsilon = budget.accountant.epsilon(releases, budget.delta)
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
        "accountant": budget.accountant.words,
        "cross_check": budget.accountant.cross_check.words,
        "accountant_versions": accountant_versions(),
        **statement,
    }


def without_noise(private: bool) -> dict[str, Any]:
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


def canonical_digest(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "manifest_digest"}
    return digest_of(json.dumps(content, sort_keys=True, ensure_ascii=False).encode())


def run_id_of(manifest: Mapping[str, Any]) -> str:
    """The id of a finished run. Runs of earlier versions have their commitment, which is random too."""
    return str(manifest.get("run_id") or manifest["private_commitment"])


def seal(manifest: dict[str, Any], contents: Mapping[str, bytes]) -> dict[str, Any]:
    """The manifest with fresh digests of the files with these contents, and of itself."""
    sealed = {**manifest, "files": {name: digest_of(content) for name, content in contents.items()}}
    sealed["manifest_digest"] = canonical_digest(sealed)
    return sealed


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated keys: a person would read the first value, a program the last."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return dict(pairs)


def _no_such_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def read_manifest(files: RunFiles, damaged: type[LinprobeError] = DataError) -> dict[str, Any]:
    """The manifest of a run folder.

    Raises:
        DataError: not a run folder, or a manifest of another format. `damaged`: an unreadable or incomplete manifest.
    """
    path = files.folder / MANIFEST
    try:
        text = files[MANIFEST].decode()
        manifest = json.loads(text, object_pairs_hook=_no_repeated_keys, parse_constant=_no_such_number)
        found = manifest.get("format")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{files.folder} is not a run folder: it has no {MANIFEST}; give what `linprobe train` printed"
        ) from None
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
