"""Writing files so that nothing half-written is ever found under its final name."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from linprobe.errors import UsageError

PRIVATE_MODE = 0o600


@contextmanager
def replace_when_complete(path: Path, mode: str = "wb", *, private: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary neighbour of `path` for writing and rename it onto `path` once it is whole.

    On any exception, Ctrl-C included, the temporary file is removed and `path` is left as it was.
    With `private=True` the file is created with mode 0600 before its first byte is written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(temporary, flags, PRIVATE_MODE if private else 0o666)
    encoding = None if "b" in mode else "utf-8"
    try:
        with os.fdopen(descriptor, mode, encoding=encoding) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def path_from(argument: str) -> Path:
    """A path given as an argument; `-` reads it from the last non-empty line of standard input."""
    if argument != "-":
        return Path(argument)
    lines = [line.strip() for line in sys.stdin if line.strip()]
    if not lines:
        raise UsageError("- asks for a path on standard input, which is empty; did the command before it fail?")
    return Path(lines[-1])
