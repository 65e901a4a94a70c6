"""The processes of one command: rank, size, and the collective operations that methods and extraction use.

A `TorchGroup` has processes that torchrun started, on one machine or several, connected by gloo. The members of a
`ThreadGroup` are threads of one process, for audits and tests. All-reduce adds parts in rank order, so that training in
several processes gives the same bits as in one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import LinprobeError, UsageError, first_line, require

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(minutes=30)
RESUME = "start all of them again, with --resume if a checkpoint was kept"
Value = TypeVar("Value")


class Group:
    """A group of processes; this class is the group of one. Every process makes the same calls in the same order.

    Attributes:
        rank: number of this process. size: number of processes.
        local_rank, local_size: the same among the processes on this machine.

    Raises from every call:
        ConnectionAbortedError: another process has ended.
    """

    rank = local_rank = 0
    size = local_size = 1

    def barrier(self) -> None:
        """Wait until every process has made this call."""

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        """Sum of the parts of all processes, added in rank order; every process gets the same bits."""
        return part

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array of rank 0. Arrays must have the same shape and dtype in all processes."""
        return array

    def broadcast_text(self, text: str) -> str:
        """The text of rank 0."""
        return text

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        """At rank 0 all parts, concatenated along the first axis in rank order; elsewhere the process's own part."""
        return part


ALONE = Group()


class ThreadGroup(Group):
    """The group of one thread.

    Args:
        rank: number of this thread.
        barrier: shared by all threads. table: shared, one entry for each thread.
    """

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
        """The values of all threads, in rank order."""
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
    """`work(group)` of every member of a group of `size` threads, in rank order. A group of one needs no thread.

    Raises:
        The error of the lowest rank that failed by itself; the other ranks end at their next collective call.
    """
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


@contextmanager
def group(timeout: timedelta = TIMEOUT, next_step: str = RESUME) -> Iterator[Group]:
    """The group of processes that torchrun started; a group of one if torchrun did not start this process.

    The block ends with a barrier. A group of one does not import torch.

    Args:
        timeout: longest wait for another process.
        next_step: advice to the user, the end of the error message, if another process has ended.

    Raises:
        UsageError: no torch, or one without torch.distributed. LinprobeError: another process ended or is unreachable.
    """
    if not all(name in os.environ for name in TORCHRUN_VARIABLES) or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    require("torch", "a group of several processes")
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("this torch has no torch.distributed; allowed: one process, or a torch with gloo")
    try:
        _guarded(lambda: dist.init_process_group("gloo", timeout=timeout))
        try:
            yield TorchGroup(dist.get_rank(), dist.get_world_size())
            _guarded(dist.barrier)
        finally:
            dist.destroy_process_group()
    except ConnectionAbortedError as error:
        raise LinprobeError(f"{error}; {next_step}") from None


def _guarded(call: Callable[[], Value]) -> Value:
    """Result of `call`. Raises ConnectionAbortedError, with a one-line reason, if another process has ended."""
    try:
        return call()
    except (RuntimeError, ValueError) as error:
        # gloo's message begins with a source location in brackets and ends with advice
        reason = first_line(error).split("] ", 1)[-1].partition(". ")[0]
        raise ConnectionAbortedError(f"another process is gone ({reason})") from None


class TorchGroup(Group):
    """A group of torch.distributed processes."""

    def __init__(self, rank: int, size: int) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.size = rank, size
        self.local_rank = int(os.environ.get("LOCAL_RANK", rank))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))

    def _flat(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(array.reshape(-1))

    def barrier(self) -> None:
        _guarded(self._dist.barrier)

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        """As of every group; rank 0 adds the parts in rank order and broadcasts the sum."""
        total = np.array(part, order="C")
        if self.rank > 0:
            _guarded(lambda: self._dist.send(self._flat(total), 0))
        else:
            other = np.empty_like(total)
            for rank in range(1, self.size):
                _guarded(lambda rank=rank: self._dist.recv(self._flat(other), rank))  # type: ignore[misc]
                total += other
        return self.broadcast(total)

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        copy = np.array(array, order="C")
        flat = self._flat(copy.reshape(-1).view(np.uint8))
        _guarded(lambda: self._dist.broadcast(flat, 0))
        return copy

    def broadcast_text(self, text: str) -> str:
        box = [text]
        _guarded(lambda: self._dist.broadcast_object_list(box, 0))
        return box[0]

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        parts: list[Any] | None = [None] * self.size if self.rank == 0 else None
        _guarded(lambda: self._dist.gather_object(part, parts, 0))
        return part if parts is None else np.concatenate(parts)
