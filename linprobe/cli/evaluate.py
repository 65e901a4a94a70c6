"""`linprobe evaluate`: accuracy of a run on test rows."""

from __future__ import annotations

from typing import Annotated

import typer

from linprobe.cli._shared import Json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def evaluate(
        run: Annotated[str, typer.Argument(metavar="RUN|-", help="Run folder; - reads its path.")],
        features: Annotated[
            str | None, typer.Argument(metavar="[FEATURES]", help="Feature file; none: the one of the run.")
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Print a run's accuracy on the test rows of a feature file."""
        from pathlib import Path

        from linprobe.atomic_files import path_from
        from linprobe.cli._shared import print_json
        from linprobe.commands import predict as command

        result = command.evaluate(path_from(run), None if features is None else Path(features))
        if as_json:
            print_json(result)
        else:
            typer.echo(f"{result['test_accuracy']:.4f}")
