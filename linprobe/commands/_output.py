"""Output files of commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from linprobe.errors import LinprobeError


def check_folders(*paths: Path | None) -> None:
    """LinprobeError unless the folder of every path exists; called before anything is computed."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise LinprobeError(f"{path} cannot be written: there is no folder {path.parent}; create it first")


def writing(path: Path, write: Callable[[], None]) -> None:
    """Call `write`; an OSError becomes a LinprobeError of one line."""
    try:
        write()
    except OSError as error:
        raise LinprobeError(f"{path} cannot be written ({error.strerror}); give another path") from None
