"""Batches of pixels from worker processes, always in the same order and with the same rows in each."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from linprobe.errors import LinprobeError
from linprobe.extraction.decoding import UnreadableImage, decode
from linprobe.extraction.images import Members
from linprobe.extraction.partial import CONVERTED, DONE, SKIPPED
from linprobe.extraction.transform import ImageTransform
from linprobe.splits import id_hash

Batch = tuple[int, Tensor, Tensor, list[tuple[int, str]]]
"""Number of the batch, pixels (rows, channels, height, width) uint8, status (rows,) uint8, and (row, reason) unread."""


class Batches(Dataset[Batch]):
    """Batch `k` holds rows k * batch_size and following. Row i is view i % views of image i // views.

    Args:
        members: images of one group.
        views: rows an image; view 0 is the image itself, the others are augmented.
        size: (height, width) that every image must have after the transform.
    """

    def __init__(
        self, members: Members, transform: ImageTransform, batch_size: int, size: tuple[int, int], views: int = 1
    ) -> None:
        self.members, self.transform, self.batch_size, self.size, self.views = (
            members,
            transform,
            batch_size,
            size,
            views,
        )
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
        shape = (len(rows), len(self.transform.mean), *self.size)
        # channels last, as images are decoded and as convolutions are fastest
        pixels = torch.zeros(shape, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
        status = torch.full((len(rows),), DONE, dtype=torch.uint8)
        unread: list[tuple[int, str]] = []
        for place, row in enumerate(rows):
            try:
                pixels[place], conversions = self.row(row)
                status[place] += CONVERTED * conversions
            except UnreadableImage as error:
                status[place] = SKIPPED
                unread.append((row, str(error)))
        return batch, pixels, status, unread

    def row(self, row: int) -> tuple[Tensor, int]:
        """Pixels of one row, uint8, and the conversions made.

        Raises:
            UnreadableImage: the image cannot be decoded, or has another size than the others.
        """
        image_row, view = divmod(row, self.views)
        image, conversions = decode(self.members.read(image_row), self.transform.mode)
        if view:
            pixels = self.transform.augmented(image, id_hash(self.row_id(row), 0) >> 1)
        else:
            pixels = self.transform.pixels(image)
        if tuple(pixels.shape[1:]) != self.size:
            height, width = pixels.shape[1:]
            raise UnreadableImage(
                f"{width} x {height} pixels where the first test image has {self.size[1]} x {self.size[0]}; "
                "give --resize and --crop"
            )
        return pixels, conversions


def _start_worker(_: int) -> None:
    """Ctrl-C is the main process's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def load(batches: Batches, wanted: Sequence[int], workers: int, timeout: float, *, pin: bool) -> Iterator[Batch]:
    """The batches numbered `wanted`, in that order, whatever the number of workers; each one decoded by one worker.

    Raises:
        LinprobeError: a worker died, or was silent for `timeout` seconds.
    """
    loader: Any = DataLoader(
        batches,
        batch_size=None,
        sampler=wanted,
        num_workers=min(workers, len(wanted)),
        timeout=timeout if workers else 0,
        pin_memory=pin,
        worker_init_fn=_start_worker if workers else None,
    )
    expected = iter(wanted)
    source = iter(loader)
    with contextlib.suppress(StopIteration):
        while True:
            batch = next(expected, None)
            try:
                yield next(source)
            except RuntimeError as error:
                first = batches.row_id((batch or 0) * batches.batch_size)
                if "timed out" in str(error):
                    raise LinprobeError(
                        f"no image came within {timeout:g} seconds, at the batch that begins with {first}; "
                        "check the disk, or raise --timeout; the same command continues"
                    ) from None
                if "worker" in str(error):
                    raise LinprobeError(
                        f"a worker process died at the batch that begins with {first} ({str(error).splitlines()[0]}); "
                        "give fewer --workers or a smaller --batch-size if memory ran out; the same command continues"
                    ) from None
                raise


def first_size(batches: Batches) -> tuple[int, int] | None:
    """(height, width) after the transform of the first image that can be read, or None."""
    for row in range(batches.n_rows):
        try:
            image, _ = decode(batches.members.read(row // batches.views), batches.transform.mode)
        except UnreadableImage:
            continue
        height, width = batches.transform.pixels(image).shape[1:]
        return int(height), int(width)
    return None


def row_ids(batches: Batches, kept: np.ndarray[Any, np.dtype[np.bool_]]) -> Iterator[str]:
    """Record ids of the kept rows."""
    return (batches.row_id(int(row)) for row in np.flatnonzero(kept))
