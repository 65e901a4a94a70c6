"""Weights in the orders in which the C kernel reads them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import aligned_empty

PANEL = 6  # classes in a panel of packed weights, as in clipped_sum.c
CHUNK = 16  # features or classes in a chunk of packed weights, as in clipped_sum.c; floats in the widest vector
FEATURES = 64  # packed together, so that their weights stay in cache


class PackedWeights:
    """Weights (n_classes, n_features), float32, packed once for all threads."""

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self.weights = np.asarray(weights, np.float32)

    @cached_property
    def panels(self) -> NDArray[np.float32]:
        """By panel, chunk of features, class and feature, padded with zeros: the order of groups."""
        weights, (n_classes, n_features) = self.weights, self.weights.shape
        if n_features % CHUNK:
            weights = np.pad(weights, ((0, 0), (0, -n_features % CHUNK)))
        by_chunk = weights.reshape(n_classes, -1, CHUNK).swapaxes(0, 1)
        packed: NDArray[np.float32] = aligned_empty((n_classes, weights.shape[1]), np.float32)
        n_panels, first = -(-n_classes // PANEL), 0
        for panel in range(n_panels):
            stop = first + n_classes // n_panels + (panel < n_classes % n_panels)
            packed[first:stop].reshape(-1, stop - first, CHUNK)[:] = by_chunk[:, first:stop]
            first = stop
        return packed.reshape(-1)

    @cached_property
    def columns(self) -> NDArray[np.float32]:
        """By chunk of classes, feature and class, padded with zeros: the order of runs."""
        n_classes, n_features = self.weights.shape
        padded = whole_chunks(n_classes)
        columns: NDArray[np.float32] = aligned_empty((padded // CHUNK, n_features, CHUNK), np.float32)
        some = np.zeros((FEATURES, padded), np.float32)
        chunk = np.dtype((np.void, CHUNK * some.itemsize))  # to move a chunk is faster than to move its numbers
        for first in range(0, n_features, FEATURES):
            here = slice(first, min(first + FEATURES, n_features))
            taken = some[: here.stop - first]
            taken[:, :n_classes] = self.weights[:, here].T
            columns.view(chunk)[:, here, 0] = taken.view(chunk).T
        return columns


def whole_chunks(n_classes: int) -> int:
    """`n_classes` rounded up to whole chunks."""
    return -(-n_classes // CHUNK) * CHUNK
