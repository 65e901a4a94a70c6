"""The manifest: one JSON object a privacy reviewer can check line by line.

`docs/privacy.md` explains every key. The manifest carries digests of the run's files and of itself; they catch an edit,
not a forger who rewrites everything, for which the folder must be signed.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from linprobe._version import __version__
from linprobe.accounting.accountants import (
    ACCOUNTANT_OF_RECORD,
    CROSS_CHECK,
    accountant_versions,
    accountants_agree,
    epsilon_by_cross_check,
    epsilon_of,
    gdp_mu,
)
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.events import GaussianEvent
from linprobe.errors import DataError, PrivacyError
from linprobe.mechanisms.entropy import INSECURE, SECURE
from linprobe.methods import Method

MANIFEST_FORMAT = 1
REQUIRED_KEYS = (
    "method",
    "guarantee",
    "private",
    "seed_kind",
    "epsilon",
    "delta",
    "epsilon_target",
    "gdp_mu",
    "accountant",
    "class_names",
    "features",
    "files",
    "published",
    "per_record_commitment",
    "manifest_digest",
)
ADJACENCY = "add or remove one private record"
PUBLIC_QUANTITIES = (
    "public rows and their labels",
    "test rows and the accuracy on them",
    "class names and their number",
    "number of private records",
    "method, options, clip norms, steps, noise multipliers",
)
SEED_KINDS = {SECURE: "os", INSECURE: "insecure", "none drawn": "none"}


def privacy_statement(
    method: Method,
    budget: Budget | None,
    events: list[GaussianEvent],
    *,
    n_private: int,
    n_public: int,
    noise_kind: str,
    insecure: bool,
) -> dict[str, Any]:
    """The guarantee of one training run, recomputed from the events that happened, not from what was planned.

    Raises:
        PrivacyError: the events cost more than the target, which would be a bug; no result is then written.
    """
    statement: dict[str, Any] = {
        "method": method.name,
        "paper": method.paper,
        "adjacency": ADJACENCY,
        "public": list(PUBLIC_QUANTITIES),
        "n_private": n_private,
        "n_public": n_public,
        "noise_source": noise_kind,
        "seed_kind": SEED_KINDS[noise_kind],
        "software": software_versions(),
    }
    if not method.private:
        return {
            "guarantee": "not private: the private rows were used without protection",
            "private": False,
            "mechanism": "none",
            **dict.fromkeys(_FIGURES),
            **statement,
        }
    if budget is None:
        return {
            "guarantee": "the private rows were not used: epsilon = 0, delta = 0",
            "private": True,
            "mechanism": "none",
            **dict.fromkeys(_FIGURES),
            "epsilon": 0.0,
            "delta": 0.0,
            "gdp_mu": 0.0,
            "zcdp_rho": 0.0,
            "steps": 0,
            **statement,
        }
    mu = gdp_mu(events)
    epsilon = epsilon_of(mu, budget.delta)
    if epsilon > budget.epsilon_target or len(events) != budget.n_steps:
        raise PrivacyError(
            f"the ledger holds {len(events)} releases worth epsilon {epsilon:.6g}; allowed: {budget.n_steps} worth at "
            f"most {budget.epsilon_target:g}; nothing was written; please report this"
        )
    return {
        "guarantee": guarantee_text(epsilon, budget.delta, insecure=insecure),
        "private": not insecure,
        "mechanism": "Gaussian noise on clipped sums over all private rows, composed",
        "epsilon": None if insecure else epsilon,
        "epsilon_if_seed_were_secret": epsilon if insecure else None,
        "delta": budget.delta,
        "epsilon_target": budget.epsilon_target,
        "gdp_mu": mu,
        "zcdp_rho": mu**2 / 2,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": 1.0,
        "steps": budget.n_steps,
        "accountant": ACCOUNTANT_OF_RECORD,
        "cross_check": CROSS_CHECK,
        "accountant_versions": accountant_versions(),
        **statement,
    }


_FIGURES = (
    "epsilon",
    "delta",
    "epsilon_target",
    "gdp_mu",
    "zcdp_rho",
    "noise_multiplier",
    "sampling_rate",
    "steps",
    "accountant",
)


def guarantee_text(epsilon: float, delta: float, *, insecure: bool) -> str:
    """The guarantee in one sentence."""
    if insecure:
        return "not private: the noise came from a seed the user gave"
    return f"({epsilon:.6g}, {delta:g})-differential privacy of the private rows, {ADJACENCY}"


def software_versions() -> dict[str, str]:
    """Versions of linprobe, Python, and the libraries whose arithmetic the result rests on."""
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
    """SHA-256 of a file, streamed."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seal(manifest: dict[str, Any], folder: Path, files: tuple[str, ...]) -> dict[str, Any]:
    """The manifest with fresh digests of `files` in `folder` and of itself."""
    sealed = {**manifest, "files": {name: file_digest(folder / name) for name in files}}
    sealed["manifest_digest"] = _canonical_digest(sealed)
    return sealed


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, refused if a key stands twice: a reader would believe the first, a program the last."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return dict(pairs)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder.

    Raises:
        DataError: no run folder, an unreadable manifest, or one from another version's format.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        raise DataError(f"{folder} is not a run folder: it has no manifest.json; give what `linprobe train` printed")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_repeated_keys)
        found = manifest.get("format")
        missing = [key for key in REQUIRED_KEYS if key not in manifest]
    except (ValueError, AttributeError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); restore it from a copy") from None
    if found != MANIFEST_FORMAT:
        raise DataError(
            f"{path} has format {found}; this linprobe ({__version__}) reads format {MANIFEST_FORMAT}; "
            "use the version that wrote it"
        )
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing[:3])}; it is not whole; restore it from a copy")
    return dict(manifest)


