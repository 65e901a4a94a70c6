"""Temperature scaling: one number that divides the class scores, fitted on public labelled rows.

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, section 4.2:

    T = argmin over T of -sum_i log softmax(z_i / T)_{y_i}        z_i: class scores of row i in nats, y_i: its class

The loss is convex in 1/T, so its minimum over an interval is found by a line search. No prediction changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from linprobe.evaluation.metrics import class_scores

LEAST, MOST = 0.01, 100.0  # rows that are all right have no minimum above 0


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
    pairs = [(class_scores(x, weights, bias), y) for x, y in blocks]
    scores, labels = np.concatenate([scores for scores, _ in pairs]), np.concatenate([y for _, y in pairs])
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(scores / math.exp(log_temperature), axis=1)[rows, labels].mean())

    return math.exp(float(minimize_scalar(loss, bounds=(math.log(LEAST), math.log(MOST)), method="bounded").x))
