"""`linprobe doctor`: what this installation has, and what is missing."""

from __future__ import annotations

import typer

from linprobe.cli._shared import Json, print_json

MARKS = {"ok": "ok", "limited": "--", "broken": "!!"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def doctor(as_json: Json = False) -> None:
        """Show what this installation has, and what is missing for which command.

        It downloads nothing and reads no rows. The exit status is 1 if something keeps most commands from running.
        """
        from linprobe.commands.doctor import doctor

        found = doctor()
        if as_json:
            print_json(found)
        else:
            typer.echo(f"linprobe {found['version']}")
            for each in found["findings"]:
                typer.echo(f"{MARKS[each['state']]}  {each['name']:<26} {each['found']}")
                if each["remedy"]:
                    typer.echo(f"{'':<31}{each['remedy']}")
        if found["state"] == "broken":
            raise typer.Exit(1)
