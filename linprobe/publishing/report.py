"""`linprobe report`: a verified run as one page for a privacy reviewer."""

from __future__ import annotations

import json
from typing import Any

from linprobe.atomic_files import replace_when_complete
from linprobe.errors import DataError, UsageError
from linprobe.options.requests import ReportRequest
from linprobe.reporting.page import Evidence, page
from linprobe.runs.check import verified
from linprobe.runs.output import inputs_of, new_files, writing
from linprobe.runs.run_folder import RunFolder

SUFFIXES = (".html", ".htm")


def report(request: ReportRequest) -> None:
    """Verify a run as `verify` does, then write its page.

    Raises:
        PrivacyError: the run does not verify. UsageError: no name of a page. DataError: a damaged histogram.
    """
    html, folder = request.html, request.run
    if html.suffix.lower() not in SUFFIXES:
        raise UsageError(f"page {html} ends in {html.suffix!r}; allowed: {', '.join(SUFFIXES)}")
    with new_files({"--html": html}, what="page", inputs=inputs_of(folder), overwrite=request.overwrite):
        run = RunFolder(folder)
        checked, manifest = verified(run), run.manifest
        evidence = Evidence(
            name=folder.resolve().name,
            manifest=manifest,
            checked=checked,
            histograms=[_histogram(run, name) for name in manifest.histogram_files],
            test_metrics=run.test_metrics,
            title=request.title,
            owner=request.owner,
        )
        text = page(evidence)

        def write() -> None:
            with replace_when_complete(html, "w") as stream:
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
