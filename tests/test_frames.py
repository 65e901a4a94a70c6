"""Estimators take frames of pandas and polars as they take arrays: rows, string labels, public rows and owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from linprobe import AdaMix, NoisyGD, OnlyPublic
from linprobe.errors import DataError, PrivacyWarning

pytestmark = pytest.mark.filterwarnings(f"ignore::{PrivacyWarning.__module__}.{PrivacyWarning.__name__}")

NAMES = ["ant", "bee", "cat"]
LABELS = np.arange(300) % 3
TEXTS = np.array(NAMES)[LABELS]
ROWS = (3 * np.eye(3, 6)[LABELS] + np.random.default_rng(0).standard_normal((300, 6))).astype(np.float32)
COLUMNS = [f"f{place}" for place in range(6)]
Series = Callable[[Any], Any]


def fitted(rows: Any, labels: Any, classes: Any, **given: Any) -> NoisyGD:
    return NoisyGD(epsilon=3, classes=classes, n_steps=5, insecure_seed=1).fit(rows, labels, **given)


@pytest.fixture(params=["pandas", "polars"])
def library(request: pytest.FixtureRequest) -> Any:
    """The library, a maker of frames, and a maker of series."""
    library = pytest.importorskip(request.param)
    if request.param == "pandas":
        index = [f"id{row}" for row in range(len(ROWS))]
        return (
            library,
            lambda rows: library.DataFrame(rows, columns=COLUMNS, index=index[: len(rows)]),
            lambda values: library.Series(values, index=index[: len(values)]),
        )
    return library, lambda rows: library.DataFrame(rows, schema=COLUMNS), library.Series


def test_columns_of_labels_name_the_classes(library: Any) -> None:
    module, frame, _ = library
    labels = module.DataFrame({"tumour": LABELS % 2, "scar": LABELS // 2})
    rows = frame(ROWS)
    if module.__name__ == "pandas":
        labels.index = rows.index
    assert NoisyGD(epsilon=3, n_steps=5).fit(rows, labels).classes_.tolist() == ["tumour", "scar"]


def test_columns_of_labels_are_the_classes_in_their_order(library: Any) -> None:
    module, *_ = library
    labels = module.DataFrame({"tumour": LABELS % 2, "scar": LABELS // 2})
    turned, options = labels[["scar", "tumour"]], {"epsilon": 3, "n_steps": 5}
    probe = NoisyGD(**options).fit(ROWS, labels)
    assert probe.score(ROWS, labels) == probe.score(ROWS, labels.to_numpy())
    for call, name in (
        (lambda: NoisyGD(**options, classes=["scar", "tumour"]).fit(ROWS, labels), "y"),
        (lambda: OnlyPublic().fit(ROWS, labels, X_public=ROWS[:60], y_public=turned[:60]), "y_public"),
        (lambda: probe.score(ROWS, turned), "y"),
    ):
        with pytest.raises(DataError, match=rf"^{name} has the columns (scar, tumour|tumour, scar),.*{name}\.to_numpy"):
            call()


def test_columns_without_names_are_taken_by_position() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.DataFrame(np.stack([LABELS % 2, LABELS // 2], 1))
    assert NoisyGD(epsilon=3, n_steps=5, classes=["b", "a"]).fit(ROWS, labels).score(ROWS, labels) > 0
    with pytest.raises(DataError, match="allowed: the classes in their order, 1, 0"):
        NoisyGD(epsilon=3, n_steps=5, classes=[1, 0]).fit(ROWS, labels)


def test_repeated_columns_are_refused_in_one_line() -> None:
    pandas = pytest.importorskip("pandas")
    twice = pandas.DataFrame(ROWS, columns=[*COLUMNS[:5], "f0"])
    with pytest.raises(DataError, match=r"^X, column 1: 2 columns are named 'f0'; allowed: one$"):
        fitted(twice, LABELS, range(3))
    with pytest.raises(DataError, match="2 columns are named 'f0'"):
        fitted(pandas.DataFrame(ROWS, columns=COLUMNS), LABELS, range(3)).predict(twice)


def text_types(library: Any) -> list[Series]:
    if library.__name__ == "pandas":
        return [lambda series: series, lambda series: series.astype("category"), lambda series: series.astype("string")]
    return [
        lambda series: series,
        lambda series: series.cast(library.Categorical),
        lambda series: series.cast(library.Enum(NAMES)),
    ]


def test_frames_and_text_labels_give_what_arrays_give(library: Any) -> None:
    module, frame, series = library
    expected = fitted(ROWS, TEXTS, NAMES)
    for cast in text_types(module):
        probe = fitted(frame(ROWS), cast(series(TEXTS.tolist())), NAMES)
        np.testing.assert_allclose(probe.coef_, expected.coef_, atol=1e-5)  # another order of summation
        assert probe.feature_names_in_.tolist() == COLUMNS
        assert probe.predict(frame(ROWS)).tolist() == expected.predict(ROWS).tolist()
        assert probe.score(frame(ROWS), cast(series(TEXTS.tolist()))) > 0.9


def test_whole_numbers_are_labels_too(library: Any) -> None:
    module, frame, series = library
    labels = series(LABELS.tolist())
    assert fitted(frame(ROWS), labels, range(3)).score(frame(ROWS), labels) > 0.9
    if module.__name__ == "pandas":
        assert fitted(frame(ROWS), labels.astype("Int64"), range(3)).classes_.tolist() == [0, 1, 2]


def test_public_rows_and_owners_may_be_frames(library: Any) -> None:
    _, frame, series = library
    rows, texts = frame(ROWS), series(TEXTS.tolist())
    probe = AdaMix(epsilon=3, n_steps=5).fit(rows[30:], texts[30:], X_public=rows[:30], y_public=texts[:30])
    assert probe.classes_.tolist() == NAMES
    assert probe.privacy_["n_public"] == 30
    people = [f"p{row // 3}" for row in range(300)]
    assert len(fitted(rows, texts, NAMES, owners=series(people)).owners_) == 100


@pytest.mark.parametrize("called", ["owners", "groups"])
def test_people_under_another_index_are_refused(called: str) -> None:
    """By position, the rows of a person would be those of others, and the guarantee be for nobody."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, index=[f"id{row}" for row in range(300)])
    people = pandas.Series([f"p{row // 3}" for row in range(300)], index=frame.index)
    with pytest.raises(DataError, match=rf"^{called} has another index than X.*{called}\.loc\[X\.index\]"):
        fitted(frame, TEXTS, NAMES, **{called: people[::-1]})
    assert len(fitted(frame, TEXTS, NAMES, **{called: people[::-1].loc[frame.index]}).owners_) == 100
    assert len(fitted(frame, TEXTS, NAMES, **{called: people.to_numpy()}).owners_) == 100


