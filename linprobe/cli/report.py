"""`linprobe report`: a page for a privacy reviewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import Overwrite, RunArgument, print_made


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def report(
        run: RunArgument,
        html: Annotated[Path, typer.Option(help="Page to write, .html or .htm.")],
        attack: Annotated[
            list[Path] | None,
            typer.Option(help="JSON results of linprobe attack; repeat for more. Makes the page private."),
        ] = None,
        title: Annotated[str | None, typer.Option(help="Title of the page. [default: method and run]")] = None,
        owner: Annotated[
            str | None, typer.Option(help="Who answers for the data. [default: a blank line to sign]")
        ] = None,
        overwrite: Overwrite = False,
    ) -> None:
        """Verify a run and write an HTML page for a privacy reviewer."""
        from linprobe.cli import _terminal
        from linprobe.commands.report import report

        report(run, html, attack or (), title=title, owner=owner, overwrite=overwrite)
        if attack:
            _terminal.note(
                "PRIVATE: the page holds figures computed from private rows without noise; do not publish it"
            )
        print_made("page", html)
