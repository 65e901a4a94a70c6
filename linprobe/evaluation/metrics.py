"""Accuracy and predictions of folded weights on L2-normalised raw rows, streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from linprobe.rows import normalise_rows


def scores_of(x: NDArray[np.floating], weights: NDArray[np.float32], bias: NDArray[np.float32]) -> NDArray[np.float32]:
    """Class scores (nats) of raw rows x (b, n_features), shape (b, n_classes)."""
    return np.asarray(normalise_rows(np.asarray(x, dtype=np.float32)) @ weights + bias, dtype=np.float32)


def predictions(
    blocks: Iterable[NDArray[np.floating]], weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """For each block: the class index and softmax score of each row's best class, shapes (b,)."""
    for x in blocks:
        scores = scores_of(x, weights, bias).astype(np.float64)
        best = scores.argmax(axis=1)
        top = scores[np.arange(len(best)), best]
        yield best, 1.0 / np.exp(scores - top[:, None]).sum(axis=1)


def class_accuracy(
    blocks: Iterable[tuple[NDArray[np.floating], NDArray[np.int64]]],
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Correct rows and all rows per class, shapes (n_classes,)."""
    n_classes = weights.shape[1]
    correct, total = np.zeros(n_classes, dtype=np.int64), np.zeros(n_classes, dtype=np.int64)
    for x, y in blocks:
        hit = scores_of(x, weights, bias).argmax(axis=1) == y
        correct += np.bincount(y[hit], minlength=n_classes)
        total += np.bincount(y, minlength=n_classes)
    return correct, total
