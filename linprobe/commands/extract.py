"""`linprobe extract`: images to a feature file."""

from __future__ import annotations

from linprobe.extraction.request import ExtractOutcome
from linprobe.extraction.request import ExtractRequest as ExtractRequest
from linprobe.progress import Progress


def extract(request: ExtractRequest, progress: Progress) -> ExtractOutcome | None:
    """Extract features of images to a feature file; None in every process but the first of several."""
    # torch and torchvision take seconds to import
    from linprobe.extraction.extract import extract as run_extraction

    return run_extraction(request, progress)
