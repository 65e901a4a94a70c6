"""`linprobe info`, `methods` and `doctor`: describe a file, the methods and the installation."""

from typing import Any

import typer

from linprobe.cli._command import command
from linprobe.cli._terminal import keep_stdout_private, print_json
from linprobe.errors import printable
from linprobe.options.requests import DoctorRequest, InfoRequest, MethodsRequest

MARKS = {"ok": "ok", "limited": "--", "broken": "!!"}
MOST_LISTED, MOST_ENTRIES = 8, 20


@command(InfoRequest)
def _info(request: InfoRequest) -> None:
    from linprobe.extraction.feature_files import info

    description = info(request.path)
    if description.get("owners"):  # how many people, and how many rows they have, are private
        keep_stdout_private()
    if request.as_json:
        print_json(description)
        return
    for key, value in description.items():
        typer.echo(printable(f"{key:<24} {_shown(value)}"))


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MOST_LISTED:
        return f"{', '.join(map(str, value[:MOST_LISTED]))}, ... ({len(value)})"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, dict) and len(value) > MOST_ENTRIES:
        return f"{len(value)} entries"
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "-" if value is None else str(value)


@command(MethodsRequest)
def _methods(request: MethodsRequest) -> None:
    from linprobe.training.doctor import methods

    listed = methods()
    if request.as_json:
        print_json(listed)
        return
    for entry in listed:
        typer.echo(f"{entry['method']:<14} {entry['summary']}")
        typer.echo(f"{'':<14} needs: {', '.join(entry['needs'])}; {entry['paper']}")


@command(DoctorRequest)
def _doctor(request: DoctorRequest) -> None:
    from linprobe.training.doctor import doctor

    found = doctor()
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
