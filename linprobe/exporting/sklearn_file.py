"""scikit-learn: a pipeline of `Normalizer` and `LogisticRegression`, in the format of skops."""

from __future__ import annotations

import numpy as np
import skops.io
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Normalizer

from linprobe.exporting.probe import Probe


def sklearn_bytes(probe: Probe) -> bytes:
    """A file for `skops.io.load`; the note is the attribute `note_` of the pipeline. The probe must not vote."""
    weights, bias = probe.rows_of_weights, probe.bias
    if len(bias) == 2:  # scikit-learn has one score for two classes: second minus first
        weights, bias = weights[1:] - weights[:1], bias[1:] - bias[:1]
    normalizer, classifier = Normalizer(norm="l2"), LogisticRegression()
    normalizer.n_features_in_ = classifier.n_features_in_ = weights.shape[1]
    classifier.coef_, classifier.intercept_ = weights, bias
    classifier.classes_ = np.array(probe.class_names)
    classifier.n_iter_ = np.zeros(1, dtype=np.int32)
    pipeline = Pipeline([("normalise", normalizer), ("probe", classifier)])
    pipeline.note_ = probe.note
    return bytes(skops.io.dumps(pipeline))
