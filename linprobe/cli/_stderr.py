"""Lines for people on stderr, and streams that cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from linprobe.errors import printable

_quiet = _verbose = False


def is_verbose() -> bool:
    """Whether tables show more than epsilon and delta of a guarantee."""
    return _verbose


def is_quiet() -> bool:
    """Whether only errors are printed."""
    return _quiet


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
    """Print one line on stderr, unless the command is quiet; `always` prints it in any case."""
    if always or not _quiet:
        print(printable(text), file=sys.stderr)


@contextmanager
def as_asked(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Print errors only inside the block, if `quiet`; longer tables if `verbose`."""
    global _quiet, _verbose
    before, _quiet, _verbose = (_quiet, _verbose), quiet, verbose
    try:
        yield
    finally:
        _quiet, _verbose = before
