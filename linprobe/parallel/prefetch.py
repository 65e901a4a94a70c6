"""Items of an iterator, made ahead of time in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Reader(threading.Thread, Generic[Item]):
    """Puts items into `made` while there is `room`; ends with the iterator, its error, or when told to stop."""

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        super().__init__(name="prefetch", daemon=True)
        self._items = items
        self.room = threading.Semaphore(depth - 1)
        self.made: SimpleQueue[tuple[Item] | None] = SimpleQueue()
        self.error: BaseException | None = None
        self.stopped = False

    def run(self) -> None:
        """Read until the end."""
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
        """Make the thread end after the item it is at, and wait for that."""
        self.stopped = True
        self.room.release()
        self.join()


def prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """`items` in order, read in a thread of their own, at most `depth` >= 1 ahead; an error there is raised here.

    The thread starts with the first item asked for and ends when the iterator does, by its end, an exception or
    `close()`, or is collected.
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
