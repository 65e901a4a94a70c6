"""`linprobe export`: a trained probe in the format of other software."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import Calibrate, Overwrite, RunArgument, print_made


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def export(
        run: RunArgument,
        to: Annotated[str, typer.Option(metavar="FORMAT", help="safetensors, onnx, sklearn or torch.")],
        out: Annotated[Path, typer.Option(help="File to write.")],
        calibrate: Calibrate = None,
        overwrite: Overwrite = False,
    ) -> None:
        """Write the probe to a file for other software, and print its path.

        Verifies the run first. The file takes raw feature rows and says what the run guarantees.
        """
        from linprobe.cli import _terminal
        from linprobe.commands.export import ExportRequest, export

        request = ExportRequest(run=run, to=to, out=out, calibrate=calibrate, overwrite=overwrite)
        note = export(request, _terminal.TerminalProgress())
        if note["private"] == "true":
            _terminal.note(f"{note['method']}: {note['guarantee']}")
        print_made("file", out)
