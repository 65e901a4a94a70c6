"""The people of a block as the C kernel reads them: `struct people` in `linprobe/native/clipped_sum.c`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block, paired
from linprobe.gradients.rounding import SUM_ROWS, Sample
from linprobe.native import KernelPeople


@dataclass(frozen=True)
class People:
    """People and their clip factors, min(1, bound / max(norm, spread / most)).

    Attributes:
        bounds: rows of person u are bounds[u] to bounds[u + 1], shape (n_units + 1,).
        y, norms, weights: one entry for each row, shape (b,); weights may be None.
        inner: inner products of the pairs of rows of each person with at most `PAIRED_ROWS` rows.
        factors, lengths: outputs of the kernel, shape (n_units,); 0 for people whom it leaves out.
    """

    bounds: NDArray[np.int64]
    y: NDArray[np.int64]
    norms: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    inner: NDArray[np.float64]
    factors: NDArray[np.float64]
    lengths: NDArray[np.float64]

    @classmethod
    def of(cls, block: Block, n_classes: int, cells: NDArray[np.int64] | None = None) -> People:
        """The people of a block, after checks that the kernel does not make, of `cells` too.

        Raises:
            ValueError: shapes that do not fit. IndexError: a class index out of range.
        """
        pairs, bounds = paired(block), np.ascontiguousarray(block.bounds, np.int64)
        y, norms = np.ascontiguousarray(block.y, np.int64), np.ascontiguousarray(block.norms, np.float64)
        weights = None if block.weights is None else np.ascontiguousarray(block.weights, np.float64)
        n_rows, n_units = (len(block.stored),), len(bounds) - 1
        fit = all(each is None or each.shape == n_rows for each in (y, norms, weights))
        fit = fit and bounds[0] == 0 and bounds[-1] == n_rows[0] and bool((bounds[1:] >= bounds[:-1]).all())
        fit = fit and len(pairs.inner) == int(pairs.pair_counts.sum()) and len(pairs.pair_counts) == n_units
        if cells is not None and len(cells):
            fit = fit and cells[0] > 0 and cells[-1] == n_units and bool((cells[1:] > cells[:-1]).all())
        if not fit or (block.sampled is not None and block.sampled.shape != (n_units,)):
            raise ValueError(
                f"{n_units} people with bounds from {bounds[0]} to {bounds[-1]} do not fit {n_rows[0]} rows"
            )
        if n_rows[0] and not 0 <= y.min() <= y.max() < n_classes:
            raise IndexError(f"classes are from {y.min()} to {y.max()}; allowed: 0 to {n_classes - 1}")
        return cls(bounds, y, norms, weights, pairs.inner, np.zeros(n_units), np.zeros(n_units))

    def for_kernel(
        self, bound: float, most: float, joined: NDArray[np.bool_] | None = None, ends: NDArray[np.int64] | None = None
    ) -> KernelPeople:
        """The kernel's argument for the people in the mask `joined`, or all, in cells that end at `ends`.

        It holds addresses, so all arrays must outlive it.
        """
        return KernelPeople(
            self.bounds.ctypes.data,
            None if ends is None or not len(ends) else ends.ctypes.data,
            self.y.ctypes.data,
            self.norms.ctypes.data,
            None if self.weights is None else self.weights.ctypes.data,
            self.inner.ctypes.data,
            None if joined is None else joined.ctypes.data,
            self.factors.ctypes.data,
            self.lengths.ctypes.data,
            bound,
            most,
            len(self.factors),
        )


def rows_of(sampled: NDArray[np.bool_], bounds: NDArray[np.int64], cells: NDArray[np.int64] | None) -> Sample:
    """The rows of sampled people, in runs of `SUM_ROWS` rows that cross no cell."""
    sizes = np.diff(bounds)
    joined = np.concatenate([[0], np.cumsum(sizes * sampled)])
    ends = [joined[-1]] if cells is None else joined[cells].tolist()
    runs = [range(first + SUM_ROWS, stop, SUM_ROWS) for first, stop in pairwise([0, *ends])]
    found = sorted({*chain(*runs), *ends} - {0})
    return Sample(np.flatnonzero(np.repeat(sampled, sizes)), np.array(found, np.int64))
