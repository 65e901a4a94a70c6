"""`linprobe extract`: images to a feature file."""

from __future__ import annotations

from linprobe.extraction.request import ExtractOutcome, ExtractRequest
from linprobe.progress import Progress


def extract(request: ExtractRequest, progress: Progress) -> ExtractOutcome | None:
    """Images to a feature file; None in a process that is not the first of several."""
    # torch and torchvision take seconds to load; the other commands need neither
    from linprobe.extraction.extract import extract as run_extraction

    return run_extraction(request, progress)
