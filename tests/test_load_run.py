"""`load_run`: a run folder as a scikit-learn classifier that predicts what `linprobe predict` predicts."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline

import linprobe
from linprobe import load_run
from linprobe.errors import DataError, UsageError
from tests.conftest import CLASS_NAMES, N_FEATURES, Outcome, gaussian_rows

ROWS, LABELS = gaussian_rows("test", 120)
Cli = Callable[..., Outcome]


def test_it_predicts_as_the_command_does(cli: Cli, trained_run: Path, features_file: Path) -> None:
    printed = list(csv.DictReader(io.StringIO(cli("predict", trained_run, features_file).stdout)))
    probe = load_run(trained_run)
    assert probe.predict(ROWS).tolist() == [row["label"] for row in printed]
    np.testing.assert_allclose(
        probe.predict_proba(ROWS).max(axis=1), [float(row["score"]) for row in printed], atol=1e-5
    )


def test_it_is_a_classifier_with_the_manifest(trained_run: Path) -> None:
    probe = load_run(str(trained_run))
    assert is_classifier(probe)
    assert tuple(probe.classes_) == CLASS_NAMES
    assert probe.n_features_in_ == N_FEATURES
    assert probe.privacy_ == json.loads((trained_run / "manifest.json").read_text())
    assert probe.decision_function(ROWS).shape == (120, 4)
    np.testing.assert_allclose(probe.predict_proba(ROWS).sum(axis=1), 1)
    assert (probe.predict_proba(ROWS).argmax(axis=1) == probe.decision_function(ROWS).argmax(axis=1)).all()
    names = np.array(CLASS_NAMES)[LABELS]
    assert probe.score(ROWS, names) == (probe.predict(ROWS) == names).mean() > 0.8


def test_two_classes_have_one_score(cli: Cli, make_features: Callable[..., Path], tmp_path: Path) -> None:
    two = make_features(tmp_path / "two.h5", class_names=("no", "yes"), order=(0, 0, 1, 1), text=False)
    assert cli("train", two, "--method", "non-private", "--out", "run").status == 0
    probe = load_run("run")
    scores, shares = probe.decision_function(ROWS), probe.predict_proba(ROWS)
    assert (scores.shape, shares.shape) == ((120,), (120, 2))
    np.testing.assert_allclose(np.log(shares[:, 1] / shares[:, 0]), scores, rtol=1e-6)


def test_votes_become_shares(cli: Cli, features_file: Path) -> None:
    words = ["--eps", "3", "--steps", "6", "--output", "vote", "--ensemble", "5", "--accountant", "rdp"]
    assert cli("train", features_file, "--method", "dp-sgd", *words, "--out", "run").status == 0
    probe = load_run("run")
    assert probe.coef_.shape == (5, 4, N_FEATURES)
    shares = probe.predict_proba(ROWS)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(5 * shares, np.round(5 * shares), atol=1e-12)


def test_it_cannot_be_trained_again(trained_run: Path) -> None:
    probe = load_run(trained_run)
    with pytest.raises(UsageError, match="FrozenEstimator"):
        probe.fit(ROWS, LABELS)
    with pytest.raises(NotFittedError):
        clone(probe).predict(ROWS)
    frozen = make_pipeline(FrozenEstimator(probe)).fit(ROWS, LABELS)
    assert (frozen.predict(ROWS) == probe.predict(ROWS)).all()


def test_wrong_folders_and_rows_are_refused(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run folder"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match="11 features"):
        load_run(trained_run).predict(np.zeros((2, 11)))


def test_frames_are_rows_too(trained_run: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = load_run(trained_run).predict(ROWS)
    names = [f"f{place}" for place in range(N_FEATURES)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for frame in (pandas.DataFrame(ROWS, columns=names), polars.DataFrame(ROWS, schema=names)):
            assert (load_run(trained_run).predict(frame) == expected).all()


def test_completion_lists_the_estimators() -> None:
    assert set(linprobe.__all__) <= set(dir(linprobe))
