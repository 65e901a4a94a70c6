"""An extraction that can be stopped at any point: rows on disk beside the file to come, and what is done.

The folder `NAME.partial` holds raw rows and one status byte a row, written in place; rows reach the disk before their
status does. Whoever resumes computes the same batches again that were not done, so the finished file does not depend
on where, how often or on how many processes it was stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import LinprobeError, UsageError
from linprobe.files import replace_when_complete

PENDING, DONE, SKIPPED = 0, 1, 2
CONVERTED = 4  # a status is PENDING, DONE or SKIPPED, plus CONVERTED times the conversions made
SYNC_SECONDS = 1.0
SETTINGS, LOCK = "settings.json", "lock"
ASSEMBLY_ROWS = 4096


class Partial:
    """The folder of an unfinished extraction; use `Partial.begin` once, then open it in every process.

    Args:
        folder: `NAME.partial`, held by a `Lock`.
        sizes: rows a group. width: features a row. dtype: type on disk.
        rank: number of this process, which names its list of skipped images.
    """

    def __init__(self, folder: Path, sizes: dict[str, int], width: int, dtype: np.dtype[Any], rank: int = 0) -> None:
        self.folder, self.sizes, self.width, self.dtype = folder, sizes, width, dtype
        self._rank = rank
        self._rows = {group: os.open(folder / f"{group}.rows", os.O_RDWR) for group in sizes}
        self._status = {group: os.open(folder / f"{group}.status", os.O_RDWR) for group in sizes}
        self._unsynced: list[tuple[str, int, bytes]] = []
        self._synced = time.monotonic()

    @staticmethod
    def begin(
        folder: Path,
        settings: dict[str, Any],
        sizes: dict[str, int],
        width: int,
        dtype: np.dtype[Any],
        *,
        overwrite: bool = False,
    ) -> bool:
        """Fill the folder, or check that what is in it was begun with the same settings; returns whether it was.

        Raises:
            UsageError: it was begun with other settings, and `overwrite` does not give it up.
        """
        begun = folder / SETTINGS
        plain = json.loads(json.dumps(settings))
        if begun.is_file():
            try:
                before = json.loads(begun.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                before = {}
            other = next((name for name in plain if before.get(name) != plain[name]), None)
            if other is not None and not overwrite:
                raise UsageError(
                    f"{folder} was begun with {other} {shown(before.get(other))} and this run has "
                    f"{shown(plain[other])}; give the same, or --overwrite to start again"
                )
            if other is None:
                # of a run that was killed while it made the file
                for leftover in {*folder.glob("*.h5*"), *folder.glob(".*.partial")}:
                    leftover.unlink()
                return True
        for leftover in folder.iterdir():
            if leftover.name != LOCK:
                leftover.unlink()
        for group, n_rows in sizes.items():
            for name, size in ((f"{group}.rows", n_rows * width * dtype.itemsize), (f"{group}.status", n_rows)):
                with (folder / name).open("wb") as stream:
                    stream.truncate(size)
        with replace_when_complete(begun, "w") as stream:
            json.dump(settings, stream, indent=1)
        return False

    def status(self, group: str) -> NDArray[np.uint8]:
        """Status of every row, shape (n_rows,)."""
        return np.fromfile(self.folder / f"{group}.status", dtype=np.uint8)

    def write(self, group: str, start: int, rows: NDArray[Any], status: NDArray[np.uint8]) -> None:
        """Rows from `start` on, and their status; the status follows once the rows are safe on the disk."""
        _write_all(self._rows[group], np.ascontiguousarray(rows), start * self.width * self.dtype.itemsize)
        self._unsynced.append((group, start, status.tobytes()))
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Make everything written so far count."""
        for group in {group for group, _, _ in self._unsynced}:
            os.fsync(self._rows[group])
        for group, start, status in self._unsynced:
            _write_all(self._status[group], np.frombuffer(status, dtype=np.uint8), start)
        self._unsynced.clear()
        self._synced = time.monotonic()

    def skip(self, group: str, row: int, name: str, reason: str) -> None:
        """Note an image that was left out; its status must be written after."""
        line = json.dumps({"group": group, "row": row, "id": name, "reason": reason}) + "\n"
        with (self.folder / f"skipped-{self._rank}.jsonl").open("ab") as stream:
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())

    def skipped(self) -> list[tuple[str, str, str]]:
        """Every image left out, in order: group, id, reason."""
        found: dict[tuple[str, int], tuple[str, str, str]] = {}
        for path in sorted(self.folder.glob("skipped-*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    item = json.loads(line)
                except ValueError:  # the last line of a process that was killed
                    continue
                found[item["group"], item["row"]] = (item["group"], item["id"], item["reason"])
        order = list(self.sizes)
        return [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))]

    def rows(self, group: str) -> Iterator[NDArray[Any]]:
        """Blocks of the rows that are done, in order."""
        kept = (self.status(group) & 3) == DONE
        with (self.folder / f"{group}.rows").open("rb") as stream:
            for start in range(0, self.sizes[group], ASSEMBLY_ROWS):
                part = kept[start : start + ASSEMBLY_ROWS]
                block = np.fromfile(stream, dtype=self.dtype, count=len(part) * self.width)
                yield block.reshape(len(part), self.width)[part]

    def close(self) -> None:
        """Close the files."""
        for descriptor in (*self._rows.values(), *self._status.values()):
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_all(descriptor: int, values: NDArray[Any], offset: int) -> None:
    view = memoryview(values.data).cast("B")
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def shown(value: Any) -> str:
    """A setting for a message, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Lock:
    """Holds the folder `NAME.partial`, so that a second extraction to the same file is refused and not mixed in.

    Leaves no folder behind in which nothing was begun.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        self._stream = (self._folder / LOCK).open("ab")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.close()
            raise LinprobeError(
                f"another extraction is at work in {self._folder}; wait for it, or give another --out"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder.is_dir() and not (self._folder / SETTINGS).is_file():
            shutil.rmtree(self._folder)
        if self._stream is not None:
            self._stream.close()
