"""`linprobe pdp-report`: each record's own privacy loss, and its noisy histogram."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from linprobe.accounting.accountants import composed_epsilon
from linprobe.accounting.calibrate import calibrate, check_epsilon
from linprobe.accounting.events import GaussianEvent, grouped
from linprobe.accounting.ledger import Ledger, read_ledger
from linprobe.accounting.per_instance import HISTOGRAM_BINS, RecordLosses, histogram_counts
from linprobe.atomic_files import write_json
from linprobe.commands._output import check_folders, writing
from linprobe.errors import PrivacyError, UsageError
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.reporting import plots
from linprobe.reporting.pdp_report import per_record_report, sparkline, write_csv
from linprobe.runs import run_folder, signature
from linprobe.runs.manifest import (
    accountant_of,
    check_manifest,
    gaussian_figures,
    guarantee_text,
    read_manifest,
    stated_epsilon,
)

HISTOGRAM = "published_histogram_{}.json"


@dataclass(frozen=True)
class PdpReport:
    """The per-record report, its curve as text, and the published histogram, if any. Private."""

    report: dict[str, Any]
    sparkline: str
    published: dict[str, Any] | None


def pdp_report(
    folder: Path,
    *,
    csv: Path | None = None,
    plot: Path | None = None,
    publish_epsilon: float | None = None,
    sign: Path | None = None,
) -> PdpReport:
    """Summarise the per-record losses of a run. Optionally write them, draw them, or release their histogram.

    Args:
        folder: run folder. csv, plot: files for every record's epsilon and for the sorted curve, mode 0600.
        publish_epsilon: price of a noisy histogram, charged to the run.
        sign: key file of a signed run, whose manifest the histogram changes.

    Raises:
        UsageError: a run without per-record losses, or a signed one without its key. DataError: no per-record file.
            PrivacyError: a histogram of a run that is not private.
    """
    if plot is not None:
        plots.check_format(plot)
    if publish_epsilon is not None:
        check_epsilon(publish_epsilon)
    elif sign is not None:
        raise UsageError("option --sign does nothing without --publish-epsilon; leave it out")
    check_folders(csv, plot)
    run = run_folder.load_run(folder)
    manifest = run.manifest
    if manifest["accountant"] is None:
        raise UsageError(
            f"run {folder} used method {manifest['method']}, which releases nothing with noise; "
            "only methods that spend a budget have per-record losses"
        )
    ids, losses, _ = run_folder.read_per_record(folder, manifest)
    if len(losses.mu) != len(ids):
        raise UsageError(f"run {folder} was trained with --no-per-record; train with --per-record to track records")
    published = None if publish_epsilon is None else _publish_histogram(run, losses, publish_epsilon, sign)
    manifest = read_manifest(folder)
    # a published histogram costs every record the same
    losses = losses.charged(sum((1 / release["noise_multiplier"]) ** 2 for release in manifest["published"]))
    worst = stated_epsilon(manifest)
    epsilons = losses.epsilon(manifest["delta"], worst)
    title, column = manifest["method"], "epsilon"
    if not manifest["private"]:
        title, column = f"{title}, NOT PRIVATE (seeded)", "epsilon_if_seed_were_secret"
    if csv is not None:
        writing(csv, lambda: write_csv(csv, ids, epsilons, column))
    if plot is not None:
        writing(plot, lambda: plots.sorted_epsilons(plot, epsilons, worst, title))
    return PdpReport(per_record_report(epsilons, manifest), sparkline(epsilons, worst), published)


def _signing_key(folder: Path, sign: Path | None) -> Ed25519PrivateKey | None:
    """The key that signed the run, to sign it again; None for a run that is not signed.

    A signature must not come to stand under a manifest that its owner never signed, so the present one is checked.

    Raises:
        UsageError: a signed run without a key, or a key for a run that is not signed.
    """
    if sign is None:
        if signature.is_signed(folder):
            raise UsageError(
                f"run {folder} is signed, and a histogram changes its manifest; give --sign KEY with the key that "
                f"signed it, or remove {signature.SIGNATURE}"
            )
        return None
    key = signature.private_key(sign)
    if not signature.is_signed(folder):
        raise UsageError(f"run {folder} is not signed, and --sign signs a signed run again; leave it out")
    signature.check_signature(folder, key.public_key())
    return key


def _publish_histogram(
    run: run_folder.LoadedRun, losses: RecordLosses, epsilon: float, sign: Path | None
) -> dict[str, Any]:
    """Release the histogram of epsilon_i with Gaussian noise and charge it to the run's ledger.

    Given the released iterates, epsilon_i is a function of record i alone, so one record changes one count by one: the
    L2 sensitivity is 1. The charge is written to the ledger before the noise is drawn.
    """
    folder, manifest = run.folder, run.manifest
    if not manifest["private"]:
        raise PrivacyError(f"run {folder} is not private; nothing can be published from it")
    key = _signing_key(folder, sign)
    events, delta = read_ledger(folder / run_folder.LEDGER), manifest["delta"]
    check_manifest(manifest, folder, events)
    accountant = accountant_of(manifest)
    training = grouped(event for event in events if event.purpose != "histogram")
    training_epsilon = composed_epsilon(training, delta, accountant)
    budget = calibrate(epsilon=epsilon, delta=delta, n_private=manifest["n_private"], steps=1)
    counts = histogram_counts(losses.epsilon(delta, training_epsilon), training_epsilon)
    ledger = Ledger(folder / run_folder.LEDGER)

    def charge(event: GaussianEvent) -> None:
        ledger.append(event)
        ledger.close()

    mechanism = GaussianMechanism(NoiseSource(), charge, first_step=len(events))
    clipped = ClippedSum(counts[:, None], 1.0, np.ones(1))
    noisy = mechanism.release(clipped, budget.noise_multiplier, purpose="histogram").value[:, 0]
    histogram = {
        "what": "noisy number of records by their own training epsilon; safe to publish",
        "bin_edges": np.linspace(0, training_epsilon, HISTOGRAM_BINS + 1).tolist(),
        "noisy_counts": np.rint(noisy).astype(int).tolist(),
        "noise_std": budget.noise_multiplier,
        "epsilon_charged": epsilon,
    }
    releases = grouped(ledger.events)
    total = composed_epsilon(releases, delta, accountant)
    target = manifest["epsilon_target"] + epsilon
    name = HISTOGRAM.format(len(manifest["published"]) + 1)
    release = {"what": "histogram", "epsilon": epsilon, "noise_multiplier": budget.noise_multiplier, "file": name}
    updated = {
        **manifest,
        "guarantee": guarantee_text(total, delta, insecure=False),
        "epsilon": total,
        "epsilon_target": target,
        **gaussian_figures(releases),
        "releases": [asdict(release) for release in releases],
        "published": [*manifest["published"], release],
    }
    histogram |= {"epsilon_of_run_now": total, "file": str(folder / name)}
    write_json(folder / name, histogram)
    run_folder.write_manifest(folder, updated, tuple(release["file"] for release in updated["published"]), key)
    return histogram
