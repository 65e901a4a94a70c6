"""Read items of an iterator ahead of time, in one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Yield `items` in order, read in a thread of their own, at most `depth` >= 1 ahead.

    The thread starts when the first item is requested. It ends with this iterator: at its end, on an exception, on
    `close()`, or when it is collected.

    Raises:
        Whatever `items` raises, after the items before it.
    """

    def read() -> tuple[Item] | None:
        for item in items:
            return (item,)
        return None

    reader = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    ahead: deque[Future[tuple[Item] | None]] = deque()
    try:
        ahead.extend(reader.submit(read) for _ in range(depth))
        while (item := ahead.popleft().result()) is not None:
            ahead.append(reader.submit(read))
            yield item[0]
            del item  # before the next wait, so that at most `depth` items are held here
    finally:
        reader.shutdown(cancel_futures=True)
