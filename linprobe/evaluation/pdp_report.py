"""`linprobe pdp-report`: each record's own privacy loss, and its noisy histogram.

Source: AdaMix (Golatkar et al. 2022), Figure 3 and Proposition 14.

A published histogram makes a run of its own beside the run, which is never changed: `run.published-1` is `run` with one
histogram, `run.published-2` the same with two. Their ledgers begin with the lines of `run`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from linprobe import atomic_files
from linprobe.accounting.accountants import gaussian_figures
from linprobe.accounting.calibrate import calibrate, check_epsilon
from linprobe.accounting.events import HISTOGRAM, GaussianEvent, Releases, grouped
from linprobe.accounting.figures import NOUNS, rounded_down, rounded_up
from linprobe.accounting.ledger import Ledger, read_ledger
from linprobe.accounting.per_instance import HISTOGRAM_BINS, RecordLosses, summary
from linprobe.atomic_files import json_text, write_whole
from linprobe.errors import BESIDE_RUN, PrivacyError, Progress, Silent, UsageError, unwritten, writing
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.options.requests import PdpReportRequest, name_of
from linprobe.parallel.torch_group import refuse_copies
from linprobe.reporting import plots
from linprobe.runs import run_folder
from linprobe.runs.check import check_digests, check_run, check_signature
from linprobe.runs.guarantee import accountant_of, guarantee_text
from linprobe.runs.manifest import CARD, LEDGER, MANIFEST, PAGES, PER_RECORD, SIGNATURE, Manifest, Published
from linprobe.runs.run_folder import RunFolder
from linprobe.training.charge import charge_histogram, charge_published, preview_histogram
from linprobe.training.execute import released_histogram
from linprobe.training.words import DryRun, Lines, listed, together_facts, together_line, written

FILE = "published_histogram_{}.json"
SUFFIX = ".published-{}"
NAME_BYTES = 8  # of a histogram, in the manifest and in budget books


def publish(
    run: RunFolder, epsilon: float, sign: Path | None, book: Path | None = None, progress: Progress | None = None
) -> tuple[dict[str, Any], Manifest, str | None]:
    """Release the histogram of epsilon_i with Gaussian noise, as a run beside `run` whose ledger holds the charge.

    The charge is written to the budget book and the ledger before the noise is drawn. Returns the histogram with its
    place, the manifest of the run with it, and what that does not state of others.
    """
    manifest, key = run.manifest, signing_key(run, sign)
    events, planned = _planned(run, epsilon)
    out, name = _place(run, book)
    spent = f"epsilon {rounded_up(epsilon)} for the histogram is spent"
    resume = any((folder / MANIFEST).is_file() for folder in run_folder.unfinished_folders(out))

    def complete(made: RunFolder) -> None:
        """Refuse a complete folder with another histogram; else charge it if the book lacks it."""
        stated = made.manifest
        if stated.book_id != manifest.book_id or stated.published[:-1] != manifest.published:
            raise UsageError(f"{made.folder} is complete, but was made from another run than {run.folder}; rename it")
        if stated.published[-1].epsilon != epsilon:
            raise UsageError(
                f"--publish-epsilon is {epsilon:g}, and {made.folder} has a complete histogram for epsilon "
                f"{stated.published[-1].epsilon:g}; give that epsilon to name it, or rename it"
            )
        charge_published(run, stated.recorded, book)

    with (
        _saying_what_counts(out, spent, progress or Silent()) as counts,
        run_folder.claimed(out, flag=BESIDE_RUN),
        run_folder.new_run_folder(out, resume=resume, complete=complete, paid=spent, flag=BESIDE_RUN) as folder,
    ):
        training = grouped(event for event in events if event.purpose != HISTOGRAM)
        delta = manifest.bound[1]
        training_epsilon = accountant_of(manifest).epsilon(training, delta)
        epsilons = run.per_record.losses.epsilon(delta, training_epsilon)
        named = replace(planned, purpose=f"{HISTOGRAM} {secrets.token_hex(NAME_BYTES)}")
        not_stated = charge_histogram(run, named, book)
        counts.append(named)
        (folder / run_folder.RUN_ID).write_text(manifest.book_id, encoding="utf-8")  # for a folder that is left behind
        (folder / LEDGER).write_bytes(run[LEDGER])
        ledger = Ledger(folder / LEDGER)

        def charge(event: GaussianEvent) -> None:
            ledger.append(event)
            ledger.close()

        mechanism = GaussianMechanism(NoiseSource(), charge, first_step=len(events))
        noisy = released_histogram(epsilons, training_epsilon, mechanism, planned.noise_multiplier)
        updated = _charged(manifest, ledger.events, Published(named.purpose, epsilon, planned.noise_multiplier, name))
        histogram = {
            "what": f"noisy number of {NOUNS[manifest.unit]} by their own training epsilon; safe to publish",
            "bin_edges": np.linspace(0, training_epsilon, HISTOGRAM_BINS + 1).tolist(),
            "noisy_counts": np.rint(noisy).astype(int).tolist(),
            "noise_std": planned.noise_multiplier,
            "epsilon_charged": epsilon,
            "epsilon_of_run_now": updated.epsilon,
        }
        write_derived(folder, run, updated, {name: json_text(histogram).encode()}, key)
    return {**histogram, "run": str(out), "file": str(out / name)}, updated, not_stated


@contextmanager
def _saying_what_counts(out: Path, spent: str, progress: Progress) -> Iterator[list[Releases]]:
    """Let errors and Ctrl-C say that the histogram counts, once the block has put it on the list."""
    counts: list[Releases] = []
    try:
        yield counts
    except KeyboardInterrupt:
        if counts:
            progress.note(spent)
        raise
    except OSError as error:
        name = Path(str(error.filename or "")).name
        file = f"{name} of " if name and not name.endswith(".partial") else ""
        raise unwritten(f"{spent}; {file}run {out}" if counts else f"{file}run {out}", error, BESIDE_RUN) from None


def _planned(run: RunFolder, epsilon: float) -> tuple[list[GaussianEvent], Releases]:
    check_run(run)
    refuse_moving(run.manifest)
    events = read_ledger(run.folder / LEDGER, run[LEDGER])
    budget = calibrate(epsilon=epsilon, delta=run.manifest.bound[1], n_private=run.manifest.n_private, steps=1)
    return events, Releases(HISTOGRAM, budget.noise_multiplier, 1.0, 1)


def refuse_moving(manifest: Manifest) -> None:
    """PrivacyError for a run whose losses of people may move with other people, in the last bits of float64.

    A loss next to the edge of a bin would then change its count with somebody else's rows, and no sensitivity below the
    number of people would hold. On a CPU the losses have the same bits; on a GPU norms are added in another order for
    another number of rows, and earlier versions scored rows by BLAS.
    """
    if manifest.moving_losses is not None:
        raise PrivacyError(
            f"the losses of people in this run were computed {manifest.moving_losses}, where the loss of a person may "
            "move with the rows of another, so a histogram has no proven sensitivity; allowed: runs on the CPU with "
            "this version; train again"
        )


def _place(run: RunFolder, book: Path | None) -> tuple[Path, str]:
    """The folder of the run with one more histogram, and its name there. UsageError: it exists, or holds the book."""
    number = len(run.manifest.published) + 1
    folder = run.folder if run.folder.name else run.folder.resolve()
    out = folder.with_name(re.sub(r"[.]published-\d+$", "", folder.name) + SUFFIX.format(number))
    if out.exists():
        raise UsageError(
            f"run {out} has a histogram of {run.folder} already; publish from it to add another: linprobe pdp-report "
            f"{out} --publish-epsilon E"
        )
    run_folder.refuse_book_inside(book, out)
    return out, FILE.format(number)


def signing_key(run: RunFolder, sign: Path | None) -> Ed25519PrivateKey | None:
    """The key that signed a run, checked, to sign a run derived from it; None for a run that is not signed."""
    if not run.manifest.private:
        raise PrivacyError(
            f"run {run.folder} is not private, nor is a run made of it; train without --noise-seed, by a private method"
        )
    if sign is None:
        if SIGNATURE in run.names:
            raise UsageError(f"run {run.folder} is signed, and so is a run made from it; give its key with --sign KEY")
        return None
    key = run_folder.private_key(sign)
    if SIGNATURE not in run.names:
        raise UsageError(f"run {run.folder} is not signed, and --sign is for a signed run; leave it out")
    check_signature(run, key.public_key())
    return key


def _charged(manifest: Manifest, events: Sequence[GaussianEvent], published: Published) -> Manifest:
    releases, (_, delta) = grouped(events), manifest.bound
    total = accountant_of(manifest).epsilon(releases, delta)
    figures: dict[str, Any] = gaussian_figures(releases)
    return replace(
        manifest,
        guarantee=guarantee_text(total, delta, releases, unit=manifest.unit),
        epsilon=total,
        epsilon_target=max(total, (manifest.epsilon_target or 0.0) + published.epsilon),
        **figures,
        releases=releases,
        published=(*manifest.published, published),
    )


def write_derived(
    folder: Path,
    run: RunFolder,
    manifest: Manifest,
    made: dict[str, bytes],
    key: Ed25519PrivateKey | None,
    dropped: Sequence[str] = (),
) -> None:
    """Write the checked files of a run, but those `dropped`, and those `made`; `folder` has its ledger already."""
    kept = {name: run[name] for name in run.manifest.files if name not in (LEDGER, *PAGES, *dropped)}
    for name, content in {**kept, **made}.items():
        write_whole(folder / name, content)
    if PER_RECORD in run.names:  # a release has none
        run_folder.write_per_record(folder, run.per_record)
    contents, pages = {**kept, LEDGER: (folder / LEDGER).read_bytes(), **made}, dict[str, str]()
    if key is not None or CARD in run.manifest.files:  # they state epsilon
        from linprobe.reporting.release_pages import pages_of_run

        pages = pages_of_run(run.folder.resolve().name, key is not None, manifest.sealed(contents))
    run_folder.write_manifest(folder, manifest, contents, key, pages)


VALIDITY = "given the released weights of every step; each figure is at most the worst-case epsilon"
VALIDITY_SAMPLED = (
    "individual Renyi accounting of Poisson samples, for the trajectory of weights that was released; "
    "each figure is at most the worst-case epsilon"
)
SEEDED = "nowhere: the noise came from a seed the user gave; the figures hold for a run whose seed is secret"
SPARK, COLUMNS = "▁▂▃▄▅▆▇█", 60


@dataclass(frozen=True)
class PdpReport:
    """The per-record report, its curve as text, and the published histogram. Private."""

    report: dict[str, Any]
    sparkline: str
    published: dict[str, Any] | None
    not_stated: str | None


def pdp_report(request: PdpReportRequest, progress: Progress | None = None) -> PdpReport:
    """Summarise the per-record losses of a run. Optionally write them, draw them, or release their histogram."""
    with _checked_files(request):
        run, published, csv, plot = _loaded(request.run), None, request.csv, request.plot
        not_stated = None
        (ids, losses), manifest = _losses(run), run.manifest
        if request.publish_epsilon is not None:
            refuse_copies("pdp-report")
            published, manifest, not_stated = publish(
                run, request.publish_epsilon, request.sign, request.book, progress
            )
        # a published histogram costs every record the same
        losses = losses.charged(sum((1 / release.noise_multiplier) ** 2 for release in manifest.published))
        worst, delta = manifest.bound
        epsilons = losses.epsilon(delta, worst)
        title, column = f"{manifest.method} on {name_of(Path(manifest.features))}", "epsilon"
        if not manifest.private:
            title, column = f"{title}, NOT PRIVATE (seeded)", "epsilon_if_seed_were_secret"
        if csv is not None:
            lines = ({"id": name, column: rounded_up(one)} for name, one in zip(ids, epsilons.tolist(), strict=True))
            with writing(csv, "--csv"):
                atomic_files.write_csv(csv, lines, private=True)
        if plot is not None:
            with writing(plot, "--plot"):
                plots.sorted_epsilons(plot, epsilons, worst, title, NOUNS[manifest.unit])
        return PdpReport(_report(epsilons, manifest), sparkline(epsilons, worst), published, not_stated)


def dry_run_of_report(request: PdpReportRequest) -> DryRun:
    """What `pdp_report` would read, spend and write. Its facts are public; no loss of a record is among them."""
    with _checked_files(request):
        run = _loaded(request.run)
        ids, _ = _losses(run)
        (epsilon, delta), noun = run.manifest.bound, NOUNS[run.manifest.unit]
        book = spent = None
        if request.publish_epsilon is not None:
            key = signing_key(run, request.sign)
            events, planned = _planned(run, request.publish_epsilon)
            out, name = _place(run, request.book)
            book, spent = preview_histogram(run, planned, request.book)
    private_files = [str(path) for path in (request.csv, request.plot) if path is not None]
    facts: dict[str, Any] = {
        "run": str(request.run),
        "records": len(ids),
        "epsilon": epsilon if run.manifest.private else None,
        "delta": delta,
        "publish_epsilon": request.publish_epsilon,
        "private_files": private_files,
        "together": together_facts(spent),
        "book": None if book is None else str(book),
    }
    lines: Lines = [("reads", f"{request.run}: losses of {len(ids):,} private {noun}")]
    writes = [f"{path}: private" for path in private_files]
    if book is None:
        lines.append(("spends", "nothing; the report is private"))
        return DryRun(facts, [*lines, *listed("writes", writes or ["nothing; the report goes to stdout"])])
    std, after = planned.noise_multiplier, accountant_of(run.manifest).epsilon([*grouped(events), planned], delta)
    facts |= {"noise_std": std, "epsilon_after": after, "file": str(out / name), "signed": key is not None}
    lines += [
        ("spends", f"epsilon {rounded_up(request.publish_epsilon)} at delta {rounded_up(delta)}"),
        ("", f"{HISTOGRAM_BINS} counts of {noun}, each with noise of standard deviation {rounded_down(std, 4)}"),
        ("states", f"epsilon {rounded_up(after)} of the new run, where {request.run} states {rounded_up(epsilon)}"),
        *together_line(spent),
    ]
    return DryRun(facts, [*lines, *written(f"{out}: the run with {name}, which may be published", *writes, book=book)])


def _checked_files(request: PdpReportRequest) -> AbstractContextManager[None]:
    if request.plot is not None:
        plots.check_format(request.plot)
    if request.publish_epsilon is not None:
        check_epsilon(request.publish_epsilon)
    for flag, value in (("--sign", request.sign), ("--book", request.book)):
        if value is not None and request.publish_epsilon is None:
            raise UsageError(f"option {flag} does nothing without --publish-epsilon; leave it out")
    inputs = (*run_folder.inputs_of(request.run), request.sign, request.book)
    return run_folder.new_files(
        {"--csv": request.csv, "--plot": request.plot}, inputs=inputs, overwrite=request.overwrite
    )


def _loaded(folder: Path) -> RunFolder:
    run = run_folder.read_run(folder)
    check_digests(run)
    manifest = run.manifest
    if manifest.accountant is None:
        raise UsageError(
            f"run {run.folder} used method {manifest.method}, which releases nothing with noise; "
            "only methods that spend a budget have per-record losses"
        )
    if manifest.selection is not None:
        raise UsageError(
            f"run {run.folder} was chosen by private selection, for which no bound of a single record below epsilon "
            f"{rounded_up(manifest.epsilon)} of the run is known; allowed: runs of linprobe train, or of tune "
            "without --grid"
        )
    return run


def _losses(run: RunFolder) -> tuple[list[str], RecordLosses]:
    ids, losses, _ = run.per_record
    if len(losses.mu) != len(ids):
        raise UsageError(f"run {run.folder} was trained with --no-per-record; train with --per-record to track records")
    return ids, losses


def _report(epsilons: NDArray[np.float64], manifest: Manifest) -> dict[str, Any]:
    valid = VALIDITY_SAMPLED if manifest.gdp_mu is None else VALIDITY
    return {
        "private": True,
        "note": "PRIVATE: computed from private rows without noise; do not publish",
        "guarantee": manifest.guarantee,
        "epsilon": manifest.epsilon,
        "epsilon_if_seed_were_secret": manifest.epsilon_if_seed_were_secret,
        "delta": manifest.delta,
        "unit": manifest.unit,
        "gdp_mu": manifest.gdp_mu if manifest.private else None,
        "zcdp_rho": manifest.zcdp_rho if manifest.private else None,
        **summary(epsilons, manifest.bound[0]),
        "valid": valid if manifest.private else SEEDED,
    }


def sparkline(epsilons: NDArray[np.float64], epsilon: float) -> str:
    """The sorted curve as text, one column per quantile, full height at the worst case `epsilon`."""
    if not epsilons.size:
        return ""
    heights = np.quantile(epsilons, (np.arange(COLUMNS) + 0.5) / COLUMNS) / epsilon
    return "".join(SPARK[min(len(SPARK) - 1, int(height * len(SPARK)))] for height in heights)
