"""Prefetching: a thread reads ahead in an iterator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Reader(threading.Thread, Generic[Item]):
    """Reads items into `made` while there is `room`, until the iterator ends or raises, or `stop` is called."""

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        super().__init__(name="prefetch", daemon=True)
        self._items = items
        self.room = threading.Semaphore(depth - 1)
        self.made: SimpleQueue[tuple[Item] | None] = SimpleQueue()
        self.error: BaseException | None = None
        self.stopped = False

    def run(self) -> None:
        """Read all items; None in `made` marks the end."""
        try:
            for item in self._items:
                self.made.put((item,))
                del item
                self.room.acquire()
                if self.stopped:
                    break
        except BaseException as error:
            self.error = error
        self.made.put(None)

    def stop(self) -> None:
        """End the thread after the current item, and wait for it."""
        self.stopped = True
        self.room.release()
        self.join()


def prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """The items in order, read by a thread up to `depth` items ahead.

    The thread starts at the first `next()`. It ends when the generator is exhausted, raises, is closed or is collected.

    Args:
        depth: at least 1.

    Raises:
        Whatever `items` raises, after the items before it.
    """
    reader = _Reader(items, depth)
    reader.start()
    try:
        while (item := reader.made.get()) is not None:
            reader.room.release()
            yield item[0]
            del item
        if reader.error is not None:
            raise reader.error
    finally:
        reader.stop()
