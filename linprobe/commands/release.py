"""`linprobe release`: what may leave the building of a run, and nothing else."""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from linprobe.accounting.figures import rounded_up
from linprobe.atomic_files import replace_when_complete
from linprobe.commands._dry_run import DryRun, bytes_in_words, listed
from linprobe.commands.verify import VerifiedRun, verified
from linprobe.data.array_files import array_names
from linprobe.errors import LinprobeError, PrivacyError, advice
from linprobe.reporting.model_card import model_card
from linprobe.reporting.registry_claim import Publisher, registry_claim
from linprobe.runs import signature
from linprobe.runs.claim import claimed
from linprobe.runs.run_files import CARD, CLAIM, MANIFEST, MODEL, OPTIONAL_FILES, RUN_FILES, SIGNATURE, RunFiles

PUBLISHED = re.compile(r"published_histogram_\d+\.json")
MODEL_ARRAYS = {"weights", "bias"}


@dataclass(frozen=True)
class ReleaseRequest:
    """The arguments of `linprobe release`; the publisher's words are those of `Publisher`."""

    run: Path
    out: Path
    name: str | None = None
    curators: tuple[str, ...] = ()
    use: str | None = None
    region: str | None = None
    licence: str | None = None
    public_key: Path | None = None


def release(request: ReleaseRequest) -> dict[str, Any]:
    """Write a folder with the public files of a verified, private run, a model card and a registry entry.

    Returns: release, files (their names), epsilon, delta, signed.

    Raises:
        PrivacyError: a run that is not private or does not verify, a signature that is not by the public key, or a
            file that must not leave. UsageError: `out` exists. DataError: not a run folder.
    """
    with claimed(request.out, "release folder"):
        run, copied = _checked(request)
        partial = request.out.with_name(f".{request.out.name}.{secrets.token_hex(4)}.partial")
        try:
            partial.mkdir()
            _write(partial, request, run, copied)
            partial.rename(request.out)
        except OSError as error:
            raise LinprobeError(f"release folder {request.out} cannot be written ({error}); {advice(error)}") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return {
        "release": str(request.out),
        "files": sorted(path.name for path in request.out.iterdir()),
        "epsilon": run.manifest["epsilon"],
        "delta": run.manifest["delta"],
        "signed": SIGNATURE in copied,
    }


def dry_run(request: ReleaseRequest) -> DryRun:
    """What `release` would read and write: the run is verified, and nothing is copied.

    Returns: run, out, files (bytes by name of what is copied), made (names of what is written besides), epsilon, delta,
        signed.

    Raises:
        LinprobeError: as `release`.
    """
    with claimed(request.out, "release folder"):
        run, copied = _checked(request)
    signed = SIGNATURE in copied
    facts = {
        "run": str(request.run),
        "out": str(request.out),
        "files": {name: len(content) for name, content in copied.items()},
        "made": [CARD, CLAIM],
        "epsilon": run.manifest["epsilon"],
        "delta": run.manifest["delta"],
        "signed": signed,
    }
    sizes = [f"{name} ({bytes_in_words(size)})" for name, size in facts["files"].items()]
    lines = [
        ("reads", f"{request.run}: verified, {'signed' if signed else 'not signed'}"),
        ("spends", "nothing; training has spent all of it"),
        ("states", f"epsilon {rounded_up(facts['epsilon'])} at delta {rounded_up(facts['delta'])}"),
        *listed("writes", [f"{request.out}: {', '.join(sizes)}", f"and {CARD} and {CLAIM}, from what the run states"]),
    ]
    return DryRun(facts, lines)


def _checked(request: ReleaseRequest) -> tuple[VerifiedRun, dict[str, bytes]]:
    """The verified run, and the contents of its files that may leave, by name.

    Raises:
        PrivacyError: as `release`.
    """
    files = RunFiles(request.run)
    if request.public_key is not None:
        signature.check_signature(files, signature.public_key(request.public_key))
    run = verified(files)
    if not run.manifest["private"]:
        raise PrivacyError(
            f"run {request.run} is {run.manifest['guarantee']}; only private runs may leave; train with a private "
            "method and without a seed"
        )
    copied = [*_public_files(run), MANIFEST, *([SIGNATURE] if signature.is_signed(files) else [])]
    return run, {name: files[name] for name in copied}


def _public_files(run: VerifiedRun) -> list[str]:
    """The files of a run that may leave, by name.

    Raises:
        PrivacyError: the manifest lists any other file, or the model holds more than weights.
    """
    manifest, folder = run.manifest, run.files.folder
    histograms = {release["file"] for release in manifest["published"] if release["file"] is not None}
    names = list(manifest["files"])
    for name in names:
        if name not in (*RUN_FILES, *OPTIONAL_FILES) and not (name in histograms and PUBLISHED.fullmatch(name)):
            raise PrivacyError(
                f"the manifest of {folder} lists {name!r}, which is no public file of a run; allowed: "
                f"{', '.join((*RUN_FILES, *OPTIONAL_FILES))} and published histograms; do not publish this run"
            )
    arrays = array_names(folder / MODEL, BytesIO(run.files[MODEL]))
    if set(arrays) != MODEL_ARRAYS:
        raise PrivacyError(
            f"{folder / MODEL} holds {', '.join(arrays)}; allowed: weights and bias; do not publish this run"
        )
    return names


def _write(partial: Path, request: ReleaseRequest, run: VerifiedRun, copied: dict[str, bytes]) -> None:
    for name, content in copied.items():
        with replace_when_complete(partial / name) as stream:
            stream.write(content)
    publisher = Publisher(
        name=request.name or request.out.resolve().name,
        published=datetime.now(UTC).date().isoformat(),
        curators=request.curators,
        use=request.use,
        region=request.region,
        licence=request.licence,
    )
    for name, text in (
        (CARD, model_card(run.manifest, run.figures, publisher, signed=SIGNATURE in copied)),
        (CLAIM, registry_claim(run.manifest, publisher)),
    ):
        with replace_when_complete(partial / name, "w") as stream:
            stream.write(text)
