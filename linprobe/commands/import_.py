"""`linprobe import`: arrays to a feature file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.atomic_files import given_text
from linprobe.commands._output import new_files
from linprobe.commands.info import describe_features
from linprobe.data.array_import import import_arrays
from linprobe.data.tables import Columns
from linprobe.errors import DataError, LinprobeError, advice
from linprobe.progress import Progress


@dataclass(frozen=True)
class ImportRequest:
    """The arguments of `linprobe import`.

    `label_column` and `id_column` are those of tables; `owner_column` also names arrays.
    """

    sources: Sequence[Path]
    out: Path
    classes: Path | None = None
    label_column: str = Columns.label
    id_column: str | None = None
    owner_column: str | None = None
    private_test: bool = False
    overwrite: bool = False


def import_(request: ImportRequest, progress: Progress) -> dict[str, Any]:
    """Write arrays to a feature file; returns its description, as `info` does.

    Raises:
        UsageError: `out` is a folder or an input, or exists and `overwrite` is false. DataError: unreadable arrays or
            class list. LinprobeError: `out` is not writable.
    """
    inputs = (*request.sources, request.classes)
    with new_files(request.out, what="feature file", inputs=inputs, overwrite=request.overwrite):
        return _import(request, progress)


def _import(request: ImportRequest, progress: Progress) -> dict[str, Any]:
    names, out, classes = None, request.out, request.classes
    if classes is not None:
        try:
            names = [line.strip() for line in given_text(classes, "utf-8-sig").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"class list {classes} cannot be read ({error}); give one class name per line") from None
    try:
        import_arrays(
            request.sources,
            out,
            names,
            private_test=request.private_test,
            columns=Columns(request.label_column, request.id_column, request.owner_column),
            progress=progress,
        )
    except OSError as error:
        raise LinprobeError(f"feature file {out} cannot be written ({error}); {advice(error)}") from None
    return describe_features(out)
