"""`linprobe extract` and `import`: feature files, and what the commands print."""

from collections.abc import Mapping
from typing import Any

from linprobe.cli import _terminal
from linprobe.cli._command import command
from linprobe.cli._terminal import print_made
from linprobe.errors import counted, counted_groups
from linprobe.options.requests import ExtractRequest, ImportRequest

NAMED = 10  # skipped images


@command(ExtractRequest)
def _extract(request: ExtractRequest) -> None:
    from linprobe.extraction import extract as made_by

    with _terminal.TerminalProgress() as progress:
        outcome = made_by.extract(request, progress)
    if outcome is not None:
        _note_made(outcome)
        if outcome["extracted"]:
            share = outcome["waiting_share"]
            waited = f"; {share:.0%} of the time spent waiting for images" if share > 0.1 else ""
            rate = outcome["extracted"] / outcome["seconds"]
            _terminal.note(f"{rate:.1f} images/s on {outcome['device']} in {outcome['precision']}{waited}")
        for name, reason in outcome["skipped"][:NAMED]:
            _terminal.note(f"skipped {name}: {reason}")
        if len(outcome["skipped"]) > NAMED:
            more = len(outcome["skipped"]) - NAMED
            _terminal.note(f"and {more} more; private_log/skipped_id in the file lists them all")
        facts = outcome if request.as_json else None
        print_made("feature file", outcome["file"], facts, private=bool(outcome["owners"]))


def _note_made(made: Mapping[str, Any], kind: str = "class", of: str = "") -> None:
    """Note rows and people of each group, features, and classes, or another `kind` of answers, of a feature file."""
    answers = [counted(made["n_classes"], kind)][: made["n_classes"]]
    held = [counted_groups(made["rows"], "row"), counted(made["n_features"], "feature"), *answers]
    _terminal.note(f"{', '.join(held)}{of}")
    if "train" in made["owners"]:
        people = ", ".join(f"{count} {group}" for group, count in made["owners"].items())
        _terminal.note(f"owners of rows: {people}; train --unit owner protects people instead of rows")
    if made["class_names_from"] == "test labels":
        _terminal.note("the class list was read from the test labels, which are public; --classes declares another")


@command(ImportRequest)
def _import(request: ImportRequest) -> None:
    from linprobe.extraction import feature_files as made_by

    with _terminal.TerminalProgress() as progress:
        description = made_by.import_(request, progress)
    _note_made(description, *(("label", " a row") if description["task"] == "multilabel" else ()))
    if description["on_both_sides"] is not None:
        _terminal.note(f"people with rows on both sides: {description['on_both_sides']}; this number is private")
    if "train" in description["rows"] and "test" not in description["rows"]:
        _terminal.note("there are no test rows: no accuracy will be measured")
    print_made("feature file", request.out)
