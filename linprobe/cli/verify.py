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
            Path | None, typer.Option(help="Feature file; also check that the run was trained on its private rows.")
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Check that a run is intact and its epsilon correct.

        Two accountants recompute epsilon from the ledger. Any mismatch or edit ends with exit status 4."""
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
