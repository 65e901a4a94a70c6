"""Figures by label: those of scikit-learn, and dashes where there are no two kinds of rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score

from linprobe.data.blocks import ArraySource, ChainedSource, normalise_rows
from linprobe.runs import figures as module
from linprobe.runs.figures import LABEL_METRICS, label_contradictions, label_figures, no_better_than_guessing
from linprobe.runs.manifest import fits

G = np.random.default_rng(0)
X = G.integers(-2, 3, (200, 3)).astype(np.float32) + np.float32(0.5)  # many rows have equal scores
W, BIAS = G.normal(size=(3, 4)).astype(np.float32), np.array([0.3, -0.2, 0.0, 0.1], np.float32)
SCORES = normalise_rows(X) @ W + BIAS
Y = (SCORES + G.normal(size=SCORES.shape) > 0).astype(np.uint8)
NAMES = ("a", "b", "c", "d")


def figures(y: np.ndarray = Y) -> dict:
    rows = ChainedSource(*(ArraySource(X[i : i + 64], y[i : i + 64]) for i in range(0, 200, 64)))
    return label_figures(rows, W, BIAS, NAMES)


def test_figures_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures()
    scores = np.asarray(SCORES, np.float64)
    for place, one in enumerate(found["per_label"].values()):
        mine, given = Y[:, place], scores[:, place] > 0
        assert one["auroc"] == pytest.approx(roc_auc_score(mine, scores[:, place]), abs=1e-12)
        assert one["average_precision"] == pytest.approx(average_precision_score(mine, scores[:, place]), abs=1e-12)
        assert one["recall"] == pytest.approx(recall_score(mine, given))
        assert one["precision"] == pytest.approx(precision_score(mine, given))
        assert one["accuracy"] == pytest.approx(np.mean(mine == given))
        assert one["accuracy_interval"][0] < one["accuracy"] < one["accuracy_interval"][1]
    assert found["macro_auroc"] == pytest.approx(roc_auc_score(Y, scores), abs=1e-12)
    assert found["label_accuracy"] == pytest.approx(np.mean((scores > 0) == Y))
    monkeypatch.setattr(module, "SCORES_A_PASS", 500)  # two labels a pass
    assert figures() == found


def test_figures_of_a_run_agree_with_each_other_and_an_edit_is_found() -> None:
    y = Y.copy()
    y[:, 2], y[:, 3] = 0, 1  # a label that no row has, and one that all have
    for given in (Y, y):
        found = figures(given)
        assert fits(LABEL_METRICS, json.loads(json.dumps(found)))
        assert not list(label_contradictions(found, list(NAMES)))
    assert found["per_label"]["c"]["auroc"] is found["per_label"]["d"]["average_precision"] is None
    assert found["per_label"]["c"]["recall"] is None
    ranked = [found["per_label"][name]["auroc"] for name in "ab"]
    assert found["macro_auroc"] == pytest.approx(np.mean(ranked))
    for key, value in (("macro_auroc", 0.9), ("label_accuracy", 0.99), ("commonest_accuracy", 0.1)):
        assert list(label_contradictions({**found, key: value}, list(NAMES)))
    shares = {"accuracy": 0.5, "recall": 0.1, "precision": 0.1}
    intervals = {f"{share}_interval": [0.1, 0.9] for share in shares}
    for key, value in {"n": 7, "predicted": 7, "auroc": None, **shares, **intervals}.items():
        edited = {**found, "per_label": {**found["per_label"], "a": {**found["per_label"]["a"], key: value}}}
        assert list(label_contradictions(edited, list(NAMES))), key
    assert list(label_contradictions(found, list("abdc")))


def test_a_model_that_answers_the_commonest_is_told() -> None:
    assert no_better_than_guessing(figures(), None) is None
    rare = np.zeros_like(Y)
    rare[:5] = 1
    assert "majority answer" in str(no_better_than_guessing(figures(rare), None))
