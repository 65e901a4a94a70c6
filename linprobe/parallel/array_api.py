"""Operations that NumPy arrays and torch tensors spell differently.

Everything else in a step uses operators and methods that both have, so that the same code runs on host and device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from linprobe.parallel.threads import in_slices

Array = Any  # an NDArray, or a torch.Tensor
Reals = NDArray[np.float64]
Singles = NDArray[np.float32]
Floats = NDArray[np.floating]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)
COLUMNS = 64  # of a transposed array, copied at a time
PART = 1 << 15  # numbers in a slice of rows; a few of these fit into the cache of a core


def namespace(x: Array) -> Any:
    """The array-API module for arrays like `x`."""
    return np if isinstance(x, np.ndarray) else array_namespace(x)


def single(x: Array) -> Array:
    """`x` as contiguous float32; `x` itself if it is that already."""
    return np.ascontiguousarray(x, dtype=np.float32) if isinstance(x, np.ndarray) else x.float().contiguous()


def contiguous(x: Array) -> Array:
    """`x` with contiguous rows; `x` itself if it is that already."""
    if not isinstance(x, np.ndarray):
        return x.contiguous()
    if x.ndim != 2 or x.flags.c_contiguous:
        return np.ascontiguousarray(x)
    copied = np.empty(x.shape, x.dtype)
    for start in range(0, x.shape[1], COLUMNS):  # of a transposed array, only a part at a time stays in cache
        columns = slice(start, start + COLUMNS)
        copied[:, columns] = x[:, columns]
    return copied


def transposed(x: Array) -> Array:
    """x^T (m, n), float32, for x (n, m); on the host, columns are contiguous."""
    return x.astype(np.float32).T if isinstance(x, np.ndarray) else single(x.T)


def double(x: Array) -> Array:
    """`x` as float64; `x` itself if it is that already."""
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x.double()


def segment_sums(values: Array, segment: Array, counts: Array) -> Array:
    """Sums of `values` (n,) over segments `segment` (n,) of `counts` (n_segments,), in a fixed order; (n_segments,)."""
    if isinstance(values, np.ndarray):
        return np.bincount(segment, weights=values, minlength=len(counts))
    return namespace(values).segment_reduce(values, "sum", lengths=counts, initial=0.0)


def by_rows(x: Array, work: Callable[[slice], None]) -> None:
    """Call `work` on slices that cover the rows of `x`: one per thread on the host, one slice on a device."""
    if isinstance(x, np.ndarray):
        in_slices(len(x), max(1, PART * len(x) // max(1, x.size)), work)
    else:
        work(slice(None))


def inner(x: Array, y: Array) -> Any:
    """Sum of the products of all entries of two contiguous arrays, a scalar or 0-d tensor."""
    return np.vdot(x, y) if isinstance(x, np.ndarray) else (x * y).sum()


def row_products(x: Array, y: Array) -> Array:
    """Inner products of the rows of x and y (b, n), shape (b,), computed in float64."""
    if isinstance(x, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", x, y, dtype=np.float64))
    return (x.double() * y.double()).sum(-1)


def beside(x: Array, array: NDArray[Any]) -> Array:
    """`array` where `x` is: itself on the host, or a copy on the device."""
    return array if isinstance(x, np.ndarray) else namespace(x).asarray(array, device=x.device)


def norm(x: Array) -> Any:
    """L2 norm of all entries, a scalar or 0-d tensor; does not synchronise with the device."""
    return np.linalg.norm(x) if isinstance(x, np.ndarray) else namespace(x).linalg.vector_norm(x)


def on_host(x: Array) -> NDArray[Any]:
    """`x` as a NumPy array; synchronises with the device."""
    return np.asarray(x if isinstance(x, np.ndarray | np.generic | float | int) else x.cpu())


def distinct(numbers: NDArray[Number]) -> NDArray[Number]:
    """The numbers, sorted, without repetitions: `np.unique`, which takes up to 80 times as long for many integers."""
    ordered = np.sort(numbers, axis=None)
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def among(values: NDArray[Number], known: NDArray[Number]) -> Mask:
    """Mask of the `values`, of any shape, that are in `known`, which is sorted."""
    if not known.size:
        return np.zeros(values.shape, dtype=bool)
    found: Mask = known[np.minimum(np.searchsorted(known, values), known.size - 1)] == values
    return found
