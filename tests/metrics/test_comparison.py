"""Means, spreads, the best row and the boost of a comparison."""

from __future__ import annotations

from typing import Any

import pytest

from linprobe.reporting.comparison import (
    beats,
    boost,
    comparison_table,
    comparison_tables,
    markdown,
    no_better,
    summarise,
)

TWO, FOUR = 2, 4
LEVELS = "only-public", "non-private"


def result(method: str, shots: int, epsilon: float | None, seed: int, accuracy: float) -> dict[str, Any]:
    row = {"method": method, "public": "", "shots": shots, "epsilon": epsilon, "seed": seed}
    return {**row, "test_accuracy": accuracy, "test_balanced_accuracy": 1 - accuracy}


RESULTS = [
    result("a", TWO, 1.0, 0, 0.6),
    result("a", TWO, 1.0, 1, 0.8),
    result("b", TWO, 1.0, 0, 0.75),
    result("a", FOUR, 1.0, 0, 0.9),
    result("b", FOUR, 1.0, 0, 0.8),
    result("only-public", TWO, None, 0, 0.5),
    result("non-private", TWO, None, 0, 0.95),
]


def test_summaries_are_means_and_sample_deviations_in_order() -> None:
    summaries = summarise(RESULTS, *LEVELS)
    assert [(one["method"], one["shots"]) for one in summaries[:3]] == [("a", 2), ("b", 2), ("a", 4)]
    assert summaries[0]["mean"] == pytest.approx(0.7)
    assert summaries[0]["std"] == pytest.approx(0.02**0.5)
    assert (summaries[0]["runs"], summaries[1]["runs"], summaries[1]["std"]) == (2, 1, None)


def test_best_is_chosen_among_rows_that_spend_in_one_setting() -> None:
    seeds = [
        result(row, setting, epsilon, seed, accuracy + 0.01 * seed)
        for row, setting, epsilon, accuracy in [
            ("a", TWO, 1.0, 0.70),
            ("b", TWO, 1.0, 0.75),
            ("a", FOUR, 1.0, 0.9),
            ("b", FOUR, 1.0, 0.8),
            ("non-private", TWO, None, 0.95),
        ]
        for seed in (0, 1)
    ]
    best = [(one["method"], one["shots"]) for one in summarise(seeds, *LEVELS) if one["best"]]
    assert best == [("b", 2), ("a", 4)]  # non-private is better than both and spends nothing


def test_no_row_is_best_within_the_spread() -> None:
    assert beats(0.8, 0.01, [(0.77, 0.01), (0.5, 0.2)])
    assert not beats(0.8, 0.01, [(0.79, 0.01)])
    assert not beats(0.8, 0.03, [(0.75, 0.03)])
    assert not beats(0.8, None, [(0.5, 0.01)])
    assert not beats(0.8, 0.01, [(0.5, None)])
    assert not beats(0.8, 0.01, [])


def test_balanced_accuracy_has_means_spreads_and_a_best_of_its_own() -> None:
    first, second, *_ = summarise(RESULTS, *LEVELS)  # the tests' balanced accuracy is 1 - accuracy
    assert (first["balanced_mean"], second["balanced_mean"]) == (pytest.approx(0.3), pytest.approx(0.25))
    assert first["balanced_std"] == pytest.approx(0.02**0.5)
    assert not any(one[name] for one in (first, second) for name in ("best", "balanced_best"))  # b has one run


def test_boost_is_one_without_gain_and_rises_towards_the_paragon() -> None:
    assert boost(0.4, 0.4, 0.1) == pytest.approx(1)
    assert boost(0.4, 0.2, 0.1) == pytest.approx(3)
    assert boost(0.4, 0.5, 0.1) == pytest.approx(0.75)
    assert boost(0.4, 0.1, 0.1) is None


def test_boosts_need_both_baselines_in_the_same_setting() -> None:
    found = {(one["method"], one["shots"]): one["boost"] for one in summarise(RESULTS, *LEVELS)}
    assert [key for key, value in found.items() if value is not None] == [("a", 2), ("b", 2)]
    assert found["a", 2] == pytest.approx(0.45 / 0.25)


def test_table_marks_the_best_and_repeats_rows_that_spend_nothing() -> None:
    summary = [
        {"method": "a", "public": "", "shots": 2, "epsilon": 1.0, "mean": 0.7, "std": 0.1, "best": False},
        {"method": "a", "public": "", "shots": 2, "epsilon": 3.0, "mean": 0.8, "std": 0.1, "best": True},
        {"method": "only-public", "public": "", "shots": 2, "epsilon": None, "mean": 0.5, "std": None, "best": False},
    ]
    header, rows = comparison_table(summary)
    assert header == ("method", "eps 1", "eps 3")
    assert rows == [("a", "70.0 ± 10.0", "**80.0 ± 10.0**"), ("only-public", "50.0", "50.0")]
    assert markdown(header, rows).splitlines()[1] == "| --- | ---: | ---: |"


def test_balanced_table_is_shown_where_it_differs() -> None:
    one = {"method": "a", "public": "", "shots": 2, "epsilon": 1.0, "mean": 0.9, "std": 0.1, "best": True}
    one |= {"balanced_mean": 0.6, "balanced_std": None, "balanced_best": False}
    assert comparison_table([one], balanced=True)[1] == [("a", "60.0")]
    assert list(comparison_tables([one])) == ["test accuracy", "balanced accuracy"]
    assert list(comparison_tables([{**one, "balanced_mean": 0.9}])) == ["test accuracy"]


def test_rows_no_better_than_the_commonest_class_are_named() -> None:
    summary = [
        {"method": "a", "epsilon": 1.0, "mean": 0.9, "balanced_mean": 0.6},
        {"method": "b", "epsilon": None, "mean": 0.91, "balanced_mean": 0.6},
        {"method": "balanced", "epsilon": 3.0, "mean": 0.85, "balanced_mean": 0.61},
    ]
    compared = {"commonest_class": "well", "commonest_share": 0.9, "balanced_limit": 0.6, "summary": summary}
    assert str(no_better(compared)).endswith("predicting 'well', for: a at epsilon 1")
    assert no_better({**compared, "commonest_share": 0.8}) is None


def test_table_names_what_varies() -> None:
    rest = {"mean": 0.7, "std": None, "best": False, "epsilon": 1.0}
    summary = [{"method": "a", "public": public, "shots": shots, **rest} for public in ("", "x") for shots in (0, 2)]
    header, rows = comparison_table(summary)
    assert header == ("method", "public", "shots", "eps 1")
    assert [row[1:3] for row in rows] == [("-", "0"), ("-", "2"), ("x", "0"), ("x", "2")]


def test_table_without_a_private_row_has_one_column() -> None:
    summary = [{"method": "a", "public": "", "shots": None, "epsilon": None, "mean": 0.5, "std": None, "best": False}]
    assert comparison_table(summary) == (("method", "accuracy, %"), [("a", "50.0")])
    (balanced,) = ({**line, "balanced_mean": 0.4, "balanced_std": None, "balanced_best": False} for line in summary)
    assert comparison_table([balanced], balanced=True) == (("method", "balanced accuracy, %"), [("a", "40.0")])
