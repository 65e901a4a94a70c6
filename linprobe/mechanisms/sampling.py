"""Poisson sampling: each step selects each record independently, with the same probability.

The accounting of Abadi et al. 2016 and Mironov et al. 2019 holds for this sampling only, not for batches of a fixed
size or shuffled passes. An empty batch is also noised, released and accounted for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block, Blocks, LazyBlock, Rows
from linprobe.mechanisms.noise import NoiseSource


class PoissonSampler:
    """Draws Poisson samples.

    Args:
        source: cryptographic source; each draw uses its own stream.
        rate: sampling probability q, in (0, 1]. At 1 the sample is all rows, and nothing is drawn.
    """

    def __init__(self, source: NoiseSource, rate: float) -> None:
        self.rate = rate
        self._source = source

    def draw(self, n_rows: int, first: int = 0) -> NDArray[np.bool_]:
        """Mask of a sample of `n_rows` rows, shape (n_rows,).

        Rows are selected independently; the probability is at most `rate` and more than `rate` - 2^-63. A process draws
        for its shard, which begins at row `first`; the masks of all processes are one draw for all rows.
        """
        if self.rate >= 1:
            return np.ones(n_rows, dtype=bool)
        return self._source.bernoulli(self.rate, n_rows, first)


class SampledRows(Blocks):
    """One Poisson sample of `rows`.

    Args:
        rows: all private rows.
        sampled: mask of the sample, shape (n_local,).
        sampling_rate: probability with which each row was selected.
        observed: whether blocks contain all rows, with the mask of the sample, so that rows outside it are charged too.

    Attributes:
        n_rows: number of ALL rows, which is public; the size of the sample is not.
    """

    def __init__(self, rows: Rows, sampled: NDArray[np.bool_], sampling_rate: float, *, observed: bool) -> None:
        self.n_rows, self.n_features = rows.n_rows, rows.n_features
        self.sampling_rate, self.units, self.unit_rows = sampling_rate, rows.units, rows.unit_rows
        self.observed, self.in_memory = observed, rows.in_memory
        self._rows, self._sampled = rows, sampled

    @property
    def n_local(self) -> int:
        """Number of rows in the shard of this process."""
        return self._rows.n_local

    def _masked(self, load: LazyBlock) -> Block:
        block = load()
        return replace(block, sampled=self._sampled[block.start : block.start + block.n_units])

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """The sampled rows, or all rows with the mask `sampled` if they are observed."""
        if not self.observed:
            return self._rows.sampled_blocks(self._sampled)
        return (partial(self._masked, load) for load in self._rows.lazy_blocks())
