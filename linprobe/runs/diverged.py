"""Keeps the ledger of a run that diverged. Its owner saw the divergence, so its releases count."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

from linprobe.accounting.ledger import read_ledger, read_selection
from linprobe.atomic_files import write_json

NOTE = "diverged.json"


def keep_charge(partial: Path, out: Path, ledger: str, inherited: str, reason: str) -> Path | None:
    """Turn the folder of an unfinished run of `out` into `OUT.diverged` with the ledger and a note only.

    Args:
        ledger: name of the ledger file. inherited: purpose of releases that an earlier run made.

    Returns:
        The new folder, `OUT.diverged-2` and so on if there is one already; None if the run released nothing.
    """
    if read_selection(partial / ledger) is None:
        released = sum(event.purpose != inherited for event in read_ledger(partial / ledger))
    else:
        released = 1
    if not released:
        return None
    for path in partial.iterdir():
        if path.name != ledger:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    note = {
        "what": "the ledger of a training run that diverged; its releases count",
        "run": str(out),
        "reason": reason,
        "releases": released,
    }
    write_json(partial / NOTE, note)
    for number in count(1):
        kept = out.with_name(f"{out.name}.diverged" if number == 1 else f"{out.name}.diverged-{number}")
        if not kept.exists():
            partial.rename(kept)
            return kept
    return None
