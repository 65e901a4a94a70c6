"""`linprobe info`, `methods` and `doctor`: what a file, linprobe and this machine have."""

from __future__ import annotations

import typer

from linprobe.cli._builder import command
from linprobe.cli._printing import print_json
from linprobe.errors import printable
from linprobe.options.requests import DoctorRequest, InfoRequest, MethodsRequest

MARKS = {"ok": "ok", "limited": "--", "broken": "!!"}


@command(InfoRequest)
def info(request: InfoRequest) -> None:
    """Print a description, a line for each fact."""
    from linprobe.commands.info import info as describe

    description = describe(request.path)
    if request.as_json:
        print_json(description)
        return
    for key, value in description.items():
        shown = value
        if isinstance(value, list) and len(value) > 8:
            shown = f"{', '.join(map(str, value[:8]))}, ... ({len(value)})"
        elif isinstance(value, list):
            shown = "; ".join(map(str, value))
        elif isinstance(value, dict) and len(value) > 20:
            shown = f"{len(value)} entries"
        elif isinstance(value, dict):
            shown = ", ".join(f"{name} {item}" for name, item in value.items())
        typer.echo(printable(f"{key:<24} {shown}"))


@command(MethodsRequest)
def methods(request: MethodsRequest) -> None:
    """Print every method."""
    from linprobe.commands.methods import methods as listed

    found = listed()
    if request.as_json:
        print_json(found)
        return
    for entry in found:
        typer.echo(f"{entry['method']:<14} {entry['summary']}")
        typer.echo(f"{'':<14} needs: {', '.join(entry['needs'])}; {entry['paper']}")


@command(DoctorRequest)
def doctor(request: DoctorRequest) -> None:
    """Print what was found; exit status 1 if most commands cannot run."""
    from linprobe.commands.doctor import doctor as run

    found = run()
    if request.as_json:
        print_json(found)
    else:
        typer.echo(f"linprobe {found['version']}")
        for each in found["findings"]:
            typer.echo(f"{MARKS[each['state']]}  {each['name']:<26} {each['found']}")
            if each["remedy"]:
                typer.echo(f"{'':<31}{each['remedy']}")
    if found["state"] == "broken":
        raise typer.Exit(1)
