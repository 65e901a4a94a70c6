"""Files: whole writes, locks, and careful reads. A file under its final name is complete, and has one writer."""

from __future__ import annotations

import csv
import errno
import glob
import json
import os
import platform
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any

from linprobe.errors import LinprobeError, PrivacyError, UsageError, printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PRIVATE_MODE, PUBLIC_MODE, PRIVATE_FOLDER = 0o600, 0o644, 0o700
MOST_TEXT = 1 << 26  # bytes of a JSON file: a manifest of many classes has megabytes
LONGEST_PATH = 4096
MOST_PIPED = 1 << 20  # characters of standard input: a command prints a line, and /dev/zero never ends
LONGEST_FOLDER = 255  # bytes of a name
LONGEST_NAME = LONGEST_FOLDER - len("..01234567.partial")  # bytes of the name of an output
FORMULAS = ("=", "+", "-", "@")
HELD = ".{}.held"  # name of the file that is a lock where the file system has none
PATIENCE, POLL = 60.0, 0.02  # seconds
_held: set[int] = set()  # descriptors locked by `held`


def lock(opened: int | IO[str], busy: str, error: type[LinprobeError] = LinprobeError, *, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed, or raise `error` if it is; False on a system without locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise error(busy) from None
    except OSError:  # a file system without locks
        return False
    return True


@contextmanager
def held(
    path: Path, busy: str = "", *, create: bool = False, error: type[LinprobeError] = LinprobeError, wait: bool = False
) -> Iterator[int | None]:
    """Lock an existing folder, or a lock file, inside the block, as `lock` does; yields the descriptor or None.

    Forked children do not keep it. The previous holder may have removed `path` meanwhile; the caller checks. A file to
    create must be no link.
    """
    if fcntl is None:
        yield None
        return
    made = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, made if create else os.O_RDONLY if path.is_dir() else os.O_RDWR, PUBLIC_MODE)
    except OSError:
        if create and path.is_symlink():
            raise error(f"lock file {path} is a link to {path.readlink()}; allowed: a file; remove it") from None
        raise
    _held.add(descriptor)
    try:
        yield descriptor if lock(descriptor, busy, error, wait=wait) else None
    finally:
        if descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold an existing file or folder inside the block, which begins when no other process holds it.

    On a file system without locks a file `.NAME.held` is the lock: to make a file that must not exist is atomic. A
    process that is killed inside the block leaves it behind, and no process removes that of another, which may be at
    work on another machine. PrivacyError: another process has held it for `PATIENCE` seconds.
    """
    with held(path, wait=True) as locked:
        if locked is not None:
            yield
            return
        real = path.resolve()
        mark = real / HELD.format("lock") if real.is_dir() else real.with_name(HELD.format(real.name))
        descriptor = _marked(mark)
        try:
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
            yield
        finally:
            mine = mark.exists() and os.path.samestat(os.fstat(descriptor), mark.stat())
            os.close(descriptor)
            if mine:  # nobody has removed it
                mark.unlink(missing_ok=True)


def _marked(mark: Path) -> int:
    """Make a file as soon as there is none of its name; returns its open descriptor."""
    theirs, until = 0, 0.0
    while True:
        with suppress(FileExistsError):
            return os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        with suppress(FileNotFoundError):
            made = mark.stat().st_mtime_ns
            if made != theirs:
                theirs, until = made, time.monotonic() + PATIENCE
            elif time.monotonic() > until:
                maker = printable(mark.read_text(encoding="utf-8", errors="replace"))[:80]
                raise PrivacyError(
                    f"lock file {mark} of {maker or 'a process'} is still there after {PATIENCE:g} seconds; nothing "
                    "was spent; remove it if that process has ended"
                )
        time.sleep(POLL)


def _release_in_child() -> None:
    """Close inherited locks in a forked worker: it may outlive a parent that was killed."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file with the flags of `os.open`; a new file has mode 0600."""
    return os.open(path, flags, PRIVATE_MODE)


