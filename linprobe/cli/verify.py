"""`linprobe verify`: recompute a run's guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import Json, RunArgument, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def verify(
        run: RunArgument,
        features: Annotated[
            Path | None, typer.Option(help="Feature file, to check that its private rows are the run's.")
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Recompute epsilon from the ledger with two accountants; exit 4 on any mismatch or edit."""
        from linprobe.cli import _terminal
        from linprobe.commands.verify import verify

        result = verify(run, features)
        if as_json:
            print_json(result)
            return
        _terminal.note(
            f"epsilon {_terminal.figure(result['epsilon'], '.6g')} (cross-check "
            f"{_terminal.figure(result['epsilon_cross_check'], '.6g')}), {result['releases']} releases; "
            f"data {result['data']}"
        )
        typer.echo("verified")
