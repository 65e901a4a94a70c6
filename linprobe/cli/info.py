"""`linprobe info`: describe a feature file or a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.atomic_files import path_from
from linprobe.cli._shared import Json, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def info(
        path: Annotated[
            Path,
            typer.Argument(
                metavar="FILE_OR_RUN|-",
                parser=path_from,
                help="Feature file or run folder; - reads its path from stdin.",
            ),
        ],
        as_json: Json = False,
    ) -> None:
        """Describe a feature file or a run folder."""
        from linprobe.commands.info import info
        from linprobe.errors import printable

        description = info(path)
        if as_json:
            print_json(description)
            return
        for key, value in description.items():
            shown = value
            if isinstance(value, list) and len(value) > 8:
                shown = f"{', '.join(map(str, value[:8]))}, ... ({len(value)})"
            elif isinstance(value, list):
                shown = "; ".join(map(str, value))
            elif isinstance(value, dict) and len(value) > 20:
                shown = f"{len(value)} entries"
            elif isinstance(value, dict):
                shown = ", ".join(f"{name} {item}" for name, item in value.items())
            typer.echo(printable(f"{key:<24} {shown}"))
