"""`linprobe report`: a verified run as one page for a privacy reviewer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from linprobe.atomic_files import read_text, replace_when_complete
from linprobe.errors import DataError, UsageError
from linprobe.options.requests import ReportRequest
from linprobe.reporting.page import Evidence, page
from linprobe.runs.check import not_checked, verified
from linprobe.runs.manifest import Manifest
from linprobe.runs.output import inputs_of, new_files, writing
from linprobe.runs.run_folder import RunFolder

SUFFIXES = (".html", ".htm")


def report(request: ReportRequest) -> None:
    """Verify a run as `verify` does, then write its page; mode 0600 if it holds results of `attacks`.

    Raises:
        PrivacyError: the run does not verify. DataError: a file in `attacks` is damaged or of another run.
    """
    html, folder = request.html, request.run
    if html.suffix.lower() not in SUFFIXES:
        raise UsageError(f"page {html} ends in {html.suffix!r}; allowed: {', '.join(SUFFIXES)}")
    inputs = (*inputs_of(folder), *request.attack)
    with new_files({"--html": html}, what="page", inputs=inputs, overwrite=request.overwrite):
        run = RunFolder(folder)
        checked, manifest = verified(run), run.manifest
        evidence = Evidence(
            name=folder.resolve().name,
            manifest=manifest,
            checked=checked,
            histograms=[_histogram(run, name) for name in manifest.histogram_files],
            attacks=[_attack(path, manifest) for path in request.attack],
            test_metrics=run.test_metrics,
            # the page is the same without the private file
            stated=[name for name in not_checked(run) if not name.startswith("per_record")],
            title=request.title,
            owner=request.owner,
        )
        text = page(evidence)

        def write() -> None:
            with replace_when_complete(html, "w", private=bool(request.attack)) as stream:
                stream.write(text)

        writing(html, write)


def _histogram(run: RunFolder, name: str) -> dict[str, Any]:
    """A published histogram. `verify` has checked its digest and price."""
    path = run.folder / name
    try:
        histogram = json.loads(run[name].decode())
        edges, counts = list(map(float, histogram["bin_edges"])), list(map(int, histogram["noisy_counts"]))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__} {error}); restore it") from None
    if not counts or len(edges) != len(counts) + 1:
        raise DataError(f"{path} must have one more bin edge than counts; restore it from a copy")
    return {"bin_edges": edges, "noisy_counts": counts}


def _attack(path: Path, manifest: Manifest) -> dict[str, Any]:
    """The result of `linprobe attack` on this run. Private.

    Raises:
        DataError: unreadable, a figure missing, or the result of another run or of an earlier manifest of this run.
    """
    try:
        attack = json.loads(read_text(path))
        if attack["manifest_digest"] != manifest.manifest_digest:
            raise DataError(
                f"attack {path} is of {attack['run']} with manifest digest {attack['manifest_digest']:.16}; this run "
                f"has {manifest.manifest_digest:.16}; attack this run again and give the new file"
            )
        figures = [attack[name] for name in ("auc", "members", "non_members")]
        figures += [attack["tpr_at_fpr"][rate] for rate in ("0.001", "0.01")]
        figures += [attack[name] for name in ("auc_low", "auc_high", "shadows") if attack[name] is not None]
        if not str(attack["attack"]).isprintable() or not all(math.isfinite(value) for value in figures):
            raise ValueError("a figure is not finite")
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"attack {path} cannot be read ({type(error).__name__}: {error}); give what linprobe attack --json printed"
        ) from None
    return dict(attack)
