"""`linprobe pdp-report`: each record's own privacy loss, and its noisy histogram.

Source: AdaMix (Golatkar et al. 2022), Figure 3 and Proposition 14.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe import atomic_files
from linprobe.accounting.calibrate import check_epsilon
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.per_instance import HISTOGRAM_BINS, RecordLosses, summary
from linprobe.errors import UsageError
from linprobe.options.requests import PdpReportRequest
from linprobe.plans.words import DryRun, Lines, listed, together_facts, together_line, written
from linprobe.publishing import histogram
from linprobe.reporting import plots
from linprobe.runs.check import refuse_interrupted
from linprobe.runs.guarantee import NOUNS
from linprobe.runs.manifest import Manifest
from linprobe.runs.output import inputs_of, new_files, writing
from linprobe.runs.run_folder import RunFolder, read_run

VALIDITY = "given the released weights of every step; each figure is at most the worst-case epsilon"
VALIDITY_SAMPLED = (
    "individual Renyi accounting of Poisson samples, for the trajectory of weights that was released; "
    "each figure is at most the worst-case epsilon"
)
SEEDED = "nowhere: the noise came from a seed the user gave; the figures hold for a run whose seed is secret"
SPARK = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class PdpReport:
    """The per-record report, its curve as text, and the published histogram. Private."""

    report: dict[str, Any]
    sparkline: str
    published: dict[str, Any] | None


def pdp_report(request: PdpReportRequest) -> PdpReport:
    """Summarise the per-record losses of a run. Optionally write them, draw them, or release their histogram.

    Raises:
        UsageError: a run without per-record losses, or a signed one without its key. DataError: no per-record file.
            PrivacyError: a histogram of a run that is not private.
    """
    with _checked_files(request):
        return _pdp_report(request)


def dry_run_of_report(request: PdpReportRequest) -> DryRun:
    """What `pdp_report` would read, spend and write. Its facts are public; no loss of a record is among them.

    Returns: run, records, epsilon and delta of the run (epsilon None if it is not private); publish_epsilon; with it
        noise_std, epsilon_after, file and signed; together (runs, epsilon, delta and epsilon_by_unit of all runs of the
        budget book with the histogram); book; private_files (`csv` and `plot`).

    Raises:
        LinprobeError: as `pdp_report`.
    """
    with _checked_files(request):
        run = _loaded(request.run)
        ids, _ = _losses(run)
        planned = None
        if request.publish_epsilon is not None:
            planned = histogram.preview_publication(run, request.publish_epsilon, request.sign, request.book)
    (epsilon, delta), noun = run.manifest.bound, NOUNS[run.manifest.unit]
    private_files = [str(path) for path in (request.csv, request.plot) if path is not None]
    facts = {
        "run": str(request.run),
        "records": len(ids),
        "epsilon": epsilon if run.manifest.private else None,
        "delta": delta,
        "publish_epsilon": request.publish_epsilon,
        "private_files": private_files,
        "together": together_facts(None if planned is None else planned.spent),
        "book": None if planned is None else str(planned.book),
    }
    lines: Lines = [("reads", f"{request.run}: losses of {len(ids):,} private {noun}")]
    writes = [f"{path}: private" for path in private_files]
    if planned is None:
        lines.append(("spends", "nothing; the report is private"))
        return DryRun(facts, [*lines, *listed("writes", writes or ["nothing; the report goes to stdout"])])
    facts |= {
        "noise_std": planned.noise_std,
        "epsilon_after": planned.epsilon_after,
        "file": str(planned.file),
        "signed": planned.signed,
    }
    after = rounded_up(planned.epsilon_after)
    lines += [
        ("spends", f"epsilon {request.publish_epsilon:g} at delta {rounded_up(delta)}"),
        ("", f"{HISTOGRAM_BINS} counts of {noun}, each with noise of standard deviation {planned.noise_std:.4g}"),
        ("states", f"epsilon {after} of the new run, where {request.run} states {rounded_up(epsilon)}"),
        *together_line(planned.spent),
    ]
    made = f"{planned.out}: the run with {planned.file.name}, which may be published"
    return DryRun(facts, [*lines, *written(made, *writes, book=planned.book)])


def _checked_files(request: PdpReportRequest) -> AbstractContextManager[None]:
    """`new_files` for the curve and the losses of the records, after a check of the options."""
    if request.plot is not None:
        plots.check_format(request.plot)
    if request.publish_epsilon is not None:
        check_epsilon(request.publish_epsilon)
    elif request.sign is not None:
        raise UsageError("option --sign does nothing without --publish-epsilon; leave it out")
    inputs = (*inputs_of(request.run), request.sign, request.book)
    return new_files({"--csv": request.csv, "--plot": request.plot}, inputs=inputs, overwrite=request.overwrite)


def _pdp_report(request: PdpReportRequest) -> PdpReport:
    run, published, csv, plot = _loaded(request.run), None, request.csv, request.plot
    (ids, losses), manifest = _losses(run), run.manifest
    if request.publish_epsilon is not None:
        published, manifest = histogram.publish(run, request.publish_epsilon, request.sign, request.book)
    # a published histogram costs every record the same
    losses = losses.charged(sum((1 / release.noise_multiplier) ** 2 for release in manifest.published))
    worst, delta = manifest.bound
    epsilons = losses.epsilon(delta, worst)
    title, column = f"{manifest.method} on {Path(manifest.features).stem}", "epsilon"
    if not manifest.private:
        title, column = f"{title}, NOT PRIVATE (seeded)", "epsilon_if_seed_were_secret"
    if csv is not None:
        writing(csv, lambda: _write_csv(csv, ids, epsilons, column))
    if plot is not None:
        writing(plot, lambda: plots.sorted_epsilons(plot, epsilons, worst, title, NOUNS[manifest.unit]))
    return PdpReport(_report(epsilons, manifest), sparkline(epsilons, worst), published)


def _loaded(folder: Path) -> RunFolder:
    """A run with per-record losses. UsageError: a run that has none."""
    run = read_run(folder)
    refuse_interrupted(run)
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
    """The JSON report: guarantee, epsilon (None for a seeded run), delta, unit, gdp_mu and zcdp_rho (None likewise),
    records (with unit owner, people), max, mean, quantiles, share_below_half, valid. Private.

    Args:
        epsilons: each record's own, (n,); of a seeded run, as if its seed were secret.
        manifest: of a run that released something with noise.
    """
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


def sparkline(epsilons: NDArray[np.float64], epsilon: float, width: int = 60) -> str:
    """The sorted curve as text, one column per quantile, full height at the worst case `epsilon`."""
    if not epsilons.size:
        return ""
    heights = np.quantile(epsilons, (np.arange(width) + 0.5) / width) / epsilon
    return "".join(SPARK[min(len(SPARK) - 1, int(height * len(SPARK)))] for height in heights)


def _write_csv(path: Path, ids: list[str], epsilons: NDArray[np.float64], column: str) -> None:
    """Write one line per record, its id and, under the name `column`, its epsilon, rounded up; mode 0600."""
    figures = zip(ids, epsilons.tolist(), strict=True)
    atomic_files.write_csv(path, ({"id": name, column: rounded_up(value)} for name, value in figures), private=True)
