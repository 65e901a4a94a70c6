"""Writing files so that nothing half-written is ever found under its final name."""

from __future__ import annotations

import csv
import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from linprobe.errors import LinprobeError, UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PRIVATE_MODE = 0o600


def lock(opened: int | IO[str], what: str) -> None:
    """Refuse an open file or folder that another process has locked; until `opened` is closed, none can.

    Raises:
        LinprobeError: naming `what`.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LinprobeError(f"{what} is being written by another process; wait for it, or stop it") from None
    except OSError:  # a file system without locks
        return


@contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Keep other processes that hold it first off a folder; they are refused as by `lock`."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, what)
        yield
    finally:
        os.close(descriptor)


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


def write_json(path: Path, value: object, *, private: bool = False) -> None:
    """One JSON object, whole or not at all; `private` as above."""
    with replace_when_complete(path, "w", private=private) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False)
        stream.write("\n")


def write_csv(path: Path, rows: Iterable[Mapping[str, object]], *, private: bool = False) -> None:
    """A table with the keys of its first row as columns, whole or not at all; an empty file where there are no rows."""
    remaining = iter(rows)
    first = next(remaining, None)
    with replace_when_complete(path, "w", private=private) as stream:
        if first is not None:
            writer = csv.DictWriter(stream, fieldnames=list(first), lineterminator="\n")
            writer.writeheader()
            writer.writerow(first)
            writer.writerows(remaining)


def path_from(argument: str) -> Path:
    """A path given as an argument; `-` reads it from the last non-empty line of standard input."""
    if argument != "-":
        return Path(argument)
    lines = [line.strip() for line in sys.stdin if line.strip()]
    if not lines:
        raise UsageError("- asks for a path on standard input, which is empty; did the command before it fail?")
    return Path(lines[-1])
