"""`linprobe evaluate`: figures of a run on test rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import AllowOther, Calibrate, Json, RunArgument, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def evaluate(
        run: RunArgument,
        features: Annotated[
            Path | None, typer.Argument(metavar="[FEATURES]", help="Feature file. [default: the run's]")
        ] = None,
        allow_other_features: AllowOther = False,
        calibrate: Calibrate = None,
        as_json: Json = False,
    ) -> None:
        """Print a run's accuracy on the test rows of a feature file, or with several labels a row its macro AUROC.

        Tables on stderr have balanced accuracy, AUROC, calibration error, and figures of each class with 95 %
        intervals. --json has them all, and the confusion matrix.
        """
        from linprobe.cli import _terminal
        from linprobe.commands.evaluate import evaluate, tables_of

        result = evaluate(
            run, features, _terminal.TerminalProgress(), allow_other=allow_other_features, calibrate=calibrate
        )
        if as_json:
            print_json(result)
        else:
            tables = tables_of(result)
            _terminal.table(f"{result['test_rows']} test rows", tables.overall)
            _terminal.table(f"{tables.by}, with 95 % intervals", tables.rows, header=tables.header)
            if tables.left_out:
                _terminal.note(f"{tables.left_out} more classes are in --json")
            typer.echo("-" if tables.headline is None else f"{tables.headline:.4f}")