def check_place(out: Path, what: str, flag: str = "--out") -> None:
    """Refuse an output with too long a name, a link to nowhere, a file as its folder, or a new folder in the root."""
    length = len(os.fsencode(out.name))
    if length > LONGEST_NAME:
        raise UsageError(
            f"{what} {out} has a name of {length} bytes; allowed: {LONGEST_NAME}, since its name is longer while "
            "it is being written; give a shorter name"
        )
    length = max((len(os.fsencode(part)) for part in out.parent.parts), default=0)
    if length > LONGEST_FOLDER:
        raise UsageError(
            f"{what} {out} is in a folder with a name of {length} bytes; allowed: {LONGEST_FOLDER}; shorten it"
        )
    if os.path.lexists(out) and not out.exists():
        raise UsageError(f"{what} {out} is a link to {out.readlink()}, which does not exist; give {flag} another name")
    for parent in out.parents:
        if os.path.lexists(parent) and not parent.is_dir():
            raise LinprobeError(f"{what} {out} cannot be made: {parent} is no folder; give {flag} another place")
    absent = [parent for parent in out.absolute().parents if not parent.exists()]
    if absent and absent[-1].parent == absent[-1].parent.parent:
        raise LinprobeError(
            f"{what} {out} cannot be made: there is no folder {absent[-1]}, and linprobe makes none in "
            f"{absent[-1].parent}; make it first, or give {flag} another place"
        )


@contextmanager
def replace_when_complete(path: Path, mode: str = "wb", *, private: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; rename it to `path` at the end, or remove it on any exception."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(temporary, flags, PRIVATE_MODE if private else PUBLIC_MODE)
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


def remove_torn(path: Path) -> None:
    """Remove what killed processes left of `path`, which no other living one writes: the caller holds its lock."""
    token = 8 * "[0-9a-f]"  # a star would match files of an output NAME.h5 beside NAME
    for torn in path.parent.glob(f".{glob.escape(path.name)}.{token}.partial"):
        with suppress(OSError):
            torn.unlink()


def write_whole(path: Path, content: str | bytes, *, private: bool = False) -> None:
    with replace_when_complete(path, private=private) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, so that a rename outlives a power cut. Not on Windows."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. OSError: missing, unreadable, a link, which leads anywhere, or an endless FIFO."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise OSError(errno.EINVAL, "it is a link, not a regular file")
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most: int) -> bytes:
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise _too_long(most)
        return stream.read(size)


def read_text(path: Path) -> str:
    return read_bytes(path, MOST_TEXT).decode()


def no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated keys: a person would read the first value, a program the last."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return dict(pairs)


def given_text(path: Path, encoding: str = "utf-8") -> str:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as stream:
        content = stream.read(MOST_TEXT + 1)
    if len(content) > MOST_TEXT:
        raise _too_long(MOST_TEXT)
    return content.decode(encoding)


def _too_long(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most} bytes")


def plain_cell(value: object) -> object:
    """A cell of a table: text without control characters, quoted if a spreadsheet would take it for a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    if text[:1] not in FORMULAS or not text:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def json_text(value: object) -> str:
    """`value` as JSON, with an escape in place of every character that a terminal obeys or hides."""
    return _escaped(json.dumps(value, indent=2, ensure_ascii=False), lambda one: json.dumps(one)[1:-1]) + "\n"


def escaped_lines(text: str) -> str:
    """Lines of TOML or YAML whose strings are in double quotes: as `json_text`, with the longer escapes of these."""
    return _escaped(text, lambda one: f"\\U{ord(one):08x}")


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else escape(one) for one in text)


def write_json(path: Path, value: object, *, private: bool = False) -> None:
    write_whole(path, json_text(value), private=private)


def write_csv(path: Path, rows: Iterable[Mapping[str, object]], *, private: bool = False) -> None:
    """Write a table atomically. The keys of the first row are the columns; without rows the file is empty."""
    remaining = iter(rows)
    first = next(remaining, None)
    with replace_when_complete(path, "w", private=private) as stream:
        if first is not None:
            writer = csv.DictWriter(stream, fieldnames=list(first), lineterminator="\n")
            writer.writeheader()
            for row in chain([first], remaining):
                writer.writerow({name: plain_cell(value) for name, value in row.items()})


def given_path(argument: str) -> Path:
    if not argument:
        raise UsageError("a path is ''; allowed: a file or a folder; give its name, or . for the current folder")
    return Path(argument)


def path_from(argument: str) -> Path:
    """A path given as an argument; `-` reads it from the last non-empty line of standard input."""
    if argument != "-":
        return given_path(argument)
    try:
        text = sys.stdin.read(MOST_PIPED)
    except UnicodeDecodeError:
        text = "\0"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if "\0" in text or len(text) == MOST_PIPED or (lines and len(lines[-1]) > LONGEST_PATH):
        raise UsageError(
            "argument - reads a path from standard input, which holds no text, or a line that is too long for a path; "
            "give the file in place of -"
        )
    if not lines:
        raise UsageError(
            "argument - reads a path from standard input, which is empty; check that the previous command "
            "succeeded, and give - once"
        )
    return Path(lines[-1])
