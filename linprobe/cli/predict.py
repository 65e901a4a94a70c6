"""`linprobe predict`: classes of rows, as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.atomic_files import path_from, plain_cell


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def predict(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
        features: Annotated[
            Path,
            typer.Argument(
                metavar="FEATURES|-",
                parser=path_from,
                help="Feature file or .npy array of rows; - reads its path from stdin.",
            ),
        ],
        group: Annotated[str, typer.Option(help="Group of the feature file: test, train, public.")] = "test",
    ) -> None:
        """Print id, label and score of every row as CSV."""
        import csv
        import itertools
        import sys

        from linprobe.commands.predict import predict

        rows = predict(run, features, group)
        writer = csv.writer(sys.stdout, lineterminator="\n")
        first = next(rows, None)  # a bad file is refused here, before anything is printed
        writer.writerow(["id", "label", "score"])
        for record_id, label, score in () if first is None else itertools.chain([first], rows):
            writer.writerow([plain_cell(record_id), plain_cell(label), f"{score:.6f}"])
