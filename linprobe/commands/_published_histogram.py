"""Publishes a noisy histogram of per-record epsilon, charges it to the run, and recovers an interrupted publication."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from linprobe.accounting.accountants import GAUSSIAN, gaussian_figures
from linprobe.accounting.calibrate import calibrate
from linprobe.accounting.events import GaussianEvent, Releases, grouped
from linprobe.accounting.ledger import AppendOnlyFile, Ledger, line_of, read_ledger
from linprobe.accounting.per_instance import HISTOGRAM_BINS, RecordLosses, histogram_counts
from linprobe.accounting.spending import Spending
from linprobe.atomic_files import held, json_text, write_json
from linprobe.commands._budget_book import charge_histogram, preview_histogram
from linprobe.errors import LinprobeError, PrivacyError, UsageError
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.runs import run_folder, signature
from linprobe.runs.manifest import guarantee_text, read_manifest
from linprobe.runs.manifest_check import accountant_of, check_manifest, ledger_of
from linprobe.runs.run_files import CARD, LEDGER, MANIFEST, PAGES, SIGNATURE, RunFiles
from linprobe.runs.units import unit_of
from linprobe.runs.unsealed import HISTOGRAM, unsealed_events

BUSY = "run {} is being published from by another process; wait for it, or stop it"
FILE = "published_histogram_{}.json"


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """Let no other process publish from a run folder inside the block. Its files are read inside the block too.

    Raises:
        LinprobeError: another process publishes from it, or it cannot be written, before anything is charged.
        DataError: not a run folder.
    """
    read_manifest(RunFiles(folder))  # a folder that does not exist has no lock
    _check_writable(folder)
    with held(folder, BUSY.format(folder)):
        yield


def publish(
    run: run_folder.LoadedRun,
    files: RunFiles,
    losses: RecordLosses,
    epsilon: float,
    sign: Path | None,
    book: Path | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Release the histogram of epsilon_i with Gaussian noise and charge it to the run's ledger, inside `publishing`.

    Given the released iterates, epsilon_i is a function of record i alone, so one record changes one count by one: the
    L2 sensitivity is 1. The charge is written to the budget book and the ledger before the noise is drawn.

    Args:
        run: manifest and model from `files`.

    Returns: the histogram, and the manifest of the run with it.

    Raises:
        PrivacyError: a run that is not private, or one that does not match its manifest.
        UsageError: see `_signing_key`. LinprobeError: no budget book.
    """
    folder, manifest = run.folder, run.manifest
    key = _key_to_publish(run, files, sign)
    events, planned = _planned(run, files, epsilon)
    training = grouped(event for event in events if event.purpose != HISTOGRAM)
    training_epsilon = accountant_of(manifest).epsilon(training, manifest["delta"])
    counts = histogram_counts(losses.epsilon(manifest["delta"], training_epsilon), training_epsilon)
    charge_histogram(run, grouped(events), planned, book)
    ledger = Ledger(folder / LEDGER)

    def charge(event: GaussianEvent) -> None:
        ledger.append(event)
        ledger.close()

    mechanism = GaussianMechanism(NoiseSource(), charge, first_step=len(events))
    clipped = ClippedSum(counts[:, None], 1.0, np.ones(1))
    noisy = mechanism.release(clipped, planned.noise_multiplier, purpose=HISTOGRAM).value[:, 0]
    histogram = {
        "what": "noisy number of records by their own training epsilon; safe to publish",
        "bin_edges": np.linspace(0, training_epsilon, HISTOGRAM_BINS + 1).tolist(),
        "noisy_counts": np.rint(noisy).astype(int).tolist(),
        "noise_std": planned.noise_multiplier,
        "epsilon_charged": epsilon,
    }
    name, charged = _next_file(manifest), ledger.events[-1]
    updated = _charged(manifest, [*events, charged], [_listed(epsilon, planned.noise_multiplier, name)])
    histogram |= {"epsilon_of_run_now": updated["epsilon"], "file": str(folder / name)}
    write_json(folder / name, histogram)
    written = {LEDGER: files[LEDGER] + line_of(charged).encode(), name: json_text(histogram).encode()}
    return histogram, _seal(files, updated, written, key)


