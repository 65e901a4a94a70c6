"""`linprobe predict`: classes of rows, as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.atomic_files import path_from, plain_cell
from linprobe.cli._shared import AllowOther, Calibrate, RunArgument


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def predict(
        run: RunArgument,
        features: Annotated[
            Path,
            typer.Argument(
                metavar="FEATURES|-",
                parser=path_from,
                help="Feature file or .npy array of rows; - reads its path from stdin.",
            ),
        ],
        group: Annotated[
            str | None,
            typer.Option(help="Group of the feature file: rows, test, train, public. [default: rows, else test]"),
        ] = None,
        allow_other_features: AllowOther = False,
        probabilities: Annotated[bool, typer.Option("--probabilities", help="Add a column for every class.")] = False,
        calibrate: Calibrate = None,
    ) -> None:
        """Print id, label and score of every row as CSV; the score is the label's probability.

        With several labels a row, a column for each label has 1 where its probability is above one half, else 0.
        """
        import csv
        import itertools
        import sys

        from linprobe.cli import _terminal
        from linprobe.commands.predict import predict

        progress = _terminal.TerminalProgress()
        rows = predict(
            run,
            features,
            group,
            progress,
            allow_other=allow_other_features,
            all_classes=probabilities,
            calibrate=calibrate,
        )
        writer = csv.writer(sys.stdout, lineterminator="\n")
        header, first = next(rows), next(rows, None)  # a bad file is refused here, before anything is printed
        writer.writerow(map(plain_cell, header))
        for row in () if first is None else itertools.chain([first], rows):
            writer.writerow(f"{cell:.6f}" if isinstance(cell, float) else plain_cell(str(cell)) for cell in row)
