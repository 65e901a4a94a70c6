"""How a run is computed: how rows are kept, on which device, by which processes, and where checkpoints go.

Nothing here changes the method, the budget or the guarantee. Precision and device change the rounding of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from linprobe.data.precision import Precision
from linprobe.errors import UsageError
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS, Method
from linprobe.parallel.process_group import ALONE, Group
from linprobe.training.checkpoint import Checkpoints


@dataclass(frozen=True)
class Runtime:
    """How a run is computed.

    Attributes:
        precision: in which rows are kept; clip factors are of the rounded rows.
        device: `cpu`, or `cuda` or `cuda:N` for methods that can; rows, weights and noise are then there.
        group: processes that train together with the same arguments, each on its part of the private rows.
        keep: (source of the noise, places of the private rows held here) -> where checkpoints go; None keeps none.
    """

    precision: Precision = "float32"
    device: str = "cpu"
    group: Group = ALONE
    keep: Callable[[NoiseSource, slice], Checkpoints] | None = None

    def check(self, method: Method, options: Any) -> None:
        """Refuse a device that cannot train this method with these options.

        Raises:
            UsageError: a method, an option or a group that needs device cpu.
        """
        if self.device == "cpu":
            return
        if not method.on_device:
            able = ", ".join(name for name, other in METHODS.items() if other.on_device)
            raise UsageError(f"method {method.name} trains on device cpu, not {self.device!r}; on a GPU: {able}")
        if self.group.size > 1:
            raise UsageError(
                f"device is {self.device!r} with {self.group.size} processes; allowed: one process, or device cpu"
            )
        for name, allowed in method.device_options.items():
            value = getattr(options, name)
            if value != allowed:
                raise UsageError(f"{name} is {value!r} on device {self.device!r}; allowed: {allowed}")
