"""`linprobe import`: arrays to a feature file."""

from __future__ import annotations

from linprobe.cli._command import command
from linprobe.cli._shared import print_dry_run, print_made
from linprobe.options.requests import ImportRequest


@command(ImportRequest)
def import_(request: ImportRequest) -> None:
    """Write the feature file and print its path."""
    from linprobe.cli import _terminal
    from linprobe.extraction import import_ as made

    if request.dry_run:
        with _terminal.TerminalProgress() as progress:
            found = made.dry_run(request, progress)
        print_dry_run(found, as_json=False)
        return
    with _terminal.TerminalProgress() as progress:
        description = made.import_(request, progress)
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
