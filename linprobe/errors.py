"""Errors a user can act on: the value got, the values allowed, the next step.

Every error carries the exit status the command line returns for it; see `docs/cli.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
    """Training diverged. Whoever sees this knows something of the releases so far, so they count."""


class ParameterError(UsageError, ValueError):
    """A parameter has a value that is not allowed."""


class ArgumentError(UsageError, TypeError):
    """A constructor got an argument that it does not have."""


class PrivacyWarning(UserWarning):
    """The guarantee holds as stated and is weaker than is customary; the text is one line."""


def first_line(error: BaseException) -> str:
    """The first line of the message of another library's error, or the type of the error if the message is empty."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


@contextmanager
def reading(what: str, step: str) -> Iterator[None]:
    """Turn whatever another library raises while it reads `what` into a DataError; `step` is what to do next.

    Libraries raise almost any type for a damaged file. Errors of linprobe and a lack of memory pass through.
    """
    try:
        yield
    except (LinprobeError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{what} cannot be read ({first_line(error)[:200]}); {step}") from None
