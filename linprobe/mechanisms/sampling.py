"""Poisson sampling: every record joins a step on its own, with the same probability.

Abadi et al. 2016 and Mironov et al. 2019 account for this sampling and for no other: batches of a fixed size, or a
shuffled pass, would not have the epsilon that is reported. An empty batch is a batch: it gets noise and counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from linprobe.data.rows import Block, Blocks, Piece, Rows
from linprobe.mechanisms.noise import NoiseSource


class PoissonSampler:
    """Draws who joins.

    Args:
        source: the cryptographic source; each draw uses a stream of its own.
        rate: q, in (0, 1]. At 1 everybody joins and nothing is drawn.
    """

    def __init__(self, source: NoiseSource, rate: float) -> None:
        self.rate = rate
        self._source = source

    def draw(self, n_rows: int, first: int = 0) -> NDArray[np.bool_]:
        """Whether each record joins, independently with probability at most `rate`, below it by less than 2^-63.

        Processes that hold a part of the rows each draw for theirs, from number `first` on: as one would for all.
        """
        if self.rate >= 1:
            return np.ones(n_rows, dtype=bool)
        return self._source.bernoulli(self.rate, n_rows, first)


class SampledRows(Blocks):
    """One Poisson sample of `rows`, of whatever size; a block of it is copied as its piece is called.

    Args:
        rows: all private rows.
        joined: who joined, shape (n_rows,).
        sampling_rate: the probability with which they did.
        observed: whether blocks cover the rows that stayed out too, marked as such, so that what they would have
            contributed can be charged to them.

    Attributes:
        n_rows: number of ALL rows, which is public; the size of the sample is not.
    """

    def __init__(self, rows: Rows, joined: NDArray[np.bool_], sampling_rate: float, *, observed: bool) -> None:
        self.n_rows, self.n_features = rows.n_rows, rows.n_features
        self.sampling_rate = sampling_rate
        self.observed = observed
        self._rows, self._joined = rows, joined

    @property
    def n_held(self) -> int:
        """Number of rows held by this process."""
        return self._rows.n_held

    def _marked(self, piece: Piece) -> Block:
        block = piece()
        return replace(block, joined=self._joined[block.start : block.start + len(block.y)])

    def pieces(self) -> Iterator[Piece]:
        """Blocks of the sampled rows; of all rows, with `joined` set, where they are observed."""
        if not self.observed:
            return self._rows.selected_pieces(self._joined)
        return (partial(self._marked, piece) for piece in self._rows.pieces())