def test_labels_and_weights_under_another_index_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, index=[f"id{row}" for row in range(300)])
    texts, ones = pandas.Series(TEXTS, index=frame.index), pandas.Series(np.ones(300), index=frame.index)
    probe = fitted(frame, texts, NAMES, sample_weight=ones, X_public=frame[:60] + 1, y_public=texts[:60])
    assert probe.score(frame, texts, ones) > 0.9
    for call, words in (
        (lambda: fitted(frame, texts[::-1], NAMES), r"y has another index than X,.*y\.loc\[X\.index\]"),
        (lambda: fitted(frame, pandas.Series(TEXTS), NAMES), "y has another index than X"),
        (lambda: fitted(frame, texts, NAMES, sample_weight=ones[::-1]), "sample_weight has another index than X"),
        (
            lambda: fitted(frame, texts, NAMES, X_public=frame[:60] + 1, y_public=texts[59::-1]),
            r"y_public has another index than X_public,.*y_public\.loc\[X_public\.index\]",
        ),
        (lambda: probe.score(frame, texts[::-1]), "y has another index than X"),
        (lambda: probe.score(frame, texts, ones[::-1]), "sample_weight has another index than X"),
    ):
        with pytest.raises(DataError, match=f"^{words}"):
            call()


def test_columns_in_another_order_are_refused(library: Any) -> None:
    _, frame, series = library
    rows = frame(ROWS)
    with pytest.raises(ValueError, match="same order"):
        fitted(rows, series(TEXTS.tolist()), NAMES).predict(rows[COLUMNS[::-1]])


def test_a_missing_label_is_refused(library: Any) -> None:
    _, frame, series = library
    with pytest.raises(ValueError, match=r"NaN|None|labels|unknown"):
        fitted(frame(ROWS), series([None, *TEXTS[1:].tolist()]), NAMES)


def test_losses_are_in_the_order_of_the_index() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, index=[f"id{row}" for row in range(len(ROWS))])
    shuffled = frame.sample(frac=1, random_state=0)
    labels = pandas.Series(TEXTS, index=frame.index)
    probe = NoisyGD(epsilon=3, classes=NAMES, condition="none", n_steps=1)
    first = probe.fit(frame, labels).private_record_losses_.mu
    second = probe.fit(shuffled, labels[shuffled.index]).private_record_losses_.mu  # of step 1: without noise in it
    np.testing.assert_allclose(pandas.Series(second, index=shuffled.index)[frame.index], first, rtol=1e-5)
