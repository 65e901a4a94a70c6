"""Estimators on several labels a row, and with people and weights of rows."""

from __future__ import annotations

import numpy as np
import pytest

from linprobe import DPLS, DPSGD, AdaMix, NoisyGD
from linprobe.data.blocks import ArraySource
from linprobe.data.row_weights import RowWeights, sample_weights
from linprobe.errors import DataError, ParameterError, UsageError
from linprobe.training.execute import Runtime
from tests.conftest import executed

G = np.random.default_rng(2)
N, D, C = 240, 6, 3
Y = (G.random((N, C)) < [0.5, 0.4, 0.2]).astype(int)
X = Y @ (2 * G.normal(size=(C, D))) + G.normal(size=(N, D))
SECRETLESS = {"epsilon": 8.0, "delta": 1e-4, "n_steps": 10, "insecure_seed": 0}


@pytest.mark.parametrize("kind", [NoisyGD, AdaMix, DPSGD])
def test_a_matrix_of_labels_is_fitted_and_predicted(kind) -> None:
    sampled = {"sampling_rate": 1.0} if kind is DPSGD else {}  # whose accountant is fast
    public = {"X_public": X[:30], "y_public": Y[:30]} if kind is AdaMix else {}
    probe = kind(**SECRETLESS, **sampled, classes=["a", "b", "c"]).fit(X[30:], Y[30:], **public)
    predicted, shares = probe.predict(X), probe.predict_proba(X)
    assert probe.multilabel_
    assert (predicted == Y).mean() > 0.75
    assert predicted.shape == shares.shape == probe.decision_function(X).shape == (N, C)
    np.testing.assert_array_equal(predicted, shares > 0.5)
    np.testing.assert_allclose(shares, 1 / (1 + np.exp(-probe.decision_function(X))))
    assert list(probe.classes_) == ["a", "b", "c"]
    assert 0 < probe.score(X, Y) < 1  # rows with all labels right


def test_two_labels_are_not_two_classes() -> None:
    probe = NoisyGD(**SECRETLESS).fit(X, Y[:, :2])
    assert probe.predict(X).shape == probe.decision_function(X).shape == (N, 2)
    assert list(probe.classes_) == [0, 1]


def test_what_has_no_meaning_with_several_labels_is_refused() -> None:
    for probe, y, words in (
        (DPLS(epsilon=1.0, classes=range(C)), Y, "noisy-gd, adamix, dp-sgd"),
        (NoisyGD(**SECRETLESS, output="vote"), Y, "output"),
        (NoisyGD(**SECRETLESS, class_weight={0: 0.5}), Y, "class_weight"),
        (NoisyGD(**SECRETLESS, init="text"), Y, "init 'text'"),
        (DPSGD(**SECRETLESS, loss="softmax"), Y, "binary cross-entropy"),
    ):
        with pytest.raises(UsageError, match=words):
            probe.fit(X, y)
    with pytest.raises(ParameterError, match="2 entries for 3 labels"):
        NoisyGD(**SECRETLESS, classes=[0, 1]).fit(X, Y)
    with pytest.raises(DataError, match="other than 0 and 1"):
        NoisyGD(**SECRETLESS).fit(X, 2 * Y)
    with pytest.raises(DataError, match=r"y_public has shape \(9,\)"):
        AdaMix(**SECRETLESS).fit(X, Y, X_public=X[:9], y_public=Y[:9, 0])


def test_text_weights_do_not_start_a_run_on_labels() -> None:
    plain = NoisyGD(**SECRETLESS).fit(X, Y)
    with_text = NoisyGD(**SECRETLESS).fit(X, Y, text_weights=np.ones((D, C)))
    np.testing.assert_array_equal(plain.coef_, with_text.coef_)


@pytest.mark.parametrize("several", [False, True])
def test_streamed_rows_have_people_and_weights_like_arrays(several) -> None:
    y, owners, weights = Y if several else Y[:, 0], np.arange(N) // 3, G.random(N)
    x = X.astype(np.float32)
    settings = {**SECRETLESS, "classes": range(C) if several else [0, 1]}
    from_arrays = NoisyGD(**settings).fit(x, y, owners=owners, sample_weight=weights)
    given = {"bounds": np.arange(0, N + 1, 3), "several_labels": several, "runtime": Runtime(streamed=True)}
    by_row = RowWeights(np.ones(len(settings["classes"])), sample_weights(weights, N))
    streamed = executed(NoisyGD(**settings), ArraySource(x, y), weights=by_row, **given)
    np.testing.assert_array_equal(streamed.weights.T, from_arrays.coef_)
    assert streamed.privacy.stated()["unit"] == from_arrays.privacy_["unit"] == "owner"
    assert from_arrays.privacy_["n_units"] == N // 3
    assert list(from_arrays.owners_) == list(range(N // 3))
    unweighted = executed(NoisyGD(**settings), ArraySource(x, y), **given)
    assert not np.array_equal(unweighted.weights, streamed.weights)


def test_owners_and_weights_are_one_a_row() -> None:
    probe, rows = NoisyGD(**SECRETLESS, classes=[0, 1]), (X.astype(np.float32), Y[:, 0])
    with pytest.raises(DataError, match="one name"):
        probe.fit(*rows, owners=np.arange(N - 1))
    with pytest.raises(DataError, match="sample_weight"):
        probe.fit(*rows, sample_weight=np.ones(N - 1))
