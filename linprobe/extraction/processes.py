"""Several processes under torchrun: who this one is, and waiting for the others."""

from __future__ import annotations

import os
from datetime import timedelta
from types import TracebackType
from typing import Self

LONGEST_WAIT = timedelta(days=7)  # one process may have far slower images than another


class Processes:
    """The processes of this extraction; one alone unless torchrun started several. Use as a context manager."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def first(self) -> bool:
        """Whether this process writes the file."""
        return self.rank == 0

    def wait(self) -> None:
        """Until every process is here."""
        if self.count > 1:
            import torch.distributed

            torch.distributed.barrier()

    def told(self, fact: bool) -> bool:
        """What the first process knows; waits for it."""
        if self.count == 1:
            return fact
        import torch.distributed

        facts = [fact]
        torch.distributed.broadcast_object_list(facts, src=0)
        return facts[0]

    def __enter__(self) -> Self:
        if self.count > 1:
            import torch.distributed

            torch.distributed.init_process_group("gloo", timeout=LONGEST_WAIT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.count > 1 and kind is None:
            import torch.distributed

            torch.distributed.destroy_process_group()
