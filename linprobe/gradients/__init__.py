"""Clipped sums of per-example gradients, on the host or a GPU: loss, geometry, rounding, back ends."""

from __future__ import annotations

from linprobe.errors import require
from linprobe.gradients.backend import Backend
from linprobe.gradients.host import HOST


def choose_backend(device: str) -> Backend:
    """The backend of a run: the host for `cpu`, else a GPU.

    `linprobe.gradients.host.products` chooses between the kernel and BLAS on the host.

    Raises:
        ParameterError: an unknown device, or a GPU that torch does not find. UsageError: torch is not installed.
    """
    if device == "cpu":
        return HOST
    require("torch", f"device {device}")
    from linprobe.gradients.gpu import GpuBackend, check_device  # imports torch

    return GpuBackend(check_device(device))
