"""scikit-learn: a pipeline of `Normalizer` and `LogisticRegression`, in the format of skops.

With several labels a row, the second step is a `OneVsRestClassifier` with a `LogisticRegression` for each label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import skops.io
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import LabelBinarizer, Normalizer

from linprobe.exporting.probe import Probe


def sklearn_bytes(probe: Probe) -> bytes:
    """A file for `skops.io.load`; the note is the attribute `note_` of the pipeline. The probe must not vote."""
    weights, bias, names = probe.rows_of_weights, probe.bias, np.array(probe.class_names)
    if probe.several_labels:
        classifier = _one_by_one(weights, bias, names)
    elif len(bias) == 2:  # scikit-learn has one score for two classes: second minus first
        classifier = _regression(weights[1:] - weights[:1], bias[1:] - bias[:1], names)
    else:
        classifier = _regression(weights, bias, names)
    normalizer = Normalizer(norm="l2")
    normalizer.n_features_in_ = weights.shape[1]
    pipeline = Pipeline([("normalise", normalizer), ("probe", classifier)])
    pipeline.note_ = probe.note
    return bytes(skops.io.dumps(pipeline))


def _regression(weights: NDArray[np.float32], bias: NDArray[np.float32], classes: NDArray[Any]) -> LogisticRegression:
    """A fitted classifier: `weights` (n_scores, n_features), one score for two classes."""
    classifier = LogisticRegression()
    classifier.coef_, classifier.intercept_, classifier.classes_ = weights, bias, classes
    classifier.n_features_in_, classifier.n_iter_ = weights.shape[1], np.zeros(1, dtype=np.int32)
    return classifier


def _one_by_one(weights: NDArray[np.float32], bias: NDArray[np.float32], names: NDArray[Any]) -> OneVsRestClassifier:
    """A fitted classifier of several labels: `predict` gives 0 or 1 for each, (rows, n_labels)."""
    classifier, applies = OneVsRestClassifier(LogisticRegression()), np.array([0, 1])
    parts = ((weights[place : place + 1], bias[place : place + 1]) for place in range(len(bias)))
    classifier.estimators_ = [_regression(row, offset, applies) for row, offset in parts]
    classifier.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(np.eye(len(bias), dtype=int))
    classifier.classes_ = classifier.label_binarizer_.classes_ = names
    classifier.n_features_in_ = weights.shape[1]
    return classifier
