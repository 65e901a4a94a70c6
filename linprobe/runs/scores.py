"""Scores and predictions of folded weights on L2-normalised raw rows, streamed; correct predictions; temperature.

Weights are one set, (n_features, n_classes) with bias (n_classes,), or a stack of voters, (n_voters, n_features,
n_classes) with bias (n_voters, n_classes). Each voter has one vote; ties go to the higher summed probability.

Temperature scaling: Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, section 4.2.

    T = argmin over T of -sum_i log softmax(z_i / T)_{y_i}        z_i: class scores of row i in nats, y_i: its class

The loss is convex in 1/T, so its minimum over an interval is found by a line search. No prediction changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import RawBlocks, Source, normalise_rows, whole_blocks
from linprobe.data.owners import Bounds
from linprobe.mechanisms.correct_predictions import SHARE_STEP, TEST_ACCURACY, held_out_counts
from linprobe.mechanisms.gaussian import ClippedSum
from linprobe.mechanisms.score_histogram import BINS, TEST_AUROC, bins_of, n_histograms, score_sums

LEAST, MOST = 0.01, 100.0  # temperatures; rows that are all predicted correctly have no minimum above 0

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


def sums_of_test_rows(
    blocks: RawBlocks, weights: NDArray[np.float32], bias: NDArray[np.float32], bounds: Bounds | None = None
) -> dict[str, ClippedSum]:
    """What is released of private test rows for their accuracy and AUROC, by purpose, without zero rows (empty places).

    With `bounds`, sums over people of the shares of their rows, multiples of `SHARE_STEP`, which add without rounding.
    """
    n_classes = weights.shape[-1]
    counts, histograms = np.zeros((n_classes, 2)), np.zeros((n_histograms(n_classes), 2, BINS))
    for scores, y in _scored(blocks, weights, bias, bounds):
        for cells, own in (
            (counts, _right_and_wrong(scores, y)),
            (histograms, _score_cells(probabilities(scores, weights), y)),
        ):
            cells += own if bounds is None else _shares(own, len(y))
    return {TEST_ACCURACY: held_out_counts(counts), TEST_AUROC: score_sums(histograms)}


def _right_and_wrong(scores: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers of correct and wrong predictions by class, shape (n_classes, 2)."""
    own, wrong = np.zeros((scores.shape[1], 2)), scores.argmax(axis=1) != y
    np.add.at(own, (y, wrong.astype(np.int64)), 1)
    return own


def _score_cells(likely: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers of rows of a class, and of other rows, by bin of their probability of the class, shape (H, 2, BINS).

    H and BINS are those of `linprobe.mechanisms.score_histogram`.
    """
    n_classes = likely.shape[1]
    histograms = np.arange(n_histograms(n_classes))
    own, other = np.zeros((len(histograms), 2, BINS)), y[:, None] != histograms + n_classes - len(histograms)
    np.add.at(own, (histograms, other.astype(np.int64), bins_of(likely)), 1)
    return own


def _scored(
    blocks: RawBlocks, weights: NDArray[np.float32], bias: NDArray[np.float32], bounds: Bounds | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Class scores and classes of the rows that are not zero, by block, or by person with `bounds`."""
    for x, y in blocks if bounds is None else _people(blocks, bounds):
        present = np.any(x != 0, axis=1)
        yield class_scores(x, weights, bias)[present], y[present]  # scored with zero rows, so that no row moves


def _shares(own: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
    return np.floor(own / n_rows / SHARE_STEP) * SHARE_STEP


def _people(blocks: RawBlocks, bounds: Bounds) -> RawBlocks:
    """The rows of each person who has rows, alone: rows of others would move the rows, and rounding with them."""
    for x, y in whole_blocks(blocks, np.diff(bounds).tolist()):
        present = np.any(x != 0, axis=1)
        if present.any():
            yield x[present], y[present]


def count_private(
    weights: NDArray[np.float32], bias: NDArray[np.float32], rows: Source, bounds: Bounds | None
) -> tuple[float, float]:
    """Number of correct predictions, and of rows that are not zero. A zero row, an empty place, counts in
    neither.

    With `bounds`, the sum over people of the share of their rows that the model labels right, and the number of people
    who have rows.
    """
    if bounds is not None:
        return _count_people(weights, bias, rows, bounds)
    right = total = 0
    for x, y in rows.blocks():
        present = np.any(x != 0, axis=1)
        # zero rows stay in the product: the rounding of a row's scores may depend on the number of rows
        hit = class_scores(x, weights, bias).argmax(axis=1) == y
        right, total = right + int((hit & present).sum()), total + int(present.sum())
    return right, total


def _count_people(
    weights: NDArray[np.float32], bias: NDArray[np.float32], rows: Source, bounds: Bounds
) -> tuple[float, float]:
    """`count_private` of people."""
    right, total = 0.0, 0
    for x, y in _people(rows.blocks(), bounds):
        hit = class_scores(x, weights, bias).argmax(axis=1) == y
        right, total = right + math.floor(hit.mean() / SHARE_STEP) * SHARE_STEP, total + 1
    return right, total


def fit_temperature(
    blocks: Iterable[tuple[NDArray[np.floating], NDArray[np.int64]]],
    weights: NDArray[np.floating],
    bias: NDArray[np.floating],
) -> float:
    """T between `LEAST` and `MOST`. The rows are public: T depends on them without noise.

    Args:
        blocks: raw rows (b, n_features) and class indices (b,), at least one row in all.
        weights (n_features, n_classes), bias (n_classes,): a model that does not vote.
    """
    from scipy.optimize import minimize_scalar  # scipy would slow down every command
    from scipy.special import log_softmax

    pairs = [(class_scores(x, weights, bias), y) for x, y in blocks]
    scores, labels = np.concatenate([scores for scores, _ in pairs]), np.concatenate([y for _, y in pairs])
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(scores / math.exp(log_temperature), axis=1)[rows, labels].mean())

    return math.exp(float(minimize_scalar(loss, bounds=(math.log(LEAST), math.log(MOST)), method="bounded").x))