@dataclass(frozen=True)
class Publication:
    """What publishing a histogram would do.

    Attributes:
        noise_std: of each of the counts. epsilon_after: of the run with the histogram. file: where it would lie.
        book: that would be charged. spent: by all runs of the book with the histogram.
        changed: files of the run that would change.
    """

    noise_std: float
    epsilon_after: float
    file: Path
    book: Path
    spent: Spending
    changed: tuple[str, ...]


def preview(
    run: run_folder.LoadedRun, files: RunFiles, epsilon: float, sign: Path | None, book: Path | None = None
) -> Publication:
    """What `publish` would charge and write; nothing is drawn, charged or written.

    Raises:
        LinprobeError: as `publish`.
    """
    manifest = run.manifest
    key = _key_to_publish(run, files, sign)
    _check_writable(run.folder)
    events, planned = _planned(run, files, epsilon)
    path, spent = preview_histogram(run, grouped(events), planned, book)
    return Publication(
        noise_std=planned.noise_multiplier,
        epsilon_after=accountant_of(manifest).epsilon([*grouped(events), planned], manifest["delta"]),
        file=run.folder / _next_file(manifest),
        book=path,
        spent=spent,
        changed=(
            LEDGER,
            *(PAGES if _has_pages(manifest, key) else ()),
            MANIFEST,
            *(() if key is None else (SIGNATURE,)),
        ),
    )


