"""Histograms paid for and not sealed: `pdp-report --publish-epsilon` was killed before it wrote the manifest."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path

from linprobe.accounting.events import GaussianEvent
from linprobe.accounting.ledger import event_of

HISTOGRAM = "histogram"


def unsealed_events(ledger: bytes, digest: str) -> list[GaussianEvent] | None:
    """Histogram events at the end of a ledger, after the part whose SHA-256 is `digest`.

    An incomplete last line is no event, because its noise was not drawn. None if the whole ledger has that digest, or
    if anything but histogram events follows that part.
    """
    lines = BytesIO(ledger).readlines()
    sha, sealed = hashlib.sha256(), None
    for number, line in enumerate(lines, start=1):
        sha.update(line)
        if sha.hexdigest() == digest:
            sealed = number
    if sealed is None or sealed == len(lines):
        return None
    if not lines[-1].endswith(b"\n"):
        lines.pop()
    try:
        events = [event_of(line) for line in lines[sealed:]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return events if all(event.purpose == HISTOGRAM for event in events) else None


def stopped_publishing(folder: Path) -> str:
    """Error text for a run with unsealed events: what happened, and the next step."""
    return (
        f"run {folder} was charged for a histogram, and pdp-report was stopped before it updated the manifest; "
        f"run linprobe pdp-report {folder} --recover, which states the larger epsilon"
    )
