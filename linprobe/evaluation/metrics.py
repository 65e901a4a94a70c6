"""Accuracy and predictions of folded weights on L2-normalised raw rows, streamed.

Weights are one set, (n_features, n_classes) with bias (n_classes,), or a stack of voters, (n_voters, n_features,
n_classes) with bias (n_voters, n_classes). Each voter has one vote; ties go to the higher summed probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.data.preprocessing import normalise_rows

Real = TypeVar("Real", np.float32, np.float64)


def softmax(scores: NDArray[Real]) -> NDArray[Real]:
    """exp(scores) of each row divided by their sum, (b, n_classes)."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


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
        probability = softmax(unit @ one + offset)
        votes[rows, probability.argmax(axis=1)] += 1
        votes += probability / (len(weights) + 1)
    return votes


def probabilities(
    scores: NDArray[np.float64], weights: NDArray[np.floating], temperature: float = 1.0
) -> NDArray[np.float64]:
    """Class probabilities (b, n_classes) from `class_scores`: softmax of scores / temperature, or shares of votes."""
    if weights.ndim == 3:
        return np.asarray(np.floor(scores) / len(weights), dtype=np.float64)
    return softmax(scores / temperature)


def label_probabilities(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of several labels a row from their scores (b, n_labels): each by itself, sigmoid(score)."""
    return np.asarray(np.exp(-np.logaddexp(0, -scores)))


def predictions(
    blocks: Iterable[NDArray[np.floating]],
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    temperature: float = 1.0,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """For each block: each row's best class (b,), and all classes' `probabilities` (b, n_classes)."""
    for x in blocks:
        scores = class_scores(x, weights, bias)
        yield scores.argmax(axis=1), probabilities(scores, weights, temperature)


def right_and_wrong(
    blocks: Iterable[tuple[NDArray[np.floating], NDArray[np.int64]]],
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
) -> NDArray[np.int64]:
    """Numbers of right and wrong rows of each class, shape (n_classes, 2). A zero row, an empty place, is neither."""
    cells = np.zeros((weights.shape[-1], 2), dtype=np.int64)
    for x, y in blocks:
        wrong = class_scores(x, weights, bias).argmax(axis=1) != y  # with zero rows, so that no row moves
        present = np.any(x != 0, axis=1)
        np.add.at(cells, (y[present], wrong[present].astype(np.int64)), 1)
    return cells
