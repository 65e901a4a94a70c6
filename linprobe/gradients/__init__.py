"""Clipped sums of per-example gradients, on the host or a GPU: losses, geometry, rounding, products."""

from __future__ import annotations

from linprobe.gradients.backend import Backend
from linprobe.gradients.host import HOST


def choose_backend(device: str) -> Backend:
    """The backend of a run, chosen once: the host for `cpu`, else a GPU.

    On the host the kernel computes where it was built, and takes one pass where there are few classes; see
    `linprobe.gradients.host.products`.

    Raises:
        ParameterError: a device that is not there.
    """
    if device == "cpu":
        return HOST
    from linprobe.gradients.gpu import GpuBackend, check_device  # imports torch

    return GpuBackend(check_device(device))
