"""The append-only ledger: every release from the private rows, recorded before its result exists.

A crash between the line and the result makes the ledger over-count, never under-count.
"""

import json
import os
from collections.abc import Iterable
from contextlib import closing, suppress
from io import BytesIO
from pathlib import Path
from typing import IO

from linprobe.accounting.events import LARGEST_FIGURE, GaussianEvent, Releases
from linprobe.accounting.selection import SelectionEvent
from linprobe.atomic_files import PUBLIC_MODE, lock, open_regular
from linprobe.errors import LinprobeError, PrivacyError, read_fault

LONGEST_LINE = 4096  # bytes; a longer line is no event
LONGEST_SELECTION = 1 << 24  # bytes


class AppendOnlyFile:
    """A file of JSON lines that only grows, made with `mode`; a last line without its end was not written."""

    def __init__(self, path: Path, mode: int = PUBLIC_MODE) -> None:
        self.path = path
        self._failed: OSError | None = None
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)

    def append(self, line: str, *, sync: bool = True) -> None:
        """Append a line; the system has it when this returns. If it fails, the file is as before."""
        text, start = line.encode(), os.fstat(self.descriptor).st_size
        try:
            while text:
                text = text[os.write(self.descriptor, text) :]
            if sync:
                self.sync()
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.descriptor, start)
            raise

    def repair(self) -> bytes:
        """Remove a torn last line, and return the others. The caller holds the lock of the file."""
        written = self.path.read_bytes()
        whole = whole_lines(written)
        if len(whole) < len(written):
            os.ftruncate(self.descriptor, len(whole))
        return whole

    def sync(self) -> None:
        """Force the lines to the disk. OSError: this failed, now or earlier; Linux reports lost lines only once."""
        if self._failed is not None:
            raise self._failed
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            self._failed = error
            raise

    def close(self) -> None:
        os.close(self.descriptor)


class Ledger:
    """Events of one run, in order; kept in memory and, when given a path, in a JSON-lines file.

    With `again`, a resumed run repeats the events in the file, up to which `position` tells how many it has repeated.
    """

    def __init__(self, path: Path | None = None, *, again: bool = False) -> None:
        self.events: list[GaussianEvent] = []
        self._lines = None if path is None else AppendOnlyFile(path)
        if self._lines is not None:
            path = self._lines.path
            lock(self._lines.descriptor, f"ledger {path} is being written by another process; wait for it, or stop it")
            self.events = read_ledger(path, self._lines.repair() if again else None)
        self.position = 0 if again else len(self.events)

    def append(self, event: GaussianEvent) -> None:
        """Record `event`; the system has it when this returns. PrivacyError: a resumed run had another one here."""
        if self.position < len(self.events):
            before = self.events[self.position]
            if event != before:
                raise PrivacyError(
                    f"event {self.position} of the unfinished run was {before} and would now be {event}; the "
                    "noise must not be reused on other data; train anew under another name"
                )
        else:
            if self._lines is not None:
                self._lines.append(json.dumps(event.as_dict()) + "\n", sync=False)
            self.events.append(event)
        self.position += 1

    def advance(self, position: int) -> None:
        """Skip the first `position` events: they are not repeated. Raises PrivacyError: the file has fewer."""
        if position > len(self.events):
            raise PrivacyError(
                f"the checkpoint is at event {position} and the ledger has {len(self.events)}; restore it"
            )
        self.position = position

    def sync(self) -> None:
        if self._lines is not None:
            self._lines.sync()

    def inherit(self, releases: Iterable[Releases]) -> None:
        """Record the releases of an earlier run, so that this run's total includes them."""
        for release in releases:
            for _ in range(release.count):
                step = self.position
                # the earlier sensitivity does not matter: the multiplier is in units of it
                self.append(GaussianEvent(release.purpose, step, 1.0, release.noise_multiplier, release.sampling_rate))

    def close(self) -> None:
        """Force the file to the disk and close it; called before any result is written."""
        if self._lines is not None:
            lines, self._lines = self._lines, None
            with closing(lines):
                lines.sync()


def whole_lines(content: bytes) -> bytes:
    """The content of a file of lines without an incomplete last line."""
    return content[: content.rfind(b"\n") + 1]


def record_selection(path: Path, event: SelectionEvent) -> None:
    """Write the ledger of a private selection, a single line; it is on the disk when this returns."""
    with path.open("x", encoding="utf-8") as stream:
        stream.write(json.dumps(event.as_dict()) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def read_selection(path: Path, content: bytes | None = None) -> SelectionEvent | None:
    """The private selection in a ledger, or None; `content` if it was read. PrivacyError: missing, or malformed."""
    try:
        with _opened(path, content) as stream:
            line, more = stream.readline(LONGEST_SELECTION), stream.read(1)
    except OSError as error:
        raise unreadable(path, error) from None
    if not _is_selection(line):
        return None
    try:
        if more:
            raise ValueError("it has further lines")
        return SelectionEvent.from_dict(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PrivacyError(f"ledger {path} holds a selection that cannot be read ({error}); restore the file") from None


def _opened(path: Path, content: bytes | None) -> IO[bytes]:
    return open_regular(path) if content is None else BytesIO(content)


def unreadable(path: Path, error: OSError) -> LinprobeError:
    return read_fault(f"ledger {path}", error) or PrivacyError(
        f"ledger {path} cannot be read ({error}); without it no epsilon can be proven; restore it"
    )


def _is_selection(line: bytes) -> bool:
    try:
        return bool(json.loads(line)["event"] == "selection")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def read_ledger(path: Path, content: bytes | None = None) -> list[GaussianEvent]:
    """Events of a ledger; `content` if it was read. PrivacyError: missing, no finite event, or a private selection."""
    events, number = [], 0
    try:
        with _opened(path, content) as stream:
            while line := stream.readline(LONGEST_LINE if number else LONGEST_SELECTION):
                number += 1
                if b"selection" in line and _is_selection(line):
                    raise PrivacyError(
                        f"ledger {path} belongs to a private selection (linprobe tune --grid), whose cost is not a sum "
                        "over releases; allowed here: runs of linprobe train, or of tune without --grid"
                    )
                events.append(event_of(line))
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PrivacyError(f"ledger {path} line {number} is not an event ({error}); restore the file") from None
    return events


def event_of(line: bytes) -> GaussianEvent:
    """The event on a ledger's line. ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it has {len(line)} bytes")
    event = GaussianEvent.from_dict(json.loads(line.decode("utf-8")))
    finite = 0 < event.noise_multiplier <= LARGEST_FIGURE and 0 < event.sensitivity <= LARGEST_FIGURE
    if not (finite and 0 < event.sampling_rate <= 1):
        raise ValueError(
            f"noise multiplier {event.noise_multiplier}, sensitivity {event.sensitivity} and sampling rate "
            f"{event.sampling_rate}; allowed: finite above 0, and in (0, 1]"
        )
    return event
