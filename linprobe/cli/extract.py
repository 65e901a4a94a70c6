"""`linprobe extract`: images to a feature file. `linprobe.extraction.request` declares its flags."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from linprobe.cli._command import Flag
from linprobe.cli._shared import DryRunFlag, Json, numbers, print_dry_run, print_made
from linprobe.errors import UsageError
from linprobe.extraction.request import ExtractOutcome, ExtractRequest
from linprobe.options.declaration import declared

NAMED = 10
AS_TEXT = ("mean", "std", "batch_size")  # options that the command line has as text


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    parameters = []
    for option in declared(ExtractRequest).values():
        parameters.append(
            Flag(replace(option, kind=str) if option.name in AS_TEXT else option, of_command=True).parameter
        )
        if option.name == "arguments":
            pairs = typer.Option(help=option.help, metavar=option.metavar, rich_help_panel=option.group)
            parameters[-1] = parameters[-1].replace(annotation=Annotated[list[str] | None, pairs], default=None)
        if option.name == "overwrite":
            for name, flag in (("as_json", Json), ("dry_run", DryRunFlag)):
                parameters.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=flag)
                )

    def extract(as_json: bool, dry_run: bool, backbone_arg: list[str] | None, **given: Any) -> None:
        """Turn images into a feature file and print its path.

        A frozen network computes the features.

        Run the same command again to resume an interrupted run.
        """
        from linprobe.cli import _terminal
        from linprobe.extraction import extract as command

        given |= {name: _channels(name, given[name]) for name in ("mean", "std")}
        given["batch_size"] = _batch_size(given["batch_size"])
        request = ExtractRequest(arguments=_arguments(backbone_arg or []) or None, **given)
        if dry_run:
            with _terminal.TerminalProgress() as progress:
                found = command.dry_run(request, progress)
            print_dry_run(found, as_json=as_json)
            return
        with _terminal.TerminalProgress() as progress:
            outcome = command.extract(request, progress)
        if outcome is not None:
            _summary(outcome, _terminal.note)
            facts = {**vars(outcome), "file": str(outcome.file)} if as_json else None
            print_made("feature file", outcome.file, facts)

    extract.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    extract.__annotations__ = {}
    app.command()(extract)


def _arguments(pairs: list[str]) -> dict[str, Any]:
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


def _channels(name: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    refusal = f"{name} is {text!r}; allowed: a number, or one per channel, as in 0.5,0.5,0.5"
    return tuple(numbers(text.split(","), float, refusal))


def _batch_size(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"batch size is {text!r}; allowed: auto, or a whole number above 0")
    return int(text)


def _summary(outcome: ExtractOutcome, note: Callable[[str], None]) -> None:
    rows = ", ".join(f"{count} {'unlabelled' if group == 'rows' else group}" for group, count in outcome.rows.items())
    note(f"{rows} rows, {outcome.n_features} features, {outcome.n_classes} classes")
    if outcome.extracted:
        share = outcome.waiting_share
        waited = f"; {share:.0%} of the time spent waiting for images" if share > 0.1 else ""
        rate = outcome.extracted / outcome.seconds
        note(f"{rate:.1f} images/s on {outcome.device} in {outcome.precision}{waited}")
    if outcome.converted:
        note("converted images: " + ", ".join(f"{count} {kind}" for kind, count in outcome.converted.items()))
    for name, reason in outcome.skipped[:NAMED]:
        note(f"skipped {name}: {reason}")
    if len(outcome.skipped) > NAMED:
        note(f"and {len(outcome.skipped) - NAMED} more; private_log/skipped_id in the file lists them all")
