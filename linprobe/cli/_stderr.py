"""What goes to stderr: lines for people, and a copy of them in a log file; and streams that cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

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


class Watched:
    """A text stream that remembers the last error of a write.

    Args:
        lossy: lose what cannot be written in place of raising: a full disk or a reader that left must not end a paid
            run.

    Attributes:
        error: of the last write that failed; None without one.
    """

    def __init__(self, stream: TextIO, *, lossy: bool) -> None:
        self._stream, self._lossy = stream, lossy
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write `text`; returns its length."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            self.error = error
            if not self._lossy:
                raise


@contextmanager
def watched() -> Iterator[Watched]:
    """Inside the block, a stderr that cannot be written ends nothing. Yields stdout, watched."""
    stdout, stderr = sys.stdout, sys.stderr
    out = Watched(stdout, lossy=False)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, Watched(stderr, lossy=True))
    try:
        yield out
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        drop_unwritten(stderr)


def drop_unwritten(stream: TextIO) -> None:
    """Drop what `stream` holds, if it cannot be written. Python would try again at exit, and fail."""
    try:
        stream.flush()
    except (OSError, ValueError):  # ValueError: it is closed
        with suppress(OSError, ValueError):  # it may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def line(text: str, *, always: bool = False) -> None:
    """Print one line on stderr, unless the command is quiet, and log it. `always` prints it in any case."""
    text = printable(text)
    if always or not _state.quiet:
        print(text, file=sys.stderr)
    if _state.log is not None:
        print(f"{_now()} {text}", file=_state.log, flush=True)


def _refuse_binary(log: Path) -> None:
    """UsageError if the file is there and is no text, such as a feature file."""
    with suppress(OSError), log.open("rb") as stream:
        if log.is_file() and b"\0" in stream.read(4096):
            raise UsageError(f"log file {log} is no text file, and notes would damage it; give another --log FILE")


@contextmanager
def as_asked(*, quiet: bool, log: Path | None, words: list[str]) -> Iterator[None]:
    """Be quiet inside the block, and append to a log file, which begins with the words of the command.

    A log file that cannot be written later loses lines, and one line at the end says so.

    Raises:
        LinprobeError: a log file that cannot be written. UsageError: a file that is no text.
    """
    global _state
    before = _state
    file = None if log is None else Watched(_opened(log, words), lossy=True)
    _state = _State(quiet, cast(TextIO | None, file))
    try:
        yield
    finally:
        _state = before
        if file is not None:
            with suppress(OSError):
                file.close()
            if file.error is not None:
                line(f"log file {log} lacks lines: it cannot be written ({file.error.strerror})", always=True)


def _opened(log: Path, words: list[str]) -> TextIO:
    """The log file, after a first line with the words of the command."""
    _refuse_binary(log)
    try:
        # tables may show private figures
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE_MODE)
        os.write(descriptor, f"{_now()} $ linprobe {printable(' '.join(words))}\n".encode())
    except OSError as error:
        raise LinprobeError(f"log file {log} cannot be written ({error.strerror}); {advice(error, '--log')}") from None
    return os.fdopen(descriptor, "a", encoding="utf-8")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
