"""What is written differently for NumPy arrays on the host and torch tensors on a device.

Everything else of a step is operators and methods that both have, so that one code serves both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

Array = Any  # an NDArray, or a torch.Tensor


def namespace(x: Array) -> Any:
    """The module with the functions for arrays like `x`."""
    return np if isinstance(x, np.ndarray) else array_namespace(x)


def single(x: Array) -> Array:
    """`x` in float32, rows contiguous; `x` itself where it is so already."""
    return np.ascontiguousarray(x, dtype=np.float32) if isinstance(x, np.ndarray) else x.float().contiguous()


def double(x: Array) -> Array:
    """`x` in float64; `x` itself where it is so already."""
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x.double()


def numbers_like(y: Array) -> Array:
    """0, 1, ... as many as `y` has rows, where `y` is."""
    return np.arange(len(y)) if isinstance(y, np.ndarray) else namespace(y).arange(len(y), device=y.device)


def norm(x: Array) -> Any:
    """L2 norm of all entries, of no dimension; nobody waits for a device."""
    return np.linalg.norm(x) if isinstance(x, np.ndarray) else namespace(x).linalg.vector_norm(x)


def on_host(x: Array) -> NDArray[Any]:
    """`x` as a NumPy array; waits for a device."""
    return np.asarray(x if isinstance(x, np.ndarray | np.generic | float | int) else x.cpu())