def check_manifest(manifest: dict[str, Any], folder: Path, events: list[GaussianEvent]) -> dict[str, Any]:
    """Recompute a run's guarantee from its ledger with both accountants and compare everything.

    Returns: what was recomputed: `epsilon`, `epsilon_cross_check`, `gdp_mu`, `releases`.

    Raises:
        PrivacyError: an edited manifest, weights or ledger, a missing file, or any figure that does not match.
    """
    if manifest.get("manifest_digest") != _canonical_digest(manifest):
        raise PrivacyError(f"{folder}/manifest.json was edited: its digest does not match its content; do not trust it")
    for name, digest in manifest["files"].items():
        path = folder / name
        found = file_digest(path) if path.is_file() else "missing"
        if found != digest:
            raise PrivacyError(
                f"{path} has digest {found[:16]}, the manifest says {digest[:16]}; do not trust this run"
            )
    mu, delta = gdp_mu(events), manifest["delta"]
    if manifest["accountant"] is None:
        if events:
            raise PrivacyError(f"{folder}/ledger.jsonl holds {len(events)} releases, the manifest says none were made")
        return {
            "epsilon": manifest["epsilon"],
            "epsilon_cross_check": manifest["epsilon"],
            "gdp_mu": mu,
            "releases": 0,
        }
    gradient = sum(event.purpose == "gradient" for event in events)
    epsilon, cross_check = epsilon_of(mu, delta), epsilon_by_cross_check(events, delta)
    stated = manifest["epsilon"] if manifest["private"] else manifest["epsilon_if_seed_were_secret"]
    if manifest["private"] != (manifest["seed_kind"] == "os"):
        raise PrivacyError(
            f"the manifest says private: {manifest['private']}, but its seed kind is {manifest['seed_kind']!r}; "
            "do not trust it"
        )
    if gradient != manifest["steps"]:
        raise PrivacyError(f"the ledger holds {gradient} gradient releases, the manifest {manifest['steps']}")
    if abs(mu - manifest["gdp_mu"]) > 1e-9 * mu or stated < epsilon * (1 - 1e-12):
        raise PrivacyError(f"the ledger costs epsilon {epsilon:.6g} (mu {mu:.6g}), the manifest says {stated:.6g}")
    multipliers = {event.noise_multiplier for event in events if event.purpose == "gradient"}
    if multipliers != {manifest["noise_multiplier"]} or manifest["sampling_rate"] != 1.0:
        raise PrivacyError(
            f"the ledger used noise multipliers {sorted(multipliers)} on all rows, the manifest says "
            f"{manifest['noise_multiplier']} at sampling rate {manifest['sampling_rate']}"
        )
    if abs(manifest["zcdp_rho"] - mu**2 / 2) > 1e-9 * mu**2:
        raise PrivacyError(
            f"zcdp_rho follows from the ledger as {mu**2 / 2:.6g}, the manifest says {manifest['zcdp_rho']}"
        )
    if manifest["guarantee"] != guarantee_text(stated, delta, insecure=not manifest["private"]):
        raise PrivacyError(f"the manifest's guarantee ({manifest['guarantee']!r}) does not follow from the ledger")
    if not accountants_agree(stated, cross_check):
        raise PrivacyError(f"{CROSS_CHECK} finds epsilon {cross_check:.6g}, the manifest says {stated:.6g}")
    if stated > manifest["epsilon_target"]:
        raise PrivacyError(f"epsilon {stated:.6g} is above the {manifest['epsilon_target']:g} that was asked for")
    return {"epsilon": epsilon, "epsilon_cross_check": cross_check, "gdp_mu": mu, "releases": len(events)}
