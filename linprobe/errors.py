"""What linprobe tells its user: errors to act on, warnings, and the progress of a long command.

An error states the value got, the values allowed and the next step. It carries the exit status that the command line
returns for it; see `docs/cli.md`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

NO_BREAK = "\N{NO-BREAK SPACE}"


class LinprobeError(Exception):
    """Base of every error linprobe raises on purpose; its text is one line."""

    exit_status = 1


class UsageError(LinprobeError):
    """The command or the arguments are wrong."""

    exit_status = 2


class DataError(LinprobeError, ValueError):
    """A file is missing, damaged, or has content that is not allowed."""

    exit_status = 3


class PrivacyError(LinprobeError):
    """The request would break, or cannot prove, the privacy guarantee."""

    exit_status = 4


class DivergedError(LinprobeError):
    """Training diverged. The error reveals something about the releases so far, so they count."""


class ParameterError(UsageError, ValueError):
    """A parameter has a value that is not allowed."""


class ArgumentError(UsageError, TypeError):
    """A constructor got an argument that it does not have."""


class PrivacyWarning(UserWarning):
    """The guarantee of this fit holds as stated, but delta is large, earlier fits spent more, or an earlier step of the
    pipeline learnt from private rows; the text is one line."""


class Progress(Protocol):
    def note(self, text: str) -> None:
        """Show one line of text."""

    def start(self, total: int, what: str = "training") -> None:
        """Begin counting `total` steps; 0 if their number is not known."""

    def step(self, count: int = 1) -> None:
        """Count `count` more steps as done."""


class PrivacyNote(str):
    """A note on what the promise costs, or whom it does not protect."""

    __slots__ = ()


class Silent:
    def note(self, text: str) -> None: ...

    def start(self, total: int, what: str = "training") -> None: ...

    def step(self, count: int = 1) -> None: ...


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def counted(count: int, noun: str) -> str:
    """A number and its noun, as `1 run` and `3 runs`."""
    if noun.endswith("person"):
        return f"{count:,} {noun if count == 1 else noun.removesuffix('person') + 'people'}"
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def counted_groups(counts: Mapping[str, int], noun: str) -> str:
    """The `counts` of groups, as `300 train, 1 test row`."""
    *others, (last, count) = [("unlabelled" if name == "rows" else name, count) for name, count in counts.items()]
    return ", ".join([*(f"{number:,} {name}" for name, number in others), counted(count, f"{last} {noun}")])


EXTRAS = {
    "extract": ("extract", ("torch", "torchvision", "timm", "open_clip")),
    "torch": ("a GPU, several processes and .pt files", ("torch",)),
    "arrow": ("Parquet files", ("pyarrow",)),
    "onnx": ("export --to onnx", ("onnx",)),
}
"""What each extra of linprobe is for, and the modules it brings. pyproject.toml declares the extras."""

EXTRA_OF = {("device", "cuda"): "torch", ("to", "onnx"): "onnx"}
"""The extra that an option needs, by its name and the part of its value before a colon."""


def missing(extra: str) -> list[str]:
    return [module for module in EXTRAS[extra][1] if find_spec(module) is None]


def require(extra: str, what: str) -> None:
    """Raise a UsageError that names the extra to install if one of the modules that `what` needs is missing."""
    if absent := missing(extra):
        verb = "is" if len(absent) == 1 else "are"
        raise UsageError(
            f"{what} needs {', '.join(absent)}, which {verb} not installed; pip install 'linprobe[{extra}]'"
        )


def require_for(options: Mapping[str, object]) -> None:
    """`require` the extras that options with these values need."""
    for option, value in options.items():
        if extra := EXTRA_OF.get((option, str(value).partition(":")[0])):
            require(extra, f"--{option.replace('_', '-')} {value}")


def printable(text: str) -> str:
    """`text` with an escape in place of every character that a terminal obeys or hides, as `\\x1b`; line ends too."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == NO_BREAK else letter.encode("unicode_escape").decode()
        for letter in text
    )


ADVICE = {
    errno.ENOSPC: "free some space, or {move}",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs: the machine has too many open files",
    errno.ENOMEM: "free some memory, or raise the limit on it (ulimit -v, -d)",
    errno.ENAMETOOLONG: "shorten it: a file system takes names of 255 bytes at most",
    errno.ENOTDIR: "a part of the path is a file where a folder is needed; {move}",
    errno.EACCES: "give {flag} a writable place",
    errno.EPERM: "give {flag} a writable place",
    errno.EROFS: "give {flag} a writable place",
    errno.ENOENT: "look whether its folder is still there, or {move}",
    getattr(errno, "EDQUOT", errno.ENOSPC): "free some space, or {move}",
}


BESIDE_RUN = "RUN"
"""In place of a flag: the output gets its place from the argument RUN."""


def advice(error: OSError, flag: str = "--out") -> str:
    move = "move RUN to another disk" if flag == BESIDE_RUN else f"give another {flag}"
    return ADVICE.get(error.errno or 0, "check the disk, or {move}").format(flag=flag, move=move)


def unwritten(what: str | Path, error: OSError, flag: str = "--out", fault: str = "cannot be written") -> LinprobeError:
    """An error of one line: `what` has the `fault`, why, and `advice`."""
    return LinprobeError(f"{what} {fault} ({error.strerror or error}); {advice(error, flag)}")


@contextmanager
def writing(what: str | Path, flag: str = "--out", fault: str = "cannot be written") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritten(what, error, flag, fault) from None


_AGAIN = "check the disk, and run the command again: the file itself may be good"
READ_FAULTS = {
    errno.EACCES: "make it readable",
    errno.EPERM: "make it readable",
    errno.EAGAIN: "another process is writing it; wait for it, or stop it",
    errno.ENOLCK: "its file system has no locks; set HDF5_USE_FILE_LOCKING=FALSE, or copy it to a local disk",
    errno.EMFILE: ADVICE[errno.EMFILE],
    errno.ENFILE: ADVICE[errno.ENFILE],
    errno.EIO: _AGAIN,
    errno.ENXIO: _AGAIN,
    errno.ENODEV: _AGAIN,
    errno.EBUSY: _AGAIN,
    errno.ETIMEDOUT: _AGAIN,
    getattr(errno, "ESTALE", errno.EIO): _AGAIN,
    getattr(errno, "EREMOTEIO", errno.EIO): _AGAIN,
}
"""The next step after a read that failed for a reason outside the file, by its cause."""


def read_fault(what: str, error: BaseException) -> LinprobeError | None:
    """The error to raise if `what` could not be read for a reason outside the file; None if the file is at fault."""
    stated = re.search(r"\berrno = ([0-9]+)", str(error))  # HDF5 states the cause in its message alone
    cause = getattr(error, "errno", None) or getattr(error.__context__, "errno", None)  # zipfile, in the context
    cause = cause or (int(stated[1]) if stated else 0)
    if cause not in READ_FAULTS:
        return None
    return LinprobeError(f"{what} cannot be read ({os.strerror(cause)}); {READ_FAULTS[cause]}")


@contextmanager
def reading(what: str, step: str) -> Iterator[None]:
    """Turn whatever another library raises while it reads `what` into a DataError, or a fault; `step` is what to do."""
    try:
        yield
    except (LinprobeError, MemoryError):
        raise
    except Exception as error:
        raise read_fault(what, error) or DataError(
            f"{what} cannot be read ({first_line(error)[:200]}); {step}"
        ) from None
