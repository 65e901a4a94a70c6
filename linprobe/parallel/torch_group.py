"""Training in several processes that `torchrun` started, on one machine or many, over gloo.

Sums are added in the order of ranks, so that the result is the same in every bit as that of one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import LinprobeError, UsageError, first_line
from linprobe.parallel.process_group import ALONE, Group

STARTED_BY = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = timedelta(minutes=30)
Value = TypeVar("Value")


@contextmanager
def group() -> Iterator[Group]:
    """The processes that torchrun started together with this one; this one alone where there is no torchrun.

    Raises:
        LinprobeError: the others cannot be reached.
    """
    if not all(name in os.environ for name in STARTED_BY):
        yield ALONE
        return
    if int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("this torch has no torch.distributed; allowed: one process, or a torch with gloo")
    try:
        _guarded(lambda: dist.init_process_group("gloo", timeout=PATIENCE))
        try:
            yield TorchGroup(dist.get_rank(), dist.get_world_size())
            _guarded(dist.barrier)
        finally:
            dist.destroy_process_group()
    except ConnectionAbortedError as error:
        raise LinprobeError(str(error)) from None


def _guarded(call: Callable[[], Value]) -> Value:
    """What `call` returns; one line where another process is gone."""
    try:
        return call()
    except (RuntimeError, ValueError) as error:
        # a place in gloo's sources comes first, and advice last
        reason = first_line(error).split("] ", 1)[-1].partition(". ")[0]
        raise ConnectionAbortedError(
            f"another process is gone ({reason}); start all of them again, with --resume if a checkpoint was kept"
        ) from None


class TorchGroup:
    """A `linprobe.parallel.process_group.Group` of torch.distributed processes."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.here = int(os.environ.get("LOCAL_WORLD_SIZE", size))

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        """The sum of all parts, alike in every process.

        Rank 0 adds them in the order of ranks, and the sum goes to all.
        """
        import torch
        import torch.distributed as dist

        total = np.array(part, order="C")
        if self.rank > 0:
            _guarded(lambda: dist.send(torch.from_numpy(total.reshape(-1)), 0))
        else:
            other = np.empty_like(total)
            for rank in range(1, self.size):
                _guarded(lambda rank=rank: dist.recv(torch.from_numpy(other.reshape(-1)), rank))  # type: ignore[misc]
                total += other
        return self.broadcast(total)

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array of rank 0, in every process."""
        import torch
        import torch.distributed as dist

        copy = np.array(array, order="C")
        flat = torch.from_numpy(copy.reshape(-1).view(np.uint8))
        _guarded(lambda: dist.broadcast(flat, 0))
        return copy

    def broadcast_text(self, text: str) -> str:
        """The text of rank 0."""
        import torch.distributed as dist

        box = [text]
        _guarded(lambda: dist.broadcast_object_list(box, 0))
        return box[0]

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        """All parts, one after another along the first axis, at rank 0; the own part elsewhere."""
        import torch.distributed as dist

        parts: list[Any] | None = [None] * self.size if self.rank == 0 else None
        _guarded(lambda: dist.gather_object(part, parts, 0))
        return part if parts is None else np.concatenate(parts)
