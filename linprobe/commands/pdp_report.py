"""`linprobe pdp-report`: each record's own privacy loss, and its noisy histogram."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.accounting.calibrate import check_epsilon
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.per_instance import HISTOGRAM_BINS, RecordLosses
from linprobe.commands import _published_histogram
from linprobe.errors import PrivacyError, UsageError
from linprobe.plans.words import DryRun, Lines, listed, together_facts, together_line, written
from linprobe.reporting import plots
from linprobe.reporting.pdp_report import per_record_report, sparkline, write_csv
from linprobe.runs.manifest import read_manifest
from linprobe.runs.manifest_check import ledger_of, stated_epsilon
from linprobe.runs.output import inputs_of, new_files, writing
from linprobe.runs.per_record_file import read_per_record
from linprobe.runs.run_files import LEDGER, SIGNATURE, RunFiles
from linprobe.runs.run_folder import LoadedRun, loaded
from linprobe.runs.units import NOUNS, unit_of
from linprobe.runs.unsealed import stopped_publishing, unsealed_events


@dataclass(frozen=True)
class PdpReport:
    """The per-record report, its curve as text, the published histogram, and the epsilon after a recovery. Private."""

    report: dict[str, Any]
    sparkline: str
    published: dict[str, Any] | None
    recovered: float | None


def pdp_report(
    folder: Path,
    *,
    csv: Path | None = None,
    plot: Path | None = None,
    publish_epsilon: float | None = None,
    sign: Path | None = None,
    recover: bool = False,
    book: Path | None = None,
    overwrite: bool = False,
) -> PdpReport:
    """Summarise the per-record losses of a run. Optionally write them, draw them, or release their histogram.

    Args:
        folder: run folder. csv, plot: files for every record's epsilon and for the sorted curve, mode 0600.
        publish_epsilon: price of a noisy histogram, charged to the run.
        sign: key file of a signed run, whose manifest the histogram or the recovery changes.
        recover: seal a run whose publication was interrupted after its charge.
        book: budget book that a histogram is charged to; None for the one of the run.
        overwrite: whether to replace existing files.

    Raises:
        UsageError: a run without per-record losses, or a signed one without its key. DataError: no per-record file.
            PrivacyError: a histogram of a run that is not private.
    """
    _check_options(plot, publish_epsilon, sign, recover)
    with new_files({"--csv": csv, "--plot": plot}, inputs=(*inputs_of(folder), sign, book), overwrite=overwrite):
        return _pdp_report(folder, csv, plot, publish_epsilon, sign, recover, book)


def dry_run(
    folder: Path,
    *,
    csv: Path | None = None,
    plot: Path | None = None,
    publish_epsilon: float | None = None,
    sign: Path | None = None,
    recover: bool = False,
    book: Path | None = None,
    overwrite: bool = False,
) -> DryRun:
    """What `pdp_report` would read, spend and write. Its facts are public; no loss of a record is among them.

    Returns: run, records, epsilon and delta of the run (epsilon None if it is not private); publish_epsilon; with it
        noise_std, epsilon_after, file and signed; together (runs, epsilon, delta and epsilon_by_unit of all runs of the
        budget book with the histogram); book; private_files (those of `csv` and `plot`).

    Raises:
        UsageError: with `recover`, which spends nothing. LinprobeError: as `pdp_report`.
    """
    if recover:
        raise UsageError("options --dry-run and --recover exclude each other; a recovery spends nothing: leave one out")
    _check_options(plot, publish_epsilon, sign, recover)
    with new_files({"--csv": csv, "--plot": plot}, inputs=(*inputs_of(folder), sign, book), overwrite=overwrite):
        files = RunFiles(folder)
        run = _loaded(files)
        _refuse_unsealed(run, files)
        ids, _ = _losses(run)
        planned = None
        if publish_epsilon is not None:
            planned = _published_histogram.preview(run, files, publish_epsilon, sign, book)
    epsilon, delta, noun = stated_epsilon(run.manifest), run.manifest["delta"], NOUNS[unit_of(run.manifest)]
    private_files = [str(path) for path in (csv, plot) if path is not None]
    facts = {
        "run": str(folder),
        "records": len(ids),
        "epsilon": epsilon if run.manifest["private"] else None,
        "delta": delta,
        "publish_epsilon": publish_epsilon,
        "private_files": private_files,
        "together": together_facts(None if planned is None else planned.spent),
        "book": None if planned is None else str(planned.book),
    }
    lines: Lines = [("reads", f"{folder}: losses of {len(ids):,} private {noun}")]
    writes = [f"{path}: private" for path in private_files]
    if planned is None:
        lines.append(("spends", "nothing; the report is private"))
        return DryRun(facts, [*lines, *listed("writes", writes or ["nothing; the report goes to stdout"])])
    facts |= {
        "noise_std": planned.noise_std,
        "epsilon_after": planned.epsilon_after,
        "file": str(planned.file),
        "signed": SIGNATURE in planned.changed,
    }
    lines += [
        ("spends", f"epsilon {publish_epsilon:g} at delta {rounded_up(delta)}"),
        ("", f"{HISTOGRAM_BINS} counts of {noun}, each with noise of standard deviation {planned.noise_std:.4g}"),
        ("states", f"epsilon {rounded_up(planned.epsilon_after)} of the run, before {rounded_up(epsilon)}"),
        *together_line(planned.spent),
    ]
    changed = f"{folder}: {', '.join(planned.changed)}"
    return DryRun(
        facts, [*lines, *written(f"{planned.file}, which may be published", changed, *writes, book=planned.book)]
    )


def _check_options(plot: Path | None, publish_epsilon: float | None, sign: Path | None, recover: bool) -> None:
    if plot is not None:
        plots.check_format(plot)
    if publish_epsilon is not None:
        check_epsilon(publish_epsilon)
    elif sign is not None and not recover:
        raise UsageError("option --sign does nothing without --publish-epsilon or --recover; leave it out")


def _pdp_report(
    folder: Path,
    csv: Path | None,
    plot: Path | None,
    publish_epsilon: float | None,
    sign: Path | None,
    recover: bool,
    book: Path | None,
) -> PdpReport:
    published = recovered = None
    writes = recover or publish_epsilon is not None
    with _published_histogram.publishing(folder) if writes else nullcontext():
        files = RunFiles(folder)
        run = _loaded(files)
        if recover:
            recovered = _published_histogram.recover(run, files, sign)
            files = RunFiles(folder)
            run = _loaded(files)
        else:
            _refuse_unsealed(run, files)
        ids, losses = _losses(run)
        manifest = run.manifest
        if publish_epsilon is not None:
            published, manifest = _published_histogram.publish(run, files, losses, publish_epsilon, sign, book)
    # a published histogram costs every record the same
    losses = losses.charged(sum((1 / release["noise_multiplier"]) ** 2 for release in manifest["published"]))
    worst = stated_epsilon(manifest)
    epsilons = losses.epsilon(manifest["delta"], worst)
    title, column = f"{manifest['method']} on {Path(manifest['features']).stem}", "epsilon"
    if not manifest["private"]:
        title, column = f"{title}, NOT PRIVATE (seeded)", "epsilon_if_seed_were_secret"
    if csv is not None:
        writing(csv, lambda: write_csv(csv, ids, epsilons, column))
    if plot is not None:
        writing(plot, lambda: plots.sorted_epsilons(plot, epsilons, worst, title, NOUNS[unit_of(manifest)]))
    return PdpReport(per_record_report(epsilons, manifest), sparkline(epsilons, worst), published, recovered)


def _loaded(files: RunFiles) -> LoadedRun:
    """A run with per-record losses. UsageError: a run that has none."""
    run = loaded(files, read_manifest(files))
    if run.manifest["accountant"] is None:
        raise UsageError(
            f"run {run.folder} used method {run.manifest['method']}, which releases nothing with noise; "
            "only methods that spend a budget have per-record losses"
        )
    if "selection" in run.manifest:
        raise UsageError(
            f"run {run.folder} was chosen by private selection, for which no bound of a single record below epsilon "
            f"{rounded_up(run.manifest['epsilon'])} of the run is known; allowed: runs of linprobe train, or of tune "
            "without --grid"
        )
    return run


def _refuse_unsealed(run: LoadedRun, files: RunFiles) -> None:
    if unsealed_events(ledger_of(files), run.manifest["files"][LEDGER]) is not None:
        raise PrivacyError(stopped_publishing(run.folder))


def _losses(run: LoadedRun) -> tuple[Any, RecordLosses]:
    ids, losses, _ = read_per_record(run.folder, run.manifest)
    if len(losses.mu) != len(ids):
        raise UsageError(f"run {run.folder} was trained with --no-per-record; train with --per-record to track records")
    return ids, losses
