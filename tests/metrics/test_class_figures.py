"""Figures of a model by class: against values computed by hand, against scikit-learn and SciPy, and in corner cases."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from linprobe.data.blocks import ArraySource, ChainedSource
from linprobe.runs import figures as module
from linprobe.runs.figures import calibration, figures_by_task, no_better_than_guessing, wilson

NAMES = ["a", "b", "c"]


def figures(shares: Any, y: Any, names: list[str] | None = None, blocks: int = 1, **options: Any) -> dict[str, Any]:
    """Figures of a model whose class probabilities on row i are `shares[i]`, read in blocks."""
    shares, y = np.asarray(shares, dtype=float), np.asarray(y)
    n, classes = shares.shape
    rows = np.eye(n, dtype=np.float32)  # row i picks row i of the weights
    parts = np.array_split(np.arange(n), blocks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return figures_by_task(
            "multiclass",
            ChainedSource(*(ArraySource(rows[part], y[part]) for part in parts)),
            np.log(shares),
            np.zeros(classes),
            names or NAMES[:classes],
            **options,
        )


SHARES = [[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1]]
LABELS = [0, 0, 0, 1, 0]  # predicted 0 1 0 1 1; class c has no rows and is never predicted


def test_figures_are_those_computed_by_hand() -> None:
    found = figures(SHARES, LABELS)
    assert (found["test_rows"], found["test_accuracy"]) == (5, 3 / 5)
    assert found["balanced_accuracy"] == (2 / 4 + 1 / 1) / 2
    assert found["confusion_matrix"] == [[2, 2, 0], [0, 1, 0], [0, 0, 0]]
    first, second, third = found["per_class"].values()
    assert (first["n"], first["recall"], first["predicted"], first["precision"]) == (4, 2 / 4, 2, 1.0)
    assert (second["n"], second["recall"], second["predicted"], second["precision"]) == (1, 1.0, 3, 1 / 3)
    # class a against the rest: 0.7, 0.4, 0.6 and 0.3 are above 0.1; class b: 0.8 is above all others
    assert (first["auroc"], second["auroc"], found["macro_auroc"]) == (1.0, 1.0, 1.0)
    assert third == {
        "n": 0,
        "recall": None,
        "recall_interval": None,
        "predicted": 0,
        "precision": None,
        "precision_interval": None,
        "auroc": None,
    }
    # confidences 0.7, 0.5, 0.6, 0.8, 0.6 in bins of their own but for 0.6, of which one of two is right
    assert found["calibration_error"] == pytest.approx((0.3 + 0.5 + abs(1 - 1.2) + 0.2) / 5)
    assert (found["commonest_class"], found["commonest_share"]) == ("a", 4 / 5)


def test_a_tie_in_probability_counts_one_half() -> None:
    found = figures([[0.4, 0.6], [0.4, 0.6], [0.7, 0.3]], [0, 1, 0])
    # class a: its rows have 0.4 and 0.7, the other row 0.4: one tie, one win
    assert found["per_class"]["a"]["auroc"] == found["per_class"]["b"]["auroc"] == 0.75


def test_one_row_has_no_auroc() -> None:
    found = figures([[0.9, 0.1]], [0])
    assert (found["test_accuracy"], found["balanced_accuracy"], found["macro_auroc"]) == (1.0, 1.0, None)
    assert found["per_class"]["a"]["recall_interval"] == [pytest.approx(1 / (1 + 1.959964**2)), 1.0]
    assert found["confusion_matrix"] == [[1, 0], [0, 0]]


def test_figures_agree_with_scikit_learn_and_do_not_depend_on_blocks_or_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    shares, y = rng.dirichlet([0.5] * 5, 200), rng.choice(5, 200, p=[0.6, 0.2, 0.1, 0.06, 0.04])
    names = list("abcde")
    whole = figures(shares, y, names)
    assert whole["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, shares.argmax(axis=1)))
    assert whole["macro_auroc"] == pytest.approx(roc_auc_score(y, shares, multi_class="ovr"), abs=1e-12)
    assert figures(shares, y, names, blocks=7) == whole
    monkeypatch.setattr(module, "SCORES_A_PASS", 200 * 2)
    assert figures(shares, y, names) == whole  # three passes, of two, two and one class
    left_out = figures(shares, y, names, most_passes=2)
    assert left_out["macro_auroc"] is None
    assert {one["auroc"] for one in left_out["per_class"].values()} == {None}
    assert left_out["per_class"]["a"]["recall"] == whole["per_class"]["a"]["recall"]


def test_a_large_matrix_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLASSES_IN_MATRIX", 2)
    assert figures(SHARES, LABELS)["confusion_matrix"] is None


def test_voters_are_judged_by_their_shares_of_votes() -> None:
    one = np.log(np.array([[0.9, 0.1], [0.2, 0.8]]))
    other = np.log(np.array([[0.6, 0.4], [0.9, 0.1]]))
    rows, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    stack = np.stack([one, other])
    found = figures_by_task("multiclass", ArraySource(rows, y), stack, np.zeros((2, 2)), ["a", "b"])
    assert found["confusion_matrix"] == [[1, 0], [1, 0]]  # one vote each for row 1; a has the larger sum, 1.1
    assert found["calibration"] == [
        {"n": 1, "confidence": 0.5, "accuracy": 0.0},
        {"n": 1, "confidence": 1.0, "accuracy": 1.0},
    ]


def test_temperature_changes_confidence_and_no_prediction() -> None:
    sharp, soft = figures(SHARES, LABELS), figures(SHARES, LABELS, temperature=10.0)
    assert soft["confusion_matrix"] == sharp["confusion_matrix"]
    assert all(one["confidence"] < 0.5 for one in soft["calibration"])


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (0, 9), (3, 9), (9, 9), (499, 1000)])
def test_intervals_are_wilsons(hits: int, n: int) -> None:
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bins_are_open_below_and_closed_above() -> None:
    error, bins = calibration(np.array([1.0, 14 / 15, 0.95]), np.array([True, False, True]))
    assert [one["n"] for one in bins] == [1, 2]
    assert error == pytest.approx((14 / 15 + 0.05) / 3)


def a_run(n_private: int = 10_000, **extraction: str) -> Any:
    facts = {"epsilon_target": 3.0, "delta": 1e-5, "unit": "owner", "n_classes": 6}
    return SimpleNamespace(n_private=n_private, extraction=extraction, **facts)


def test_a_model_that_is_no_better_than_the_commonest_class_is_told() -> None:
    found = figures(SHARES, LABELS)
    for run, why in (
        (a_run(), ""),
        (
            a_run(10, columns="2 columns"),
            "; in a table, one large column hides the others: subtract and divide by public constants",
        ),
        (
            a_run(1),
            "; 1 person is few for 6 classes at epsilon 3: linprobe plan --eps 3 --n 1 --classes 6 says what to expect",
        ),
        (
            a_run(32),
            "; 32 people are few for 6 classes at epsilon 3: linprobe plan --eps 3 --n 32 --classes 6 says what to "
            "expect",
        ),
    ):
        assert no_better_than_guessing(found, run) == (
            "test accuracy 0.6000 is not above 0.8000, the accuracy of always predicting the majority class 'a'; "
            f"balanced accuracy is 0.7500, and 0.5000 for the majority class{why}"
        )
    tied = figures([[0.9, 0.1], [0.9, 0.1]], [0, 1])
    assert tied["commonest_class"] == "a"  # of classes with equal numbers of rows, the first
    assert no_better_than_guessing(tied, a_run()) is not None
    assert no_better_than_guessing(figures([[0.9, 0.1], [0.2, 0.8]], [0, 1]), a_run()) is None


@pytest.mark.parametrize(("found", "warned"), [(0.8, False), (0.1, True)])
def test_a_model_for_balanced_use_is_not_said_to_guess(found: float, warned: bool) -> None:
    rare, common = 40, 960
    shares = np.zeros((rare + common, 2))
    shares[:, 1] = np.concatenate([np.arange(rare) < found * rare, np.arange(common) < 0.1 * common])
    shares[:, 0] = 1 - shares[:, 1]
    made = figures(0.98 * shares + 0.01, [1] * rare + [0] * common)
    assert made["test_accuracy"] < made["commonest_share"]
    assert (no_better_than_guessing(made, a_run()) is not None) == warned


def test_a_note_names_the_classes_that_noise_hides() -> None:
    recalls = {"a": 0.5, "b": None, "c": 1.0}
    said = "balanced accuracy is the mean of 2 of 3 classes: noise hides the test rows of b"
    assert module.hidden_classes(recalls, 0.1) == said
    assert module.hidden_classes(recalls, None) is None  # a class without public test rows
    assert module.hidden_classes({"a": 0.5}, 0.1) is None
    assert module.hidden_classes(None, 0.1) is None
