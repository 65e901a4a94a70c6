"""Packed weights hold every weight once, and zeros."""

from __future__ import annotations

import numpy as np
import pytest

from linprobe.gradients.backend import CHUNK, FEATURES, PANEL, PackedWeights

RNG = np.random.default_rng(1)
SHAPES = [(1, 1), (5, 16), (6, 77), (13, FEATURES + 1), (40, 3 * FEATURES), (101, 130)]


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_unpack_to_the_weights(shape: tuple[int, int]) -> None:
    weights = RNG.standard_normal(shape, dtype=np.float32)
    for given in (weights, np.asfortranarray(weights)):
        columns = PackedWeights(given).columns
        unpacked = columns.swapaxes(1, 2).reshape(-1, shape[1])
        assert np.array_equal(unpacked[: shape[0]], weights)
        assert not unpacked[shape[0] :].any()
        assert len(unpacked) - shape[0] < CHUNK


@pytest.mark.parametrize("shape", SHAPES)
def test_panels_unpack_to_the_weights(shape: tuple[int, int]) -> None:
    weights = RNG.standard_normal(shape, dtype=np.float32)
    n_classes, n_features = shape
    chunks, first, rows = -(-n_features // CHUNK), 0, []
    for classes in map(len, np.array_split(np.arange(n_classes), -(-n_classes // PANEL))):
        panel = PackedWeights(weights).panels[first : first + classes * chunks * CHUNK]
        rows.append(panel.reshape(chunks, classes, CHUNK).swapaxes(0, 1).reshape(classes, -1))
        first += panel.size
    unpacked = np.concatenate(rows)
    assert np.array_equal(unpacked[:, :n_features], weights)
    assert not unpacked[:, n_features:].any()
