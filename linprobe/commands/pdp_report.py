"""`linprobe pdp-report`: each record's own privacy loss, and its noisy histogram."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.accounting.calibrate import check_epsilon
from linprobe.accounting.figures import rounded_up
from linprobe.commands import _published_histogram
from linprobe.commands._output import new_files, writing
from linprobe.errors import PrivacyError, UsageError
from linprobe.reporting import plots
from linprobe.reporting.pdp_report import per_record_report, sparkline, write_csv
from linprobe.runs import run_folder
from linprobe.runs.manifest import read_manifest, stated_epsilon
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
    if plot is not None:
        plots.check_format(plot)
    if publish_epsilon is not None:
        check_epsilon(publish_epsilon)
    elif sign is not None and not recover:
        raise UsageError("option --sign does nothing without --publish-epsilon or --recover; leave it out")
    with new_files(csv, plot, overwrite=overwrite):
        return _pdp_report(folder, csv, plot, publish_epsilon, sign, recover, book)


def _pdp_report(
    folder: Path,
    csv: Path | None,
    plot: Path | None,
    publish_epsilon: float | None,
    sign: Path | None,
    recover: bool,
    book: Path | None,
) -> PdpReport:
    run = run_folder.load_run(folder)
    if run.manifest["accountant"] is None:
        raise UsageError(
            f"run {folder} used method {run.manifest['method']}, which releases nothing with noise; "
            "only methods that spend a budget have per-record losses"
        )
    if "selection" in run.manifest:
        raise UsageError(
            f"run {folder} was chosen by private selection, for which no bound of a single record below epsilon "
            f"{rounded_up(run.manifest['epsilon'])} of the run is known; allowed: runs of linprobe train, or of tune "
            "without --grid"
        )
    recovered = None
    if recover:
        recovered = _published_histogram.recover(run, sign)
        run = run_folder.load_run(folder)
    elif unsealed_events(folder / run_folder.LEDGER, run.manifest["files"][run_folder.LEDGER]) is not None:
        raise PrivacyError(stopped_publishing(folder))
    ids, losses, _ = run_folder.read_per_record(folder, run.manifest)
    if len(losses.mu) != len(ids):
        raise UsageError(f"run {folder} was trained with --no-per-record; train with --per-record to track records")
    published = (
        None if publish_epsilon is None else _published_histogram.publish(run, losses, publish_epsilon, sign, book)
    )
    manifest = read_manifest(folder)
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
