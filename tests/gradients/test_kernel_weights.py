"""Packed weights hold every weight once, and zeros."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from linprobe.gradients import backend
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


@pytest.mark.parametrize("order", ["panels", "columns"])
def test_threads_that_pack_at_once_get_one_array(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gets its address alone, so no other array may take its place."""
    together, empty = Barrier(2, timeout=30), backend.aligned_empty

    def waiting(*given: Any) -> Any:
        together.wait()
        return empty(*given)

    monkeypatch.setattr(backend, "aligned_empty", waiting)
    packed = PackedWeights(np.ones((3, 20), np.float32))
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: getattr(packed, order), range(2))
    assert one is other
    assert one is getattr(packed, order)
