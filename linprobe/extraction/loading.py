"""Batches of pixels from worker processes; order and contents do not depend on the number of workers."""

from __future__ import annotations

import hashlib
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from linprobe.data.owners import id_hash
from linprobe.errors import LinprobeError
from linprobe.extraction.decoding import UnreadableImage, decode
from linprobe.extraction.partial import CONVERTED, DONE, KEY_BYTES, SKIPPED
from linprobe.extraction.sources.base import Members
from linprobe.extraction.transform import ImageTransform

Batch = tuple[int, Tensor, Tensor, Tensor, list[tuple[int, str]]]
"""Batch number; pixels (rows, channels, height, width), status (rows,) and keys (rows, KEY_BYTES), all uint8; and
(row, reason) for each unreadable image. The key is a digest of the pixels that identifies copies of an image; it is
zero for augmented views."""


class Batches(Dataset[Batch]):
    """The batches of one group. Batch k starts at row k * batch_size. Row i is view i % views of image i // views.

    Args:
        members: images of one group.
        views: rows per image; view 0 is the image itself, the others are augmented.
        size: (height, width) that every image must have after the transform.
    """

    def __init__(
        self, members: Members, transform: ImageTransform, batch_size: int, size: tuple[int, int], views: int = 1
    ) -> None:
        self.members, self.transform, self.size = members, transform, size
        self.batch_size, self.views = batch_size, views
        self.n_rows = len(members) * views

    def row_id(self, row: int) -> str:
        """The record id of a row."""
        image, view = divmod(row, self.views)
        name = self.members.id(image)
        return f"{name}#view{view}" if view else name

    def __len__(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def __getitem__(self, batch: int) -> Batch:
        start = batch * self.batch_size
        rows = range(start, min(start + self.batch_size, self.n_rows))
        # channels last: the layout of decoded images and of the fastest convolutions
        # NumPy, because torch would start threads in every worker
        pixels = np.zeros((len(rows), *self.size, len(self.transform.mean)), dtype=np.uint8)
        status = np.full(len(rows), DONE, dtype=np.uint8)
        keys = np.zeros((len(rows), KEY_BYTES), dtype=np.uint8)
        unread: list[tuple[int, str]] = []
        for place, row in enumerate(rows):
            try:
                pixels[place], conversions = self.row(row)
                status[place] += CONVERTED * conversions
                if row % self.views == 0:
                    digest = hashlib.blake2b(pixels[place].data, digest_size=KEY_BYTES).digest()
                    keys[place] = np.frombuffer(digest, dtype=np.uint8)
            except UnreadableImage as error:
                status[place] = SKIPPED
                unread.append((row, str(error)))
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return batch, images, torch.from_numpy(status), torch.from_numpy(keys), unread

    def row(self, row: int) -> tuple[NDArray[np.uint8], int]:
        """Pixels of one row, uint8 (height, width, channels), and the bit mask of conversions.

        Raises:
            UnreadableImage: the image cannot be decoded, or its size after the transform is not `size`.
        """
        image_row, view = divmod(row, self.views)
        image, conversions = decode(self.members.read(image_row), self.transform.mode)
        if view:
            pixels = self.transform.augmented(image, self.size, id_hash(self.row_id(row), 0) >> 1)
        else:
            pixels = self.transform.pixels(image)
        height, width = pixels.shape[:2]
        if (height, width) != self.size:
            raise UnreadableImage(
                f"{width} x {height} pixels where the first test image has {self.size[1]} x {self.size[0]}; "
                "give --resize and --crop"
            )
        return pixels, conversions


def _start_worker(_: int) -> None:
    """Ignore Ctrl-C; the main process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def load(batches: Batches, wanted: Sequence[int], workers: int, timeout: float, *, pin: bool) -> Iterator[Batch]:
    """The batches numbered `wanted`, in that order. One worker decodes a whole batch.

    Args:
        workers: number of decoding processes; 0 decodes in a thread, one batch at a time.
        timeout: longest wait for a batch, in seconds.
        pin: use pinned memory, for faster copies to a GPU.

    Raises:
        LinprobeError: a worker died, or no batch came within `timeout`.
    """
    source = (
        _from_processes(batches, wanted, workers, timeout, pin) if workers else _from_thread(batches, wanted, timeout)
    )
    for number in wanted:
        first = batches.row_id(number * batches.batch_size)
        try:
            batch = next(source)
        except TimeoutError:
            raise LinprobeError(
                f"no image came within {timeout:g} seconds, at the batch that begins with {first}; "
                "check the disk, or raise --timeout; the same command continues"
            ) from None
        except _WorkerDiedError as error:
            raise LinprobeError(
                f"a worker process died at the batch that begins with {first} ({error}); give fewer --workers or a "
                "smaller --batch-size if memory ran out; the same command continues"
            ) from None
        yield batch


class _WorkerDiedError(Exception):
    """A decoding process died before it returned its batch."""


def _from_processes(
    batches: Batches, wanted: Sequence[int], workers: int, timeout: float, pin: bool
) -> Iterator[Batch]:
    loader: Any = DataLoader(
        batches,
        batch_size=None,
        sampler=wanted,
        num_workers=min(workers, len(wanted)),
        timeout=timeout,
        pin_memory=pin,
        worker_init_fn=_start_worker,
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "timed out" in str(error):
            raise TimeoutError from None
        if worker_died(error):
            raise _WorkerDiedError(str(error).splitlines()[0]) from None
        raise
    except (ConnectionError, EOFError) as error:
        raise _WorkerDiedError(str(error) or type(error).__name__) from None


def worker_died(error: RuntimeError) -> bool:
    """Whether torch's signal handler raised `error` for a dead worker; it does so anywhere in the main process."""
    return str(error).startswith("DataLoader worker")


def _from_thread(batches: Batches, wanted: Sequence[int], timeout: float) -> Iterator[Batch]:
    """Decode one batch at a time in a thread, so that a read that hangs can time out."""
    asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    made: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()

    def work() -> None:
        while (number := asked.get()) is not None:
            try:
                made.put(batches[number])
            except BaseException as error:
                made.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        for number in wanted:
            asked.put(number)
            try:
                batch = made.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError from None
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        asked.put(None)


def first_size(batches: Batches) -> tuple[int, int] | None:
    """(height, width) after the transform of the first readable image, or None."""
    for row in range(batches.n_rows):
        try:
            image, _ = decode(batches.members.read(row // batches.views), batches.transform.mode)
        except UnreadableImage:
            continue
        height, width = batches.transform.pixels(image).shape[:2]
        return int(height), int(width)
    return None


def first_shapes(members: Members, count: int) -> set[tuple[str, int, int]]:
    """(mode, height, width) of the readable ones among the first `count` images; the mode is L if grey, else RGB."""
    shapes = set()
    for row in range(min(count, len(members))):
        try:
            image, _ = decode(members.read(row), None)
        except UnreadableImage:
            continue
        shapes.add((image.mode, image.height, image.width))
    return shapes


def row_ids(batches: Batches, kept: NDArray[np.bool_]) -> Iterator[str]:
    """Record ids of the rows where `kept` (n_rows,) is true."""
    return (batches.row_id(int(row)) for row in np.flatnonzero(kept))
