"""`linprobe evaluate`: accuracy of a run on test rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import AllowOther, Json, RunArgument, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def evaluate(
        run: RunArgument,
        features: Annotated[
            Path | None, typer.Argument(metavar="[FEATURES]", help="Feature file. [default: the run's]")
        ] = None,
        allow_other_features: AllowOther = False,
        as_json: Json = False,
    ) -> None:
        """Print a run's accuracy on the test rows of a feature file."""
        from linprobe.cli import _terminal
        from linprobe.commands.evaluate import evaluate

        result = evaluate(run, features, _terminal.TerminalProgress(), allow_other=allow_other_features)
        if as_json:
            print_json(result)
        else:
            typer.echo(f"{result['test_accuracy']:.4f}")
