"""How a run is computed: precision of the rows, device, processes and checkpoints.

Nothing here changes the method, the budget or the guarantee. Precision and device change the rounding of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from linprobe.data.blocks import Precision
from linprobe.data.sources import SHARD_ROWS
from linprobe.errors import UsageError
from linprobe.mechanisms.noise import NoiseSource
from linprobe.options.declaration import Options, refuse_on_gpu
from linprobe.parallel.process_group import ALONE, Group
from linprobe.training.checkpoint import Checkpoints


@dataclass(frozen=True)
class Runtime:
    """How a run is computed.

    Attributes:
        precision: storage type of the rows; clip factors are computed from the rounded rows.
        device: `cpu`, `cuda` or `cuda:N`; it holds rows, weights and noise. Some methods train on `cpu` only.
        group: processes that train together with the same arguments, each on its shard of the private rows.
        streamed: whether rows are read again in every pass, though they fit in memory.
        shard_units: a shard begins at a multiple of so many units; with the default, processes change no bit.
        keep: (noise source, slice of the private rows in this process) -> checkpoints; None for no checkpoints.
    """

    precision: Precision = "float32"
    device: str = "cpu"
    group: Group = ALONE
    streamed: bool = False
    shard_units: int = SHARD_ROWS
    keep: Callable[[NoiseSource, slice], Checkpoints] | None = None

    def check(self, options: Options) -> None:
        """Refuse a device that cannot train a method with these options.

        Raises:
            UsageError: a method, an option or a group that needs device cpu.
        """
        if self.device == "cpu":
            return
        refuse_on_gpu(options, self.device)
        if self.group.size > 1:
            raise UsageError(
                f"device is {self.device!r} with {self.group.size} processes; allowed: one process, or device cpu"
            )
