"""`--log-to`: the public facts of a finished run, sent to an experiment tracker."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

from linprobe.errors import UsageError, require_for
from linprobe.methods import Method
from linprobe.options.requests import TrainRequest
from linprobe.progress import Progress
from linprobe.reporting.tracking import track
from linprobe.runs.manifest import HISTORY
from linprobe.runs.run_folder import RunFolder


def refuse_tracking(request: TrainRequest, method: Method) -> None:
    """UsageError if --log-to names a tracker that is not installed, or for a run without a guarantee."""
    if request.log_to is None:
        return
    if not method.private or request.insecure_seed:
        what = f"method {method.name}" if not method.private else "a run with --noise-seed"
        raise UsageError(f"log-to is {request.log_to}, and {what} has no guarantee; leave out --log-to")
    require_for("log_to", request.log_to)


def send(request: TrainRequest, outcome: dict[str, Any], progress: Progress) -> None:
    """Send the run of an outcome of `train`. A tracker that fails is a note: the run is complete and paid for."""
    if request.log_to is None or not outcome:
        return
    folder = Path(outcome["run"])
    run = RunFolder(folder)
    lines = StringIO(run[HISTORY].decode(), newline="")
    history = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(lines)]
    try:
        track(request.log_to, folder.name, run.manifest, history)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        progress.note(f"{request.log_to} did not take the run ({reason}); the run is complete in {folder}")
