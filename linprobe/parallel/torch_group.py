"""Processes started by `torchrun`, on one machine or several, connected by gloo."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import LinprobeError, UsageError, first_line, require
from linprobe.parallel.process_group import ALONE, Group

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # as in linprobe/__main__.py
CONNECTION = timedelta(minutes=5)  # until all processes have started; one that ended before is noticed no earlier
TIMEOUT = timedelta(minutes=30)
AT_ONCE = 8  # parts that rank 0 receives at a time
RESUME = "see its own error; without one, start all of them again, with --resume if a checkpoint was kept"
Value = TypeVar("Value")


def _by_torchrun() -> bool:
    return all(name in os.environ for name in TORCHRUN_VARIABLES)


def refuse_copies(what: str) -> None:
    """UsageError under torchrun, where every process would do all of `what` anew, and spend for it anew."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1" and _by_torchrun():
        raise UsageError(
            f"{what} was started in {size[:9]} processes, and each would spend on its own; allowed in several: the "
            "commands linprobe train and linprobe extract; start it without torchrun"
        )


def tasks_without_torchrun() -> str | None:
    """One line if srun or mpirun started several processes that do not know of each other; None otherwise."""
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"):
        size = os.environ.get(name, "1")
        if size != "1" and "RANK" not in os.environ:
            return (
                f"this is one of {size[:9]} tasks, and each makes a run of its own, which spends on its own; for one "
                "run, start torchrun in each task"
            )
    return None


@contextmanager
def group(timeout: timedelta = TIMEOUT, next_step: str = RESUME) -> Iterator[Group]:
    """The group of processes that torchrun started, or of one, without torch. The block ends with a barrier."""
    if not _by_torchrun():
        yield ALONE
        return
    size = _number("WORLD_SIZE", 1)
    for name, least, most in (
        *(("RANK", 0, size - 1), ("MASTER_PORT", 1, 65535)),
        *(("LOCAL_RANK", 0, size - 1), ("LOCAL_WORLD_SIZE", 1, size)),
    ):
        if name in os.environ:
            _number(name, least, most)
    if size == 1:
        yield ALONE
        return
    require("torch", "a group of several processes")
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("this torch has no torch.distributed; allowed: one process, or a torch with gloo")
    try:
        _guarded(lambda: _join(min(timeout, CONNECTION)))
        try:
            # for collective calls alone; older torch has another name for it
            name = "set_timeout" if hasattr(dist.distributed_c10d, "set_timeout") else "_set_pg_timeout"
            getattr(dist.distributed_c10d, name)(timeout)
            yield TorchGroup(dist.get_rank(), dist.get_world_size(), timeout)
            _guarded(dist.barrier)
        finally:
            dist.destroy_process_group()
    except ConnectionAbortedError as error:
        raise LinprobeError(f"{error}; {next_step}") from None


def _number(name: str, least: int, most: int = 10**9) -> int:
    given = os.environ[name]
    if not given.isdecimal() or len(given) > len(str(most)) or not least <= int(given) <= most:
        raise UsageError(
            f"{name} is {given[:40]!r}; allowed: a whole number from {least} to {most}, as torchrun sets it; unset it, "
            "or start linprobe with torchrun"
        )
    return int(given)


def _join(timeout: timedelta) -> None:
    """Join the group of torchrun, with keys for each start: an elastic agent's store may outlive a restart."""
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
    own = c10d.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    c10d.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=timeout)


def _guarded(call: Callable[[], Value]) -> Value:
    """Result of `call`. Raises ConnectionAbortedError, with a one-line reason, if another process has ended."""
    try:
        return call()
    except (RuntimeError, ValueError) as error:
        # gloo's message begins with a source location in brackets and ends with advice
        reason = first_line(error).split("] ", 1)[-1].partition(". ")[0]
        raise ConnectionAbortedError(f"another process is gone ({reason})") from None


class TorchGroup(Group):
    def __init__(self, rank: int, size: int, timeout: timedelta = TIMEOUT) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.size, self._timeout = rank, size, timeout
        self.local_rank = int(os.environ.get("LOCAL_RANK", rank))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))

    def _flat(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(array.reshape(-1))

    def barrier(self) -> None:
        _guarded(self._dist.barrier)

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        total = np.array(part, order="C")
        if self.rank > 0:
            _guarded(lambda: self._dist.isend(self._flat(total), 0).wait(self._timeout))
        else:
            # the next parts are on their way while one is added, so that their latencies overlap
            coming: deque[tuple[Any, NDArray[Any]]] = deque()
            for rank in range(1, self.size + AT_ONCE):
                if rank < self.size:
                    other = np.empty_like(total)
                    coming.append((_guarded(partial(self._dist.irecv, self._flat(other), rank)), other))
                if coming and (rank >= self.size or len(coming) == AT_ONCE):
                    receiving, part = coming.popleft()
                    _guarded(partial(receiving.wait, self._timeout))
                    total += part
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
