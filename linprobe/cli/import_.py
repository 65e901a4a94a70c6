"""`linprobe import`: arrays to a feature file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import PRIVATE_TEST, DryRunFlag, Overwrite, print_dry_run, print_made


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command("import")
    def import_(
        arrays: Annotated[
            list[Path],
            typer.Argument(
                metavar="ARRAYS...",
                help="One .npz or .pt; or X_train.npy, y_train.npy, ... (or .pt); or tables train.csv and test.csv "
                "(or .parquet, .arrow); or a folder of them, or of a Hugging Face data set.",
            ),
        ],
        out: Annotated[Path, typer.Option(help="Feature file to write.")],
        classes: Annotated[Path | None, typer.Option(help="File of class names in label order, one per line.")] = None,
        label_column: Annotated[
            str,
            typer.Option(
                help="Tables: column of labels; NAME,NAME,... for columns of 0 and 1, which give rows several labels."
            ),
        ] = "label",
        id_column: Annotated[
            str | None, typer.Option(help="Tables: column of record ids. [default: id, if there is one]")
        ] = None,
        owner_column: Annotated[
            str | None,
            typer.Option(
                help="Column of a table, or array NAME_train, with the person each row belongs to. [default: owner, "
                "if there is one]",
                metavar="NAME",
            ),
        ] = None,
        overwrite: Overwrite = False,
        private_test: Annotated[bool, typer.Option("--private-test", help=PRIVATE_TEST)] = False,
        dry_run: DryRunFlag = False,
    ) -> None:
        """Turn arrays into a feature file and print its path."""
        from linprobe.cli import _terminal
        from linprobe.extraction import import_ as command

        request = command.ImportRequest(
            sources=arrays,
            out=out,
            classes=classes,
            label_column=label_column,
            id_column=id_column,
            owner_column=owner_column,
            private_test=private_test,
            overwrite=overwrite,
        )
        if dry_run:
            with _terminal.TerminalProgress() as progress:
                found = command.dry_run(request, progress)
            print_dry_run(found, as_json=False)
            return
        with _terminal.TerminalProgress() as progress:
            description = command.import_(request, progress)
        rows = ", ".join(f"{count} {group}" for group, count in description["rows"].items())
        kind = "labels a row" if description["task"] == "multilabel" else "classes"
        _terminal.note(f"{rows} rows, {description['n_features']} features, {description['n_classes']} {kind}")
        if description["owners"]:
            people = ", ".join(f"{count} {group}" for group, count in description["owners"].items())
            _terminal.note(f"owners of rows: {people}; train --unit owner protects people instead of rows")
        if "test" not in description["rows"]:
            _terminal.note("there are no test rows: no accuracy will be measured")
        if description["class_names_from"] == "test labels":
            _terminal.note("the class list was read from the test labels, which are public; --classes declares another")
        print_made("feature file", out)
