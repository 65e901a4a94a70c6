"""An extraction that can be stopped at any point: rows on disk beside the file to come, and what is done.

The folder `NAME.partial` holds raw rows and one status byte a row, written in place; rows reach the disk before their
status does. Whoever resumes computes the same batches again that were not done, so the finished file does not depend
on where, how often or on how many processes it was stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from linprobe.atomic_files import replace_when_complete
from linprobe.errors import LinprobeError, UsageError

PENDING, DONE, SKIPPED = 0, 1, 2
CONVERTED = 4  # a status is PENDING, DONE or SKIPPED, plus CONVERTED times the conversions made
KEY_BYTES = 16
SYNC_SECONDS = 1.0
_OURS = re.compile(
    r"lock|settings\.json|\.settings\.json\..*|text\.npy.*|.*\.(rows|status|keys)|skipped-\d+\.jsonl|\.?made\.h5.*"
)
SETTINGS, LOCK = "settings.json", "lock"
ASSEMBLY_ROWS = 4096


def outcome(status: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """PENDING, DONE or SKIPPED of every row, without its conversions."""
    return status % CONVERTED


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
        self._keys = {group: os.open(folder / f"{group}.keys", os.O_RDWR) for group in sizes}
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
            whole = all(
                _size(folder / f"{group}.{suffix}") == n_rows * bytes_a_row
                for group, n_rows in sizes.items()
                for suffix, bytes_a_row in _files(width, dtype)
            )
            if other is not None and not overwrite:
                raise UsageError(
                    f"{folder} was begun with {other} {shown(before.get(other))} and this run has "
                    f"{shown(plain[other])}; give the same, or --overwrite to start again"
                )
            if other is None and whole:
                # of a run that was killed while it made the file
                for leftover in {*folder.glob("*.h5*"), *folder.glob(".*.partial")}:
                    leftover.unlink()
                return True
        for leftover in folder.iterdir():
            if leftover.name != LOCK:
                leftover.unlink()
        for group, n_rows in sizes.items():
            for suffix, bytes_a_row in _files(width, dtype):
                with (folder / f"{group}.{suffix}").open("wb") as stream:
                    if suffix == "status":
                        # its place on the disk is taken now: a full disk must not lose what was done
                        stream.write(bytes(n_rows))
                    stream.truncate(n_rows * bytes_a_row)
        with replace_when_complete(begun, "w") as stream:
            json.dump({**settings, "threads": torch.get_num_threads()}, stream, indent=1)
        return False

    def status(self, group: str) -> NDArray[np.uint8]:
        """Status of every row, shape (n_rows,)."""
        return np.fromfile(self.folder / f"{group}.status", dtype=np.uint8)

    def write(
        self, group: str, start: int, rows: NDArray[Any], status: NDArray[np.uint8], keys: NDArray[np.uint8]
    ) -> None:
        """Rows from `start` on, their keys and status; the status follows once the others are safe on the disk."""
        _write_all(self._keys[group], np.ascontiguousarray(keys), start * KEY_BYTES)
        _write_all(self._rows[group], np.ascontiguousarray(rows), start * self.width * self.dtype.itemsize)
        self._unsynced.append((group, start, status.tobytes()))
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Make everything written so far count."""
        for group in {group for group, _, _ in self._unsynced}:
            os.fsync(self._rows[group])
            os.fsync(self._keys[group])
        for group, start, status in self._unsynced:
            _write_all(self._status[group], np.frombuffer(status, dtype=np.uint8), start)
        self._unsynced.clear()
        self._synced = time.monotonic()

    def skip(self, group: str, row: int, name: str, reason: str) -> None:
        """Note an image that was left out; its status must be written after."""
        # a line that a killed process left half written must not swallow this one
        line = "\n" + json.dumps({"group": group, "row": row, "id": name, "reason": reason}) + "\n"
        with (self.folder / f"skipped-{self._rank}.jsonl").open("ab") as stream:
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())

    def skipped(self) -> list[tuple[str, str, str]]:
        """Every image left out, in order: group, id, reason."""
        left_out = {group: outcome(self.status(group)) == SKIPPED for group in self.sizes}
        found: dict[tuple[str, int], tuple[str, str, str]] = {}
        for path in sorted(self.folder.glob("skipped-*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    item = json.loads(line)
                except ValueError:  # the last line of a process that was killed
                    continue
                if not left_out[item["group"]][item["row"]]:
                    continue  # it could be read after all when its batch was done again
                found[item["group"], item["row"]] = (item["group"], item["id"], item["reason"])
        order = list(self.sizes)
        return [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))]

    def rows(self, group: str) -> Iterator[NDArray[Any]]:
        """Blocks of the rows that are done, in order."""
        kept = outcome(self.status(group)) == DONE
        with (self.folder / f"{group}.rows").open("rb") as stream:
            for start in range(0, self.sizes[group], ASSEMBLY_ROWS):
                part = kept[start : start + ASSEMBLY_ROWS]
                block = np.fromfile(stream, dtype=self.dtype, count=len(part) * self.width)
                yield block.reshape(len(part), self.width)[part]

    def keys(self, group: str) -> NDArray[np.uint8]:
        """Keys of the rows that are done, shape (rows, KEY_BYTES)."""
        keys = np.fromfile(self.folder / f"{group}.keys", dtype=np.uint8).reshape(-1, KEY_BYTES)
        kept: NDArray[np.uint8] = keys[outcome(self.status(group)) == DONE]
        return kept

    def close(self) -> None:
        """Close the files."""
        for descriptor in (*self._rows.values(), *self._status.values(), *self._keys.values()):
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _files(width: int, dtype: np.dtype[Any]) -> tuple[tuple[str, int], ...]:
    """The files of a group, and their bytes a row."""
    return ("rows", width * dtype.itemsize), ("keys", KEY_BYTES), ("status", 1)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _write_all(descriptor: int, values: NDArray[Any], offset: int) -> None:
    view = memoryview(values.data).cast("B")
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def shown(value: Any) -> str:
    """A setting for a message, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_HELD: set[IO[bytes]] = set()


def _let_go() -> None:
    """In a forked worker, which may outlive a parent that is killed: the lock is the parent's alone."""
    for stream in _HELD:
        os.close(stream.fileno())


os.register_at_fork(after_in_child=_let_go)


class Lock:
    """Holds the folder `NAME.partial`, so that a second extraction to the same file is refused and not mixed in.

    Leaves no folder behind in which nothing was begun.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> Self:
        if self._folder.exists() and not self._folder.is_dir():
            raise UsageError(f"{self._folder} is no folder and stands in the way; move it, or give another --out")
        while True:
            self._folder.mkdir(exist_ok=True)
            foreign = [path.name for path in self._folder.iterdir() if not _OURS.fullmatch(path.name)]
            if foreign:
                raise UsageError(
                    f"{self._folder} holds {foreign[0]!r}, which no extraction wrote; move it, or give another --out"
                )
            path = self._folder / LOCK
            self._stream = path.open("ab")
            try:
                fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._stream.close()
                raise LinprobeError(
                    f"another extraction is at work in {self._folder}; wait for it, or give another --out"
                ) from None
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._stream.fileno()), path.stat()):
                    _HELD.add(self._stream)
                    return self
            self._stream.close()  # the run that held it has just removed it

    def __exit__(self, *_: object) -> None:
        if self._folder.is_dir() and not (self._folder / SETTINGS).is_file():
            shutil.rmtree(self._folder)
        if self._stream is not None:
            _HELD.discard(self._stream)
            self._stream.close()
