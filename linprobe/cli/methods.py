"""`linprobe methods`: list the methods."""

from __future__ import annotations

from typing import Annotated

import typer

from linprobe.cli._shared import print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def methods(
        as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list on stdout.")] = False,
    ) -> None:
        """List every method with its paper and the data it needs."""
        from linprobe.commands.methods import methods

        listed = methods()
        if as_json:
            print_json(listed)
            return
        for entry in listed:
            needs = ", ".join(entry["needs"])
            typer.echo(f"{entry['method']:<14} {entry['summary']}")
            typer.echo(f"{'':<14} needs: {needs}; {entry['paper']}")
