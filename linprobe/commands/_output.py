"""Files a command was asked to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from linprobe.errors import LinprobeError


def check_folders(*paths: Path | None) -> None:
    """Refuse, before anything is computed, files in folders that do not exist."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise LinprobeError(f"{path} cannot be written: there is no folder {path.parent}; make it first")


def writing(path: Path, write: Callable[[], None]) -> None:
    """Call `write`; one line if the place refuses."""
    try:
        write()
    except OSError as error:
        raise LinprobeError(f"{path} cannot be written ({error.strerror}); give another place") from None
