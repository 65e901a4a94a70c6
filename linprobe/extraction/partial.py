"""The folder of an unfinished extraction, `NAME.partial`, which can be stopped at any point and resumed.

It holds raw rows and one status byte per row. Rows reach the disk before their status. A resumed run computes every
unfinished batch again, whole, so the file does not depend on stops, or on the number of processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from linprobe.atomic_files import PRIVATE_FOLDER, held, open_private, read_text, replace_when_complete
from linprobe.data.feature_reader import IMAGE_KEY_BYTES, shown
from linprobe.errors import UsageError

PENDING, DONE, SKIPPED = 0, 1, 2
PIXEL_KEY = slice(0, IMAGE_KEY_BYTES)  # of the bytes of a key: the digest of the pixels after the transform
SOURCE_KEY = slice(IMAGE_KEY_BYTES, 2 * IMAGE_KEY_BYTES)  # the digest of the image before the transform
KEY_BYTES = SOURCE_KEY.stop
SYNC_SECONDS = 1.0
_OURS = re.compile(
    r"lock|settings\.json|\.settings\.json\..*|\.?text\.npy.*|.*\.(rows|status|keys)|skipped-\d+\.jsonl|\.?made\.h5.*"
)
SETTINGS, LOCK = "settings.json", "lock"
ASSEMBLY_ROWS = 4096


def first_change(before: dict[str, Any], settings: dict[str, Any]) -> str | None:
    """The first setting that is not as `before`, for a message."""
    for name, value in json.loads(json.dumps(settings)).items():
        if before.get(name) != value:
            since = ", as the images, their classes or their owners have changed since" * (name == "fingerprint")
            return f"{name} {shown(before.get(name))} and this run has {shown(value)}{since}"
    return None


class Partial:
    """The files of an unfinished extraction. One process calls `begin`; then every process enters a `with` block."""

    def __init__(self, folder: Path, sizes: dict[str, int], width: int, dtype: np.dtype[Any], rank: int = 0) -> None:
        self.folder, self.sizes, self.width, self.dtype, self._rank = folder, sizes, width, dtype, rank
        of_a_row = {"rows": width * dtype.itemsize, "keys": KEY_BYTES, "status": 1}
        self._bytes = {f"{group}.{suffix}": n * each for group, n in sizes.items() for suffix, each in of_a_row.items()}
        self._open: dict[str, int] = {}
        self._unsynced: list[tuple[str, int, bytes]] = []
        self._synced = time.monotonic()

    def _continues(self, settings: dict[str, Any], *, overwrite: bool) -> bool:
        if not (self.folder / SETTINGS).is_file():
            return False
        try:
            before = dict(json.loads(read_text(self.folder / SETTINGS)))
        except (OSError, TypeError, ValueError):
            before = {}
        other = first_change(before, settings)
        if other is not None and not overwrite:
            raise UsageError(f"{self.folder} was begun with {other}; give the same, or --overwrite to start again")
        files = {self.folder / name: n_bytes for name, n_bytes in self._bytes.items()}
        return other is None and all(path.is_file() and path.stat().st_size == n for path, n in files.items())

    def begin(self, settings: dict[str, Any], *, overwrite: bool = False) -> bool:
        """Start a new extraction in the folder, or return True if it holds one with the same settings to resume."""
        if self._continues(settings, overwrite=overwrite):
            # left by a run that was killed while it assembled the file
            for leftover in {*self.folder.glob("*.h5*"), *self.folder.glob(".*.partial")}:
                leftover.unlink()
            return True
        for leftover in self.folder.iterdir():
            if leftover.name != LOCK:
                leftover.unlink()
        for name, n_bytes in self._bytes.items():
            with os.fdopen(open_private(self.folder / name, os.O_WRONLY | os.O_CREAT), "wb") as stream:
                if name.endswith(".status"):
                    # allocate the blocks now, so that a disk that fills up later cannot lose finished rows
                    stream.write(bytes(n_bytes))
                stream.truncate(n_bytes)
        with replace_when_complete(self.folder / SETTINGS, "w", private=True) as stream:
            json.dump({**settings, "threads": torch.get_num_threads()}, stream, indent=1)
        return False

    def __enter__(self) -> Self:
        for name in self._bytes:
            self._open[name] = os.open(self.folder / name, os.O_RDWR)
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def status(self, group: str) -> NDArray[np.uint8]:
        return np.fromfile(self.folder / f"{group}.status", dtype=np.uint8)

    def write(
        self, group: str, start: int, rows: NDArray[Any], status: NDArray[np.uint8], keys: NDArray[np.uint8]
    ) -> None:
        """Write rows (b, width), keys (b, KEY_BYTES), status (b,) at `start`; `sync` writes the status, later."""
        _write_all(self._open[f"{group}.keys"], np.ascontiguousarray(keys), start * KEY_BYTES)
        _write_all(self._open[f"{group}.rows"], np.ascontiguousarray(rows), start * self.width * self.dtype.itemsize)
        self._unsynced.append((group, start, status.tobytes()))
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Force the rows to the disk, then write their status. If that fails, they stay pending."""
        waiting, self._unsynced = self._unsynced, []  # Linux reports lost rows once, and then success
        for group in {group for group, _, _ in waiting}:
            os.fsync(self._open[f"{group}.rows"])
            os.fsync(self._open[f"{group}.keys"])
        for group, start, status in waiting:
            _write_all(self._open[f"{group}.status"], np.frombuffer(status, dtype=np.uint8), start)
        self._synced = time.monotonic()

    def skip(self, group: str, row: int, name: str, reason: str) -> None:
        """Record a skipped image. Call it before `write` of the row's status."""
        # start a new line: a killed process may have left half a line
        line = "\n" + json.dumps({"group": group, "row": row, "id": name, "reason": reason}) + "\n"
        log = open_private(self.folder / f"skipped-{self._rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(log, "ab") as stream:
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())

    def skipped(self) -> list[tuple[str, str, str]]:
        left_out = {group: self.status(group) == SKIPPED for group in self.sizes}
        found: dict[tuple[str, int], tuple[str, str, str]] = {}
        for path in sorted(self.folder.glob("skipped-*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    item = json.loads(line)
                except ValueError:  # half a line, left by a killed process
                    continue
                if not left_out[item["group"]][item["row"]]:
                    continue  # readable when its batch was computed again
                found[item["group"], item["row"]] = (item["group"], item["id"], item["reason"])
        order = list(self.sizes)
        return [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))]

    def rows(self, group: str) -> Iterator[NDArray[Any]]:
        kept = self.status(group) == DONE
        with (self.folder / f"{group}.rows").open("rb") as stream:
            for start in range(0, self.sizes[group], ASSEMBLY_ROWS):
                part = kept[start : start + ASSEMBLY_ROWS]
                block = np.fromfile(stream, dtype=self.dtype, count=len(part) * self.width)
                yield block.reshape(len(part), self.width)[part]

    def keys(self, group: str) -> NDArray[np.uint8]:
        keys = np.fromfile(self.folder / f"{group}.keys", dtype=np.uint8).reshape(-1, KEY_BYTES)
        kept: NDArray[np.uint8] = keys[self.status(group) == DONE]
        return kept


def _write_all(descriptor: int, values: NDArray[Any], offset: int) -> None:
    view = memoryview(values.data).cast("B")
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create and lock the folder `NAME.partial`; at the end, remove it if no extraction was begun in it."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder and prevents the extraction; move it, or give another --out")
    with ExitStack() as stack:
        while True:
            folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            with suppress(FileNotFoundError):  # the extraction that held the folder has just removed it
                foreign = [path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name)]
                if foreign:
                    raise UsageError(f"{folder} holds {foreign[0]!r}, which no extraction wrote; give another --out")
                busy = f"another extraction is running in {folder}; wait for it, or give another --out"
                descriptor = stack.enter_context(held(folder / LOCK, busy, create=True, error=UsageError))
                if descriptor is None or os.path.samestat(os.fstat(descriptor), (folder / LOCK).stat()):
                    break
            stack.close()
        try:
            yield
        finally:
            if folder.is_dir() and not (folder / SETTINGS).is_file():
                shutil.rmtree(folder)
