"""What goes to stderr: lines for people, and a copy of them in a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from linprobe.atomic_files import PRIVATE_MODE
from linprobe.errors import LinprobeError, UsageError, advice, printable


@dataclass
class _State:
    quiet: bool = False
    log: TextIO | None = None


_state = _State()


def is_quiet() -> bool:
    """Whether only errors are printed."""
    return _state.quiet


def log() -> TextIO | None:
    """The log file, if there is one."""
    return _state.log


def line(text: str, *, always: bool = False) -> None:
    """Print one line on stderr, unless the command is quiet, and log it. `always` prints it in any case."""
    text = printable(text)
    if always or not _state.quiet:
        print(text, file=sys.stderr)
    if _state.log is not None:
        print(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}", file=_state.log, flush=True)


def _refuse_binary(log: Path) -> None:
    """UsageError if the file is there and is no text, such as a feature file."""
    with suppress(OSError), log.open("rb") as stream:
        if log.is_file() and b"\0" in stream.read(4096):
            raise UsageError(f"log file {log} is no text file, and notes would damage it; give another --log FILE")


@contextmanager
def as_asked(*, quiet: bool, log: Path | None, words: list[str]) -> Iterator[None]:
    """Be quiet inside the block, and append to a log file, which begins with the words of the command.

    Raises:
        LinprobeError: a log file that cannot be written. UsageError: a file that is no text.
    """
    global _state
    before = _state
    file: TextIO | None = None
    if log is not None:
        _refuse_binary(log)
        try:
            # tables may show private figures
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE_MODE)
        except OSError as error:
            raise LinprobeError(
                f"log file {log} cannot be written ({error.strerror}); {advice(error, '--log')}"
            ) from None
        file = os.fdopen(descriptor, "a", encoding="utf-8")
    _state = _State(quiet, file)
    try:
        if file is not None:
            print(
                f"{datetime.now(UTC).isoformat(timespec='seconds')} $ linprobe {printable(' '.join(words))}",
                file=file,
                flush=True,
            )
        yield
    finally:
        _state = before
        if file is not None:
            file.close()
