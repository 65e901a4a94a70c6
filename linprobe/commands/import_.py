"""`linprobe import`: arrays to a feature file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linprobe.commands.info import describe_features
from linprobe.data.array_import import import_arrays
from linprobe.errors import DataError, LinprobeError, UsageError, advice


def import_(sources: Sequence[Path], out: Path, classes: Path | None, *, private_test: bool) -> dict[str, Any]:
    """Write arrays to a feature file; returns its description, as `info` does.

    Raises:
        UsageError: `out` is a folder. DataError: unreadable arrays or class list. LinprobeError: `out` is not
            writable.
    """
    if out.is_dir():
        raise UsageError(f"feature file {out} is a folder; give --out a file name")
    names = None
    if classes is not None:
        try:
            names = [line.strip() for line in classes.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"class list {classes} cannot be read ({error}); give one class name per line") from None
    try:
        import_arrays(sources, out, names, private_test=private_test)
    except OSError as error:
        raise LinprobeError(f"feature file {out} cannot be written ({error}); {advice(error)}") from None
    return describe_features(out)
