"""Accuracy and predictions of folded weights on L2-normalised raw rows, streamed.

Weights are one set, (n_features, n_classes) with bias (n_classes,), or a stack of voters, (n_voters, n_features,
n_classes) with bias (n_voters, n_classes). Each voter has one vote; ties go to the higher summed probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.data.preprocessing import normalise_rows


def class_scores(
    x: NDArray[np.floating], weights: NDArray[np.floating], bias: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Scores of raw rows x (b, n_features), shape (b, n_classes): nats, or votes plus a tie-breaking fraction."""
    unit = normalise_rows(np.asarray(x, dtype=np.float32)).astype(weights.dtype, copy=False)
    if weights.ndim == 2:
        return np.asarray(unit @ weights + bias, dtype=np.float64)
    votes = np.zeros((len(unit), weights.shape[2]))
    rows = np.arange(len(unit))
    for one, offset in zip(weights, bias, strict=True):
        probability = scipy.special.softmax(unit @ one + offset, axis=1)
        votes[rows, probability.argmax(axis=1)] += 1
        votes += probability / (len(weights) + 1)
    return votes


def predictions(
    blocks: Iterable[NDArray[np.floating]], weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """For each block: each row's best class and that class's softmax score, or share of votes, shapes (b,)."""
    for x in blocks:
        scores = class_scores(x, weights, bias)
        best = scores.argmax(axis=1)
        top = scores[np.arange(len(best)), best]
        if weights.ndim == 2:
            yield best, 1.0 / np.exp(scores - top[:, None]).sum(axis=1)
        else:
            yield best, np.floor(top) / len(weights)


def class_accuracy(
    blocks: Iterable[tuple[NDArray[np.floating], NDArray[np.int64]]],
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of correct rows and of all rows per class, shapes (n_classes,)."""
    n_classes = weights.shape[-1]
    correct, total = np.zeros(n_classes, dtype=np.int64), np.zeros(n_classes, dtype=np.int64)
    for x, y in blocks:
        hit = class_scores(x, weights, bias).argmax(axis=1) == y
        correct += np.bincount(y[hit], minlength=n_classes)
        total += np.bincount(y, minlength=n_classes)
    return correct, total


def accuracies(correct: NDArray[np.int64], total: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy over all rows, and the mean of the accuracies of the classes that have rows."""
    present = total > 0
    return {
        "test_accuracy": int(correct.sum()) / int(total.sum()),
        "test_balanced_accuracy": float(np.mean(correct[present] / total[present])),
    }


def accuracy_by_class(
    names: Sequence[str], correct: NDArray[np.int64], total: NDArray[np.int64]
) -> dict[str, float | None]:
    """Accuracy by class name; None for a class without rows."""
    return {name: int(c) / int(t) if t else None for name, c, t in zip(names, correct, total, strict=True)}
