"""`linprobe extract` and `import`: feature files, and what the commands print."""

from __future__ import annotations

import json
from typing import Any

from linprobe.cli import _terminal
from linprobe.cli._builder import command
from linprobe.cli._printing import print_dry_run, print_made
from linprobe.errors import UsageError
from linprobe.options.requests import ExtractFlags, ImportRequest

NAMED = 10  # skipped images
NOT_PASSED_ON = ("as_json", "dry_run", "like", "backbone_arg", "batch_size")


@command(ExtractFlags)
def extract(flags: ExtractFlags) -> None:
    """Extract features, or say what would happen; print the file."""
    from linprobe.commands import extract as made_by

    request = made_by.ExtractRequest(
        **{name: value for name, value in vars(flags).items() if name not in NOT_PASSED_ON},
        arguments=_arguments(flags.backbone_arg),
        batch_size=_batch_size(flags.batch_size),
    )
    if flags.dry_run:
        with _terminal.TerminalProgress() as progress:
            found = made_by.dry_run(request, progress, flags.like)
        print_dry_run(found, as_json=flags.as_json)
        return
    with _terminal.TerminalProgress() as progress:
        outcome = made_by.extract(request, progress, flags.like)
    if outcome is None:
        return
    _show_extraction(outcome)
    facts = {**vars(outcome), "file": str(outcome.file)} if flags.as_json else None
    print_made("feature file", outcome.file, facts)


def _arguments(pairs: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE pairs; a value that is not JSON is text."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key.isidentifier() or not equals:
            raise UsageError(f"backbone argument is {pair!r}; allowed: KEY=VALUE, as in pad_type=same")
        try:
            arguments[key] = json.loads(text)
        except ValueError:
            arguments[key] = text
    return arguments


def _batch_size(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"batch size is {text!r}; allowed: auto, or a whole number above 0")
    return int(text)


def _show_extraction(outcome: Any) -> None:
    rows = ", ".join(f"{count} {'unlabelled' if group == 'rows' else group}" for group, count in outcome.rows.items())
    _terminal.note(f"{rows} rows, {outcome.n_features} features, {outcome.n_classes} classes")
    if outcome.extracted:
        rate = outcome.extracted / outcome.seconds
        waited = (
            f"; {outcome.waiting_share:.0%} of the time spent waiting for images" if outcome.waiting_share > 0.1 else ""
        )
        _terminal.note(f"{rate:.1f} images/s on {outcome.device} in {outcome.precision}{waited}")
    if outcome.converted:
        _terminal.note("converted images: " + ", ".join(f"{count} {kind}" for kind, count in outcome.converted.items()))
    for name, reason in outcome.skipped[:NAMED]:
        _terminal.note(f"skipped {name}: {reason}")
    if len(outcome.skipped) > NAMED:
        _terminal.note(f"and {len(outcome.skipped) - NAMED} more; private_log/skipped_id in the file lists them all")


@command(ImportRequest)
def import_(request: ImportRequest) -> None:
    """Import arrays, or say what would happen; print the file."""
    from linprobe.commands import import_ as made_by

    if request.dry_run:
        with _terminal.TerminalProgress() as progress:
            found = made_by.dry_run(request, progress)
        print_dry_run(found, as_json=False)
        return
    with _terminal.TerminalProgress() as progress:
        description = made_by.import_(request, progress)
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
