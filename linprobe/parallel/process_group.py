"""The processes of one command: rank, size, and the collective operations that methods and extraction use.

`linprobe.parallel.torch_group` has processes started by torchrun. A `ThreadGroup` is of threads, for audits and tests.
All-reduce adds parts in rank order, so that training in several processes gives the same bits as in one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")


class Group:
    """A group of processes; this class is the group of one. Every process makes the same calls in the same order.

    ConnectionAbortedError from every call: another process has ended.
    """

    rank = local_rank = 0  # of this process, in all and on this machine
    size = local_size = 1  # number of processes

    def barrier(self) -> None:
        """Wait until every process has made this call."""

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        """Sum of the parts of all processes, added in rank order; every process gets the same bits."""
        return part

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array of rank 0. Arrays must have the same shape and dtype in all processes."""
        return array

    def broadcast_text(self, text: str) -> str:
        return text

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        """At rank 0 all parts, concatenated along the first axis in rank order; elsewhere the process's own part."""
        return part


ALONE = Group()


class ThreadGroup(Group):
    """The group of one thread; threads share the barrier and the table, which has an entry for each."""

    def __init__(self, rank: int, barrier: Barrier, table: list[Any]) -> None:
        self.rank = self.local_rank = rank
        self.size = self.local_size = len(table)
        self._barrier, self._table = barrier, table

    def barrier(self) -> None:
        try:
            self._barrier.wait()
        except BrokenBarrierError:
            raise ConnectionAbortedError("another thread of the group has ended") from None

    def _exchanged(self, mine: Any) -> list[Any]:
        self._table[self.rank] = mine
        self.barrier()
        given = list(self._table)
        self.barrier()
        return given

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        first, *others = self._exchanged(np.array(part))
        total = first.copy()
        for other in others:
            total += other
        return np.asarray(total)

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self._exchanged(np.array(array))[0]).copy()

    def broadcast_text(self, text: str) -> str:
        return str(self._exchanged(text)[0])

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        parts = self._exchanged(np.array(part))
        return part if self.rank else np.concatenate(parts)


def in_group(size: int, work: Callable[[Group], Value]) -> list[Value]:
    """`work(group)` of every member of a group of threads, in rank order; the error of who failed by itself."""
    if size == 1:
        return [work(ALONE)]
    barrier, table = Barrier(size), [None] * size

    def member(rank: int) -> Value:
        try:
            return work(ThreadGroup(rank, barrier, table))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size, thread_name_prefix="rank") as pool:
        members = [pool.submit(member, rank) for rank in range(size)]
        errors = [error for error in (each.exception() for each in members) if error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, ConnectionAbortedError))
    return [each.result() for each in members]
