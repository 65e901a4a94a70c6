"""Publishes a noisy histogram of per-record epsilon: a run of its own beside the run, which states the cost of both.

A finished run is never changed. `run.published-1` is `run` with one histogram, `run.published-2` the same with two.
Their ledgers begin with the lines of `run`, and the budget book counts all of them as one run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from linprobe.accounting.accountants import gaussian_figures
from linprobe.accounting.calibrate import calibrate
from linprobe.accounting.events import OWNER, GaussianEvent, Releases, grouped
from linprobe.accounting.ledger import Ledger, read_ledger
from linprobe.accounting.per_instance import HISTOGRAM_BINS, histogram_counts
from linprobe.accounting.spending import Spending
from linprobe.atomic_files import json_text, replace_when_complete
from linprobe.errors import PrivacyError, UsageError
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.runs import signature
from linprobe.runs.check import check_run, check_signature
from linprobe.runs.claim import claimed, refuse_existing
from linprobe.runs.guarantee import accountant_of, guarantee_text
from linprobe.runs.manifest import CARD, LEDGER, PAGES, SIGNATURE, Manifest, Published
from linprobe.runs.per_record_file import write_per_record
from linprobe.runs.release_rules import HISTOGRAM
from linprobe.runs.run_folder import RUN_ID, RunFolder, new_run_folder, write_manifest
from linprobe.training.charge import charge_histogram, preview_histogram

FILE = "published_histogram_{}.json"
SUFFIX = ".published-{}"
HOST, ARITHMETIC = "cpu", "arithmetic"


@dataclass(frozen=True)
class Publication:
    """What publishing a histogram would do.

    Attributes:
        out: the run that would be made. file: the histogram in it. signed: whether the run would be signed.
        noise_std: of each of the counts. epsilon_after: of the run with the histogram.
        book: that would be charged. spent: by all runs of the book with the histogram.
    """

    out: Path
    file: Path
    signed: bool
    noise_std: float
    epsilon_after: float
    book: Path
    spent: Spending


def publish(
    run: RunFolder, epsilon: float, sign: Path | None, book: Path | None = None
) -> tuple[dict[str, Any], Manifest]:
    """Release the histogram of epsilon_i with Gaussian noise, as a run beside `run` whose ledger holds the charge.

    Given the releases, epsilon_i is a function of record or person i alone (`docs/proofs/people.md`), so one of them
    changes one count by one: the L2 sensitivity is 1. The charge is written to the budget book and the ledger before
    the noise is drawn.

    Returns: the histogram, and the manifest of the run with it.

    Raises:
        PrivacyError: a run that is not private, or one that does not match its manifest; or see `refuse_moving`.
        UsageError: see `_signing_key`; the run has such a histogram already. LinprobeError: no budget book.
    """
    manifest, key = run.manifest, _signing_key(run, sign)
    events, planned = _planned(run, epsilon)
    out, name = _place(run)
    with claimed(out), new_run_folder(out) as folder:
        training = grouped(event for event in events if event.purpose != HISTOGRAM)
        delta = manifest.bound[1]
        training_epsilon = accountant_of(manifest).epsilon(training, delta)
        counts = histogram_counts(run.per_record.losses.epsilon(delta, training_epsilon), training_epsilon)
        charge_histogram(run, grouped(events), planned, book)
        (folder / RUN_ID).write_text(manifest.book_id, encoding="utf-8")  # for a folder that is left behind
        (folder / LEDGER).write_bytes(run[LEDGER])
        ledger = Ledger(folder / LEDGER)

        def charge(event: GaussianEvent) -> None:
            ledger.append(event)
            ledger.close()

        mechanism = GaussianMechanism(NoiseSource(), charge, first_step=len(events))
        clipped = ClippedSum(counts[:, None], 1.0, np.ones(1))
        noisy = mechanism.release(clipped, planned.noise_multiplier, purpose=HISTOGRAM).value[:, 0]
        updated = _charged(manifest, ledger.events, Published(HISTOGRAM, epsilon, planned.noise_multiplier, name))
        histogram = {
            "what": "noisy number of records by their own training epsilon; safe to publish",
            "bin_edges": np.linspace(0, training_epsilon, HISTOGRAM_BINS + 1).tolist(),
            "noisy_counts": np.rint(noisy).astype(int).tolist(),
            "noise_std": planned.noise_multiplier,
            "epsilon_charged": epsilon,
            "epsilon_of_run_now": updated.epsilon,
            "run": str(out),
            "file": str(out / name),
        }
        _write(folder, run, updated, {name: json_text(histogram).encode()}, key)
    return histogram, updated


def preview_publication(run: RunFolder, epsilon: float, sign: Path | None, book: Path | None = None) -> Publication:
    """What `publish` would charge and write; nothing is drawn, charged or written.

    Raises:
        LinprobeError: as `publish`.
    """
    key = _signing_key(run, sign)
    events, planned = _planned(run, epsilon)
    out, name = _place(run)
    path, spent = preview_histogram(run, grouped(events), planned, book)
    epsilon_after = accountant_of(run.manifest).epsilon([*grouped(events), planned], run.manifest.bound[1])
    return Publication(out, out / name, key is not None, planned.noise_multiplier, epsilon_after, path, spent)


def _planned(run: RunFolder, epsilon: float) -> tuple[list[GaussianEvent], Releases]:
    """The checked ledger of a run, and the release of a histogram for `epsilon`."""
    check_run(run)
    refuse_moving(run.manifest)
    events = read_ledger(run.folder / LEDGER, run[LEDGER])
    budget = calibrate(epsilon=epsilon, delta=run.manifest.bound[1], n_private=run.manifest.n_private, steps=1)
    return events, Releases(HISTOGRAM, budget.noise_multiplier, 1.0, 1)


def refuse_moving(manifest: Manifest) -> None:
    """PrivacyError for a run whose losses of people may move with other people, in the last bits of float64.

    A loss next to the edge of a bin would then change its count with somebody else's rows, and no sensitivity below the
    number of people would hold. On a CPU the losses have the same bits. On a GPU norms are added in another order for
    another number of rows; earlier versions, whose manifests do not name the arithmetic, scored rows by BLAS.
    """
    moves = (
        "on a GPU"
        if manifest.device != HOST
        else "by an earlier version"
        if ARITHMETIC not in manifest.software
        else None
    )
    if manifest.unit == OWNER and moves is not None:
        raise PrivacyError(
            f"the losses of people in this run were computed {moves}, where the loss of one may move with the rows of "
            "another, so a histogram has no proven sensitivity; allowed: runs on the CPU with this version; train again"
        )


def _place(run: RunFolder) -> tuple[Path, str]:
    """The folder of the run with one more histogram, and the name of the histogram in it. UsageError if it exists."""
    number = len(run.manifest.published) + 1
    folder = run.folder if run.folder.name else run.folder.resolve()
    out = folder.with_name(re.sub(r"[.]published-\d+$", "", folder.name) + SUFFIX.format(number))
    if out.exists():
        raise UsageError(
            f"run {out} has a histogram of {run.folder} already; publish from it to add another: linprobe pdp-report "
            f"{out} --publish-epsilon E"
        )
    refuse_existing(out)
    return out, FILE.format(number)


def _signing_key(run: RunFolder, sign: Path | None) -> Ed25519PrivateKey | None:
    """The key that signed a run, to sign the run with the histogram; None for a run that is not signed.

    The signature is checked, so that an edited manifest is never signed.

    Raises:
        PrivacyError: a run that is not private. UsageError: a signed run without a key, or a key for a run that is not
            signed.
    """
    if not run.manifest.private:
        raise PrivacyError(
            f"run {run.folder} is not private; nothing can be published from it; train without --noise-seed, by a "
            "private method"
        )
    if sign is None:
        if SIGNATURE in run.names:
            raise UsageError(
                f"run {run.folder} is signed, and so is the run with its histogram; give --sign KEY with the key that "
                "signed it"
            )
        return None
    key = signature.private_key(sign)
    if SIGNATURE not in run.names:
        raise UsageError(f"run {run.folder} is not signed, and --sign is for a signed run; leave it out")
    check_signature(run, key.public_key())
    return key


def _charged(manifest: Manifest, events: Sequence[GaussianEvent], published: Published) -> Manifest:
    """The manifest with figures recomputed from `events`, the whole ledger, and one more histogram."""
    releases, (_, delta) = grouped(events), manifest.bound
    total = accountant_of(manifest).epsilon(releases, delta)
    figures: dict[str, Any] = gaussian_figures(releases)
    return replace(
        manifest,
        guarantee=guarantee_text(total, delta, releases, insecure=False, unit=manifest.unit),
        epsilon=total,
        epsilon_target=max(total, (manifest.epsilon_target or 0.0) + published.epsilon),
        **figures,
        releases=releases,
        published=(*manifest.published, published),
    )


def _write(
    folder: Path, run: RunFolder, manifest: Manifest, made: dict[str, bytes], key: Ed25519PrivateKey | None
) -> None:
    """Write the files of a run as they were checked, and those that were `made`; `folder` has its ledger already."""
    kept = {name: run[name] for name in run.manifest.files if name not in (LEDGER, *PAGES)}
    for name, content in {**kept, **made}.items():
        with replace_when_complete(folder / name) as stream:
            stream.write(content)
    write_per_record(folder, run.per_record)
    pages = None
    if key is not None or CARD in run.manifest.files:  # they state epsilon
        from linprobe.reporting.release_pages import pages_of_run

        pages = partial(pages_of_run, run.folder.resolve().name, key is not None)
    write_manifest(folder, manifest, {**kept, LEDGER: (folder / LEDGER).read_bytes(), **made}, key, pages)
