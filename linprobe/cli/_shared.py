"""Printing that several commands share, and lists on the command line."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from linprobe.atomic_files import PRIVATE_MODE
from linprobe.cli import _stderr
from linprobe.errors import LinprobeError, ParameterError, printable

if TYPE_CHECKING:
    from linprobe.training.words import DryRun

Number = TypeVar("Number", int, float)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if not text.replace("\n", "").isprintable():  # a terminal would obey what JSON leaves as it is
        text = "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
    typer.echo(text)


@contextmanager
def printing(made: str, what: str = "its name") -> Iterator[None]:
    """Print the result of a command inside the block, after the command has written its output.

    Args:
        made: what is complete and where, for the error; empty if the command writes nothing. what: goes to stdout.

    Raises:
        LinprobeError: stdout cannot be written; the text says that nothing else is missing. BrokenPipeError: its reader
            has left, which is no error; the text is a line on stderr.
    """
    try:
        yield
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # ValueError: an encoding without some letter
        if not made:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        text = f"{made}; only {what} could not be printed ({reason}); use it as it is"
        if isinstance(error, BrokenPipeError):
            _stderr.line(f"linprobe: {text}", always=True)
            raise
        _stderr.drop_unwritten(sys.stdout)
        raise LinprobeError(text) from None


def print_made(what: str, place: object, facts: Any = None) -> None:
    """Print the place of a complete output of the kind `what`, or with `facts` these as JSON.

    Raises: as `printing`.
    """
    with printing(f"the {what} is complete in {place}", "its name" if facts is None else "its JSON object"):
        if facts is None:
            typer.echo(str(place))
        else:
            print_json(facts)


def print_dry_run(found: DryRun, *, as_json: bool) -> None:
    """Print a dry run: its facts as JSON, or its lines."""
    if as_json:
        print_json(found.facts)
        return
    for about, text in found.lines:
        typer.echo(printable(f"{about:<10} {text}"))


def print_private_json(value: Any) -> None:
    """`print_json` of private figures: a file that stdout was redirected to gets mode 0600."""
    with suppress(OSError, ValueError):
        if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
            os.fchmod(sys.stdout.fileno(), PRIVATE_MODE)
    print_json(value)


def words(text: str) -> list[str]:
    """The words of a comma-separated list, without blank ones."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(listed: Iterable[str], kind: Callable[[str], Number], refusal: str) -> list[Number]:
    """Words converted to numbers.

    Raises:
        ParameterError: with the text `refusal`, if a word is not a number.
    """
    try:
        return [kind(word) for word in listed]
    except ValueError:
        raise ParameterError(refusal) from None
