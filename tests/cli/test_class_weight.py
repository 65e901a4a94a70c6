"""`--class-weight`: public weights of classes, what they change, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe import DPSGDF, AdaMix, FullyPrivate, NoisyGD, OnlyPublic, Prototypes
from linprobe.data.row_weights import class_weights, sample_weights
from linprobe.errors import DataError, ParameterError, UsageError
from linprobe.runs.run_folder import read_run
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.conftest import gaussian_rows

GD = [*NOISY, "--steps", "5", "--init", "public", "--out", "run"]
LIRA = ["--lira", "--shadows", "4", "--jobs", "1", "--resamples", "0"]


def weights_of(folder: str) -> dict[str, float] | None:
    return read_run(Path(folder)).manifest.class_weights


def test_the_manifest_states_the_weights_and_the_budget_is_the_same(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, *GD).status == 0
    assert weights_of("run") is None
    plain = read_run(Path("run")).manifest
    words = [*GD[:-1], "weighted", "--class-weight", "bee=0,cat=4,dog=2"]
    assert cli("train", features_file, *words).status == 0
    assert weights_of("weighted") == {"ant": 0.25, "bee": 0.0, "cat": 1.0, "dog": 0.5}
    weighted = read_run(Path("weighted")).manifest
    for name in ("epsilon", "noise_multiplier", "releases", "n_private"):
        assert getattr(weighted, name) == getattr(plain, name)
    assert cli("verify", "weighted", "--features", features_file).status == 0
    losses = result_of(cli("pdp-report", "weighted", "--json"))
    assert losses["max"] <= weighted.bound[0]
    lowest = result_of(cli("pdp-report", "run", "--json"))["quantiles"]["0.05"]
    # a fourth of the rows are bees: they add nothing and lose what rounding costs
    assert losses["quantiles"]["0.05"] < 0.3 * lowest
    assert result_of(cli("attack", "weighted", "--json", *LIRA))["attack"] == "lira"


def test_weights_from_a_file_and_from_public_rows(cli: Cli, features_file: Path) -> None:
    Path("w.json").write_text(json.dumps({"ant": 0, "bee": 3}))
    assert cli("train", features_file, *GD, "--class-weight", "w.json").status == 0
    assert weights_of("run") == pytest.approx({"ant": 0, "bee": 1, "cat": 1 / 3, "dog": 1 / 3})
    words = ["--method", "adamix", "--eps", "3", "--steps", "3", "--out", "b", "--class-weight", "public"]
    assert cli("train", features_file, *words).status == 0
    assert weights_of("b") == dict.fromkeys(("ant", "bee", "cat", "dog"), 1.0)  # three public rows of each


def test_an_interrupted_run_does_not_resume_with_other_weights(
    cli: Cli, refused: Callable[..., None], features_file: Path, interrupted_at_the_third_step: None
) -> None:
    words = ["train", features_file, *GD, "--checkpoint", "0"]
    cli(*words, "--class-weight", "ant=2")
    refused(cli(*words, "--resume"), 2, ["class weights"], notes=1)
    assert cli(*words, "--resume", "--class-weight", "ant=2").status == 0
    assert cli("verify", "run").status == 0


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ([*GD, "--class-weight", "cow=2"], 2, ["'cow'", "ant, bee, cat, dog"]),
        ([*GD, "--class-weight", "ant=2,ant=3"], 2, ["LABEL=NUMBER", "once"]),
        ([*GD, "--class-weight", "ant=-1"], 2, ["0 or more"]),
        ([*GD, "--class-weight", "ant=nan"], 2, ["0 or more"]),
        ([*GD, "--class-weight", "ant=0,bee=0,cat=0,dog=0"], 2, ["above 0"]),
        ([*GD, "--class-weight", "none.json"], 3, ["none.json"]),
        ([*GD, "--class-weight", "public", "--public-shots", "0"], 3, ["no public rows"]),
        (
            ["--method", "fully-private", "--eps", "3", "--out", "run", "--class-weight", "public"],
            3,
            ["no public rows", "unprotected"],
        ),
        (["--method", "dp-ls", "--eps", "3", "--out", "run", "--class-weight", "ant=2"], 2, ["dp-ls", "noisy-gd"]),
        (
            ["--method", "adamix", "--eps", "3", "--variant", "theory", "--out", "run", "--class-weight", "ant=2"],
            2,
            ["adamix", "theory"],
        ),
    ],
)
def test_wrong_weights_are_refused(
    cli: Cli, refused: Callable[..., None], features_file: Path, words: list[str], status: int, told: list[str]
) -> None:
    refused(cli("train", features_file, *words), status, told)
    assert not Path("run").exists()


def test_weights_by_class_come_from_public_labels_only(tmp_path: Path) -> None:
    public = np.array([0] * 8 + [1] * 2 + [2])
    assert class_weights("public", ["a", "b", "c"], public).tolist() == [1 / 8, 1 / 2, 1]
    for labels in (None, public[:10]):
        with pytest.raises(DataError, match="no public rows"):
            class_weights("public", ["a", "b", "c"], labels)
    assert class_weights("a=b=2,c=1", ["a=b", "c"], None).tolist() == [1, 0.5]
    assert class_weights({3: 1, 5: 4}, [3, 5], None).tolist() == [0.25, 1]
    with pytest.raises(ParameterError, match="'x'"):
        class_weights({"x": 1}, ["a"], None)
    with pytest.raises(ParameterError, match="more than 308 digits'; allowed"):
        class_weights({"a": 10**400}, ["a"], None)
    (tmp_path / "twice.json").write_text('{"a": 2, "a": 50}')
    with pytest.raises(DataError, match="'a' occurs twice"):
        class_weights(str(tmp_path / "twice.json"), ["a"], None)


X, Y = gaussian_rows("train", 300)


def fitted(estimator: Any = NoisyGD, *, n_steps: int | None = 20, **fit: Any) -> Any:
    given: dict[str, Any] = {} if n_steps is None else {"n_steps": n_steps, "insecure_seed": 1, "epsilon": 9}
    class_weight = fit.pop("class_weight", None)
    return estimator(classes=range(4), class_weight=class_weight, **given).fit(X, Y, **fit)


def test_estimators_take_weights_by_class_and_by_row() -> None:
    by_class = fitted(class_weight={0: 1, 1: 0.2, 2: 0.2, 3: 0.2})
    by_row = fitted(sample_weight=np.where(Y == 0, 1.0, 0.2))
    np.testing.assert_allclose(by_class.coef_, by_row.coef_, atol=1e-5)
    assert np.abs(by_class.coef_ - fitted().coef_).max() > 1e-3
    order = np.random.default_rng(0).permutation(len(Y))
    owners = np.arange(len(Y)) // 3
    weight = np.random.default_rng(1).random(len(Y))
    one = fitted(sample_weight=weight, owners=owners)
    given = {"classes": range(4), "n_steps": 20, "insecure_seed": 1, "epsilon": 9}
    other = NoisyGD(**given).fit(X[order], Y[order], owners=owners[order], sample_weight=weight[order])
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-4 * np.abs(one.coef_).max())


def test_weights_below_one_do_not_drown_in_noise() -> None:
    for of_sum_one in (np.full(len(Y), 2.0**-9), np.arange(len(Y)) % 3 * 2.0**-9):
        as_large = fitted(sample_weight=of_sum_one / of_sum_one.max())
        np.testing.assert_array_equal(fitted(sample_weight=of_sum_one).coef_, as_large.coef_)
    np.testing.assert_array_equal(sample_weights([0.1, 3], 2), [0.1, 3])


def test_rows_without_weight_have_no_say() -> None:
    silent = np.where(np.arange(len(Y)) < 100, 0.0, 1.0)
    changed = Y.copy()
    changed[:100] = 0
    given = {"classes": range(4), "n_steps": 5, "insecure_seed": 1, "epsilon": 9, "condition": "none"}
    mine, theirs = (NoisyGD(**given).fit(X, y, sample_weight=silent) for y in (Y, changed))
    np.testing.assert_array_equal(mine.coef_, theirs.coef_)


def test_weights_move_decisions_towards_the_class_that_weighs_more() -> None:
    heavy = fitted(class_weight={0: 1, 1: 0.01, 2: 0.01, 3: 0.01})
    assert (heavy.predict(X) == 0).sum() > (fitted().predict(X) == 0).sum() + 10
    public = OnlyPublic(class_weight={0: 1, 1: 0.01, 2: 0.01, 3: 0.01}).fit(X + 9, Y, X, Y)
    assert (public.predict(X) == 0).mean() > (OnlyPublic().fit(X + 9, Y, X, Y).predict(X) == 0).mean()
    for estimator in (AdaMix, DPSGDF):
        given = {} if estimator is AdaMix else {"accountant": "rdp"}
        probe = estimator(epsilon=3, class_weight="public", n_steps=4, **given)
        assert probe.fit(X[40:], Y[40:], X[:40], Y[:40]).coef_.any()


def test_labels_of_protected_public_rows_are_not_counted() -> None:
    given = {"epsilon": 9, "n_steps": 2, "classes": range(4)}
    with pytest.raises(DataError, match="unprotected"):
        FullyPrivate(class_weight="public", **given).fit(X, Y, X[:40] + 1, Y[:40])
    with pytest.raises(ParameterError, match="protected labels"):  # nor listed
        FullyPrivate(epsilon=9, n_steps=2).fit(X, Y, X[:40] + 1, Y[:40])
    stated = FullyPrivate(class_weight={0: 1, 1: 0.5}, **given)
    assert stated.fit(X, Y, X[:40] + 1, Y[:40], sample_weight=np.ones(len(Y))).coef_.any()


def test_methods_without_weights_refuse_them() -> None:
    with pytest.raises(UsageError, match="prototypes"):
        Prototypes(epsilon=3, classes=range(4)).fit(X, Y, sample_weight=np.ones(len(Y)))
    one_below = np.where(np.arange(len(Y)) == 5, -2.5, 1)
    for wrong, found in (
        (np.ones(3), r"shape \(3,\) for "),
        (one_below, "-2.5 at row 5; allowed: public numbers from 0 to"),
        (np.full(len(Y), np.nan), "nan at row 0"),
        (np.zeros(len(Y)), "only zero"),
        (["a"] * len(Y), "shape"),
    ):
        with pytest.raises(DataError, match=f"sample_weight has {found}"):
            fitted(sample_weight=wrong)