def _check_writable(folder: Path) -> None:
    """LinprobeError if a run folder or its ledger cannot be written, told before anything is charged."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".", suffix=".partial"), (folder / LEDGER).open("ab"):
            return
    except OSError as error:
        raise LinprobeError(
            f"run folder {folder} cannot be written ({error.strerror}), so nothing was charged or published; make it "
            "writable, or give a writable copy of it"
        ) from None


def _key_to_publish(run: run_folder.LoadedRun, files: RunFiles, sign: Path | None) -> Ed25519PrivateKey | None:
    if not run.manifest["private"]:
        raise PrivacyError(
            f"run {run.folder} is not private; nothing can be published from it; train without --noise-seed, by a "
            "private method"
        )
    return _signing_key(files, sign)


def _planned(run: run_folder.LoadedRun, files: RunFiles, epsilon: float) -> tuple[list[GaussianEvent], Releases]:
    """The checked ledger of a run, and the release of a histogram for `epsilon`."""
    events, manifest = read_ledger(run.folder / LEDGER, ledger_of(files)), run.manifest
    check_manifest(manifest, files, events)
    budget = calibrate(epsilon=epsilon, delta=manifest["delta"], n_private=manifest["n_private"], steps=1)
    return events, Releases(HISTOGRAM, budget.noise_multiplier, 1.0, 1)


def _next_file(manifest: dict[str, Any]) -> str:
    return FILE.format(len(manifest["published"]) + 1)


def recover(run: run_folder.LoadedRun, files: RunFiles, sign: Path | None) -> float:
    """Seal a run with every histogram in its ledger, inside `publishing`; returns the epsilon it now states.

    A histogram with a file was released. One without a file was paid for and lost; it is counted in full, because
    somebody may have seen it.

    Raises:
        UsageError: the manifest covers the ledger, or see `_signing_key`.
        PrivacyError: anything else about the run does not match.
    """
    folder, manifest, ledger = run.folder, run.manifest, ledger_of(files)
    key = _signing_key(files, sign)
    unsealed = unsealed_events(ledger, manifest["files"][LEDGER])
    if unsealed is None:
        raise UsageError(f"run {folder} has nothing to recover: no publication was interrupted; leave out --recover")
    with closing(AppendOnlyFile(folder / LEDGER)) as lines:
        whole = lines.repair()
    for torn in folder.glob(".*.partial"):  # left by the process that was stopped
        torn.unlink()
    events = read_ledger(folder / LEDGER, whole)
    check_manifest(manifest, files, events[: len(events) - len(unsealed)], recovering=True)
    listed, written = [], {LEDGER: whole}
    for number, event in enumerate(unsealed, start=len(manifest["published"]) + 1):
        name = FILE.format(number)
        alone = Releases(HISTOGRAM, event.noise_multiplier, event.sampling_rate, 1)
        epsilon = GAUSSIAN.epsilon([alone], manifest["delta"])
        content = _histogram_of(files, name, event)
        if content is not None:
            written[name] = content
        listed.append(_listed(epsilon, event.noise_multiplier, name if content is not None else None))
    return float(_seal(files, _charged(manifest, events, listed), written, key)["epsilon"])


def _signing_key(files: RunFiles, sign: Path | None) -> Ed25519PrivateKey | None:
    """The key that signed the run, to sign it again; None for a run that is not signed.

    The present signature is checked, so that an edited manifest is never signed.

    Raises:
        UsageError: a signed run without a key, or a key for a run that is not signed.
    """
    if sign is None:
        if signature.is_signed(files):
            raise UsageError(
                f"run {files.folder} is signed, and a histogram changes its manifest; give --sign KEY with the key "
                f"that signed it, or remove {SIGNATURE}"
            )
        return None
    key = signature.private_key(sign)
    if not signature.is_signed(files):
        raise UsageError(f"run {files.folder} is not signed, and --sign signs a signed run again; leave it out")
    signature.check_signature(files, key.public_key())
    return key


def _listed(epsilon: float, noise_multiplier: float, name: str | None) -> dict[str, Any]:
    """A histogram as the manifest lists it; `name` of its file is None if it was paid for and lost."""
    return {"what": HISTOGRAM, "epsilon": epsilon, "noise_multiplier": noise_multiplier, "file": name}


def _charged(manifest: dict[str, Any], events: list[GaussianEvent], listed: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest with figures recomputed from `events`, the whole ledger, and the new histograms `listed`."""
    releases, delta = grouped(events), manifest["delta"]
    total = accountant_of(manifest).epsilon(releases, delta)
    return {
        **manifest,
        "guarantee": guarantee_text(total, delta, releases, insecure=False, unit=unit_of(manifest)),
        "epsilon": total,
        "epsilon_target": max(total, manifest["epsilon_target"] + sum(release["epsilon"] for release in listed)),
        **gaussian_figures(releases),
        "releases": [asdict(release) for release in releases],
        "published": [*manifest["published"], *listed],
    }


def _has_pages(manifest: dict[str, Any], key: Ed25519PrivateKey | None) -> bool:
    """Whether the manifest lists pages, which state its epsilon, or will list them because it is signed."""
    return key is not None or CARD in manifest["files"]


def _seal(
    files: RunFiles, manifest: dict[str, Any], written: dict[str, bytes], key: Ed25519PrivateKey | None
) -> dict[str, Any]:
    """Seal the run with the contents of `written`, and those of its other files as they were checked."""
    kept = {name: files[name] for name in manifest["files"] if name not in PAGES}
    pages = None
    if _has_pages(manifest, key):
        from linprobe.reporting.model_card import pages_of_run

        pages = partial(pages_of_run, files.folder.resolve().name, key is not None)
    return run_folder.write_manifest(files.folder, manifest, {**kept, **written}, key, pages)


def _histogram_of(files: RunFiles, name: str, event: GaussianEvent) -> bytes | None:
    """The content of a file if it holds the histogram of `event`, else None."""
    try:
        histogram = json.loads(files[name].decode())
        matches = histogram["noise_std"] == event.noise_multiplier and len(histogram["noisy_counts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return files[name] if matches else None
