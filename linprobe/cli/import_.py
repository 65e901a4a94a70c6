"""`linprobe import`: arrays to a feature file. `linprobe.options.import_request` declares its flags."""

from __future__ import annotations

import inspect
from dataclasses import MISSING
from typing import Annotated, Any

import typer

from linprobe.cli._flags import Flag, with_flags
from linprobe.cli._shared import DryRunFlag, print_dry_run, print_made
from linprobe.options.declaration import Option, declared
from linprobe.options.import_request import ImportRequest


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    def import_(dry_run: bool, **given: Any) -> None:
        from linprobe.cli import _terminal
        from linprobe.commands import import_ as command

        request = ImportRequest(**given)
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
        print_made("feature file", request.out)

    import_.__doc__ = ImportRequest.__doc__
    dry_run = inspect.Parameter("dry_run", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=DryRunFlag)
    parameters = [_parameter(option) for option in declared(ImportRequest).values()]
    app.command("import")(with_flags(import_, [*parameters, dry_run]))


def _parameter(option: Option) -> inspect.Parameter:
    """The parameter of an option; typer asks for a value where there is no default."""
    parameter = Flag(option, of_command=True).parameter
    if option.default is not MISSING:
        return parameter
    marked = parameter.annotation.__metadata__[0]
    return parameter.replace(default=inspect.Parameter.empty, annotation=Annotated[option.kind, marked])
