"""The scikit-learn interface: conventions, declared classes, guarantees."""

import inspect
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError, UnsetMetadataPassedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, PredefinedSplit, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, MinMaxScaler, StandardScaler
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from sklearn.utils.multiclass import check_classification_targets

import linprobe
from linprobe.accounting.accountants import GAUSSIAN, choose_accountant
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.fits import MIXED
from linprobe.api.estimators import ESTIMATORS, LinearProbe, NoisyGD, NonPrivate
from linprobe.data.blocks import ArraySource, normalise_rows
from linprobe.data.feature_file import FeatureFile
from linprobe.errors import (
    DataError,
    DivergedError,
    LinprobeError,
    ParameterError,
    PrivacyError,
    PrivacyWarning,
    UsageError,
)
from linprobe.methods import METHODS
from tests.conftest import executed, one_of_each_kind


class _ReadsLabels:
    """Takes classes, and what else the method needs, from private rows, as scikit-learn's checks give no more.

    Public rows are the class means, and text weights the same.
    """

    def _declared_classes(self, y, y_public):
        classes = np.unique(y)
        if len(classes) < 2:
            raise ParameterError("classes has 1 class; allowed: 2 or more")
        return classes

    def _dataset(self, private, **others):
        (x, y), *_ = private.blocks()
        means = np.stack([x[y == label].mean(axis=0) for label in range(len(self.classes_))])
        if "public" in self.method.needs:
            others["public"] = ArraySource(means, np.arange(len(means)))
        others["text_weights"] = means.T if "text" in self.method.needs else None
        return super()._dataset(private, **others)


CHEAP = {"epsilon": 50.0, "delta": 1e-4, "insecure_seed": 0, "n_steps": 10, "sampling_rate": 1.0}
CHECKED = {  # seeded, as the checks expect equal results of repeated fits
    name: type(f"Checked{kind.__name__}", (_ReadsLabels, kind), {"__module__": __name__})
    for name, kind in ESTIMATORS.items()
}
globals().update({kind.__name__: kind for kind in CHECKED.values()})  # so that they can be pickled
OF_WEIGHTS = [
    *(f"check_sample_weights_{kind}" for kind in ("pandas_series", "not_an_array", "list", "shape", "not_overwritten")),
    "check_classifiers_one_label_sample_weights",
    "check_class_weight_classifiers",
]


def cheap(name: str) -> LinearProbe:
    return CHECKED[name](**{key: CHEAP[key] for key in CHECKED[name]._get_param_names() if key in CHEAP})


def expected_failed_checks(estimator: LinearProbe) -> dict[str, str]:
    """The checks that fail, and why."""
    method = estimator.method
    found = {"check_sample_weight_equivalence_on_dense_data": "noise, or the tolerance of the optimiser, differs"}
    if not method.weighs:
        return found | dict.fromkeys(OF_WEIGHTS, "the method refuses weights, which would do nothing")
    if "public" in method.needs or method.name == "dpsgd-f":
        found["check_class_weight_classifiers"] = "no weights make one class win everywhere: centred rows have no bias"
    return found


WHOLE = ("noisy-gd", "adamix")  # without and with public rows
OF_FITS = {  # what depends on the body of a method; all else is inherited from `LinearProbe`
    "check_class_weight_classifiers",
    "check_classifiers_train",
    "check_estimators_pickle",
    "check_fit_idempotent",
    "check_methods_sample_order_invariance",
    "check_sample_weight_equivalence_on_dense_data",
}


@parametrize_with_checks([cheap(name) for name in METHODS if name in WHOLE])
def test_scikit_learns_own_checks(estimator, check) -> None:
    check_convention(estimator, check)


@pytest.mark.parametrize("name", one_of_each_kind(name for name in METHODS if name not in WHOLE))
def test_scikit_learns_own_checks_of_fits(name) -> None:
    done = set()
    for estimator, check in estimator_checks_generator(cheap(name)):
        if check.func.__name__ in OF_FITS:
            check_convention(estimator, check)
            done.add(check.func.__name__)
    assert done == OF_FITS


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in METHODS if name not in WHOLE])
def test_all_of_scikit_learns_own_checks(name) -> None:
    for estimator, check in estimator_checks_generator(cheap(name)):
        check_convention(estimator, check)


def check_convention(estimator, check) -> None:
    if check.func.__name__ not in expected_failed_checks(estimator):
        check(estimator)
        return
    with pytest.raises((AssertionError, UsageError)):  # strict; the report of an xfail takes longer than the check
        check(estimator)


@pytest.fixture
def rows():
    g = np.random.default_rng(0)
    y = np.arange(260) % 3
    x = 3 * g.normal(size=(3, 8))[y] + g.normal(size=(260, 8))
    return x[20:], y[20:], x[:20], y[:20]


def make(name: str, **changes):
    settings = {"classes": [0, 1, 2], **({"epsilon": 4.0} if METHODS[name].spends else {}), **changes}
    return ESTIMATORS[name](**settings)


def fitted(name: str, rows, **changes):
    x, y, x_public, y_public = rows
    return make(name, **changes).fit(x, y, X_public=x_public, y_public=y_public, text_weights=np.eye(8)[:, :3])


def faster(name: str) -> dict[str, str]:
    """The accountant that calibrates a sampled method in a tenth of the time."""
    return {"accountant": "rdp"} if METHODS[name].samples else {}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_method_has_an_estimator_that_fits_predicts_and_clones(name, rows) -> None:
    probe = fitted(name, rows, **faster(name))
    assert probe.predict(rows[0]).shape == (240,)
    assert probe.decision_function(rows[0]).shape == (240, 3)
    assert clone(probe).get_params() == probe.get_params()
    assert name == "zero-shot" or (probe.predict(rows[0]) == rows[1]).mean() > 0.8
    assert set(ESTIMATORS) == set(METHODS)
    assert type(probe).__name__ in linprobe.__all__


@pytest.mark.parametrize("name", one_of_each_kind(name for name, method in METHODS.items() if method.spends))
def test_the_guarantee_never_exceeds_what_was_asked(name, rows) -> None:
    for epsilon in (0.3, 2.0):
        privacy = fitted(name, rows, epsilon=epsilon, **faster(name)).privacy_
        assert epsilon * 0.999 <= privacy["epsilon"] <= privacy["epsilon_target"] == epsilon
        if not METHODS[name].samples:
            squared_mu = sum(each["count"] / each["noise_multiplier"] ** 2 for each in privacy["releases"])
            assert privacy["gdp_mu"] == pytest.approx(squared_mu**0.5, abs=1e-12)
        else:
            assert privacy["gdp_mu"] is privacy["zcdp_rho"] is None
        assert privacy["private"]
        assert privacy["seed_kind"] == "os"


def test_baselines_say_what_they_cost(rows) -> None:
    assert fitted("only-public", rows).privacy_["epsilon"] == 0
    assert fitted("zero-shot", rows).privacy_["epsilon"] == 0
    privacy = fitted("non-private", rows).privacy_
    assert privacy["epsilon"] is None
    assert not privacy["private"]


def test_only_public_and_zero_shot_do_not_depend_on_private_rows(rows) -> None:
    x, y, x_public, y_public = rows
    for name in ("only-public", "zero-shot"):
        other = fitted(name, (-x[:50], (y[:50] + 1) % 3, x_public, y_public))
        np.testing.assert_array_equal(fitted(name, rows).coef_, other.coef_)


def test_fully_private_protects_public_rows_too(rows) -> None:
    probe = fitted("fully-private", rows)
    assert probe.privacy_["n_private"] == 260
    assert probe.private_record_losses_.mu.shape == (260,)
    assert probe.privacy_["n_public"] == 0


def test_classes_are_never_read_off_private_labels(rows) -> None:
    x, y, x_public, y_public = rows
    with pytest.raises(UsageError, match="AdaMix needs public rows and got none; give X_public and y_public"):
        ESTIMATORS["adamix"](epsilon=3).fit(*rows[:2])
    with pytest.raises(ParameterError, match="classes is None"):
        NoisyGD(epsilon=1.0).fit(x, y)
    with pytest.raises(DataError, match=r"outside the 2 declared classes, first label 2 at row \d+; allowed: 0, 1"):
        NoisyGD(epsilon=1.0, classes=[0, 1]).fit(x, y)
    with pytest.raises(DataError, match="outside the 2 classes of the public labels"):
        NoisyGD(epsilon=1.0).fit(x, y, X_public=x_public[y_public < 2], y_public=y_public[y_public < 2])
    np.testing.assert_array_equal(
        NoisyGD(epsilon=1.0).fit(x, y, X_public=x_public, y_public=y_public).classes_, [0, 1, 2]
    )
    probe = NoisyGD(epsilon=1.0, classes=["a", "b", "c", "never seen"]).fit(x, np.array(["a", "b", "c"])[y])
    assert probe.coef_.shape == (4, 8)


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("adamix", {}, "give X_public and y_public"),
        ("zero-shot", {}, "give text_weights"),
        ("noisy-gd", {"delta": 0.1}, "delta=4e-04"),
    ],
)
def test_errors_of_estimators_name_arguments(rows, method: str, given: dict, says: str) -> None:
    with pytest.raises((UsageError, PrivacyError), match=says) as caught:
        make(method, **given).fit(*rows[:2])
    assert "--" not in str(caught.value)


def test_cells_that_cannot_be_used_are_named_with_their_place(rows) -> None:
    x, y, *_ = rows
    probe = NonPrivate(classes=range(3)).fit(x, y)
    large, text = x.astype(np.float64), x.astype(object)
    large[4, 2], text[4, 2] = 1e39, "n/a"
    for given, words in ((large, r"1e\+39 at row 4, column 2"), (text, "'n/a' at row 4, column 2")):
        with pytest.raises(DataError, match=words):
            probe.predict(given)
        with pytest.raises(DataError, match=words):
            NonPrivate(classes=range(3)).fit(given, y)


@pytest.mark.parametrize("epsilon", [None, True, [3]])
def test_an_epsilon_that_is_no_number_is_named_with_its_type(rows, epsilon) -> None:
    with pytest.raises(ParameterError, match=r"epsilon is .*, of type .*; allowed: a number"):
        NoisyGD(epsilon=epsilon, classes=range(3)).fit(rows[0], rows[1])


def test_labels_in_any_order_of_classes_give_the_same_predictions(rows) -> None:
    x, y, *_ = rows
    names = np.array(["cat", "ape", "bee"])
    probe = NonPrivate(classes=["cat", "ape", "bee"]).fit(x, names[y])
    other = NonPrivate(classes=["ape", "bee", "cat"]).fit(x, names[y])
    np.testing.assert_array_equal(probe.predict(x), other.predict(x))
    assert (probe.predict(x) == names[y]).mean() > 0.9


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"epsilon": 0}, ParameterError),
        ({"epsilon": 1e9}, ParameterError),
        ({"delta": 0.5}, PrivacyError),
        ({"delta": 1 / 240}, PrivacyError),
        ({"noise_multiplier": 0.01}, PrivacyError),
        ({"noise_multiplier": 5.0, "n_steps": 3}, UsageError),
        ({"classes": [0]}, ParameterError),
        ({"classes": [0, 0, 1, 2]}, ParameterError),
        ({"centre": "private"}, ParameterError),
        ({"intercept": -1.0}, ParameterError),
        ({"intercept": 1.0, "centre": "public"}, UsageError),
        ({"clip_norm": 0.0}, ParameterError),
    ],
)
def test_bad_parameters_are_refused_in_one_line(changes, error, rows) -> None:
    with pytest.raises(error) as caught:
        fitted("noisy-gd", rows, **changes)
    assert isinstance(caught.value, LinprobeError)
    assert "\n" not in str(caught.value)


def test_centre_public_needs_public_rows(rows) -> None:
    with pytest.raises(UsageError, match="no public rows"):
        make("noisy-gd", centre="public").fit(rows[0], rows[1])


@pytest.mark.parametrize("clip_norm", [np.float16(0.1), np.float32(0.1), np.array(0.3)])
def test_a_number_of_numpy_is_a_number_of_python(rows, clip_norm) -> None:
    """Noise of half precision would be less than the noise of the stated epsilon."""
    given, plain = (
        fitted("noisy-gd", rows, insecure_seed=5, n_steps=7, clip_norm=value) for value in (clip_norm, float(clip_norm))
    )
    assert np.array_equal(given.coef_, plain.coef_)
    assert given.privacy_ == plain.privacy_
    assert type(given.history_[-1]["clip_norm"]) is float


def test_a_seeded_run_is_reproducible_and_claims_no_epsilon(rows) -> None:
    one, two = (fitted("adamix", rows, insecure_seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert one.privacy_["epsilon"] is None
    assert not one.privacy_["private"]
    assert "not private" in one.privacy_["guarantee"]
    assert not np.array_equal(fitted("adamix", rows).coef_, fitted("adamix", rows).coef_)


def test_probes_work_in_pipelines_and_cross_validation(rows) -> None:
    x, y, *_ = rows
    pipeline = make_pipeline(FunctionTransformer(), NoisyGD(epsilon=8.0, classes=[0, 1, 2]))
    assert cross_val_score(pipeline, x, y, cv=KFold(3)).mean() > 0.8


def texts_of(fit, *, word: str = "") -> list[str]:
    """The privacy warnings with `word` that a call issues."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [text for text in refit_warnings(caught) if word in text]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (StandardScaler(), "8 of 8 columns with exactly mean 0 and variance 1"),
        (PCA(3, whiten=True), "of 3 columns with exactly mean 0 and variance 1"),
        (StandardScaler(with_std=False), "8 of 8 columns with exactly mean 0"),
        (StandardScaler(with_mean=False), "8 of 8 columns with exactly variance 1"),
        (MinMaxScaler(), "8 of 8 columns with exactly minimum 0 and maximum 1"),
        (MinMaxScaler((-1, 1)), "8 of 8 columns with exactly minimum -1 and maximum 1"),
        (MaxAbsScaler(), "8 of 8 columns with exactly largest absolute value 1"),
        (ColumnTransformer([("two", StandardScaler(), [1, 4])], remainder="passthrough"), "2 of 8 columns"),
    ],
)
def test_a_scaler_that_is_fitted_on_private_rows_is_warned_of_and_a_frozen_one_is_not(step, words, dtype, rows) -> None:
    x, y, x_public, _ = (part.astype(dtype) for part in rows)
    probe = make("noisy-gd", n_steps=2, condition="none")
    for private in (probe, make("only-public"), make("zero-shot")):
        (text,) = texts_of(lambda one=private: fitted_on(one, clone(step).fit_transform(x), y), word="scaler")
        assert words in text
        assert text.endswith("freeze it, for instance sklearn.frozen.FrozenEstimator(StandardScaler().fit(X_public))")
    assert texts_of(lambda: make_pipeline(step, probe).fit(x, y), word=words)
    assert not texts_of(
        lambda: make_pipeline(FrozenEstimator(clone(step).fit(x_public)), probe).fit(x, y), word="scaler"
    )
    assert not texts_of(lambda: make_pipeline(step, make("non-private")).fit(x, y), word="scaler")


def fitted_on(probe, x, y):
    return probe.fit(x, y, X_public=x[:9] + 1, y_public=y[:9], text_weights=np.eye(x.shape[1], 3))


def test_rows_that_no_scaler_made_are_not_warned_of(rows) -> None:
    x, y, *_ = rows
    digits = load_digits().data[: len(x)]
    probe = make("noisy-gd", n_steps=2, condition="none")
    pixels = np.random.default_rng(0).integers(0, 256, size=(len(x), 3))
    pixels[0], pixels[1] = 0, 255
    images = ((pixels / 255).astype(np.float32), pixels / 127.5 - 1, np.maximum(pixels, 9) / 255)
    for given in (x, digits, digits / 16, *images, (digits > 7).astype(float), np.ones((len(x), 2))):
        assert not texts_of(lambda one=given: probe.fit(one, y), word="scaler")


def test_rows_that_are_public_in_one_fit_and_private_in_another_are_warned_of(rows) -> None:
    x, y, *_ = rows
    first, second, third = x[:80] + 50, x[80:160] + 50, x[160:] + 50  # rows of no other test
    adamix, floor = make("adamix", n_steps=2), make("only-public")
    word = "a row that one fit uses as public"
    assert not texts_of(lambda: adamix.fit(first, y[:80], X_public=second, y_public=y[80:160]), word=word)
    for probe in (adamix, floor):
        (text,) = texts_of(lambda one=probe: one.fit(third, y[160:], X_public=2 * first, y_public=y[:80]), word=word)
        assert text.startswith("80 public rows had been private in an earlier fit")
    (text,) = texts_of(lambda: make("noisy-gd", n_steps=2).fit(second, y[80:160]), word=word)
    assert text.startswith("80 rows of X had been public in an earlier fit")
    assert not texts_of(lambda: make("non-private").fit(second, y[80:160]), word=word)
    fourth, fifth = x[:80] + 90, x[80:] + 90
    with pytest.raises(PrivacyError, match="delta is"):  # the other way round; a refused fit makes no row public
        make("adamix", n_steps=2, delta=0.5).fit(fifth, y[80:], X_public=fourth, y_public=y[:80])
    assert not texts_of(lambda: adamix.fit(fourth, y[:80], X_public=fifth, y_public=y[80:]), word=word)


def test_classes_and_text_weights_that_cannot_be_used_are_named(rows) -> None:
    with pytest.raises(ParameterError, match="classes is 3; allowed: a list of classes"):
        make("noisy-gd", classes=3).fit(*rows[:2])
    with pytest.raises(ParameterError, match="classes has 1 twice"):
        make("noisy-gd", classes=[0, 1, 1]).fit(*rows[:2])
    text = np.eye(8)[:, :3]
    text[2, 1] = np.nan
    with pytest.raises(DataError, match="text_weights holds NaN at row 2, column 1"):
        make("zero-shot").fit(*rows[:2], text_weights=text)


def test_copies_of_rows_are_warned_of(rows) -> None:
    x, y, *_ = rows
    copied, probe = np.concatenate([x, x[:7]]) - 30, make("noisy-gd", n_steps=2, condition="none")
    labels = np.concatenate([y, y[:7]])
    (text,) = texts_of(lambda: probe.fit(copied, labels), word="equals another")
    assert text.startswith("more than one row of X in 1,000 equals another")
    assert not texts_of(lambda: probe.fit(copied, labels, owners=np.arange(247) % 240), word="equals another")


def test_weights_from_private_labels_are_warned_of(rows) -> None:
    x, y, *_ = rows
    x, y = np.concatenate([x, x[:9] + 3]), np.concatenate([y, np.zeros(9, dtype=int)])
    by_class = dict(enumerate(compute_class_weight("balanced", classes=np.arange(3), y=y)))
    by_row, word = compute_sample_weight("balanced", y), "one over the number of private rows"
    assert texts_of(lambda: make("noisy-gd", n_steps=2).fit(x, y, sample_weight=by_row), word=word)
    assert texts_of(lambda: make("noisy-gd", n_steps=2, class_weight=by_class).fit(x, y), word=word)
    for given in ({0: 1, 1: 2, 2: 2}, None, "balanced"):
        assert not texts_of(lambda one=given: make("noisy-gd", n_steps=2, class_weight=one).fit(x, y), word=word)
    assert not texts_of(lambda: make("non-private", class_weight=by_class).fit(x, y), word=word)
    alike = make("noisy-gd", n_steps=2, class_weight="public")  # public labels in the proportions of the private ones
    assert not texts_of(lambda: alike.fit(x, y, X_public=x + 7, y_public=y), word=word)


def test_groups_are_owners_and_reach_each_fit_of_a_cross_validation(rows) -> None:
    x, y, x_public, y_public = rows
    people = np.arange(240) // 4
    split = PredefinedSplit(people % 3)
    with config_context(enable_metadata_routing=True):
        probe = make("noisy-gd", n_steps=2, condition="none")
        with pytest.raises(UnsetMetadataPassedError, match="groups"):  # never rows in place of people by mistake
            cross_val_score(probe, x, y, cv=split, params={"groups": people})
        probe.set_fit_request(groups=True, X_unlabelled=True)
        given = {"groups": people, "X_unlabelled": x[:100] + 20}
        assert (cross_val_score(probe, x, y, cv=split, params=given) > 0.5).all()
        folds = cross_validate(probe, x, y, cv=split, params=given, return_estimator=True)["estimator"]
        public = {"X_public": x_public + 20, "y_public": y_public}
        probe = make("adamix", n_steps=2).set_fit_request(groups=True, X_public=True, y_public=True)
        scaler = FrozenEstimator(StandardScaler().fit(public["X_public"]))
        pipeline = make_pipeline(scaler, probe, transform_input=["X_public"])
        given = {"groups": people, **public}
        scaled = cross_validate(pipeline, x + 20, y, cv=split, params=given, return_estimator=True)
    assert [fold[-1].privacy_["n_public"] for fold in scaled["estimator"]] == [20, 20, 20]
    assert scaled["test_score"].min() > 0.5
    assert [(fold.privacy_["unit"], fold.privacy_["n_private"]) for fold in folds] == 3 * [("owner", 40)]
    np.testing.assert_array_equal(np.sort(np.concatenate([fold.owners_ for fold in folds])), np.repeat(range(60), 2))
    one, other = (make("noisy-gd", insecure_seed=1).fit(x, y, **{name: people}) for name in ("owners", "groups"))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    with pytest.raises(UsageError, match="owners and groups are both given"):
        one.fit(x, y, owners=people, groups=people)
    with pytest.raises(DataError, match=r"groups has shape \(3,\)"):
        one.fit(x, y, groups=people[:3])
    with pytest.raises(DataError, match="float64 for 240 rows, first NaN at row 7; allowed: one name or whole number"):
        one.fit(x, y, groups=np.where(np.arange(240) == 7, np.nan, people))
    named = np.array([f"p{person}" for person in people], dtype=object)
    refusals = {"p0 ": "in another spelling", "p0;p1": "with several people as the owner", " ": "have the owner ''"}
    refusals["nan"] = "rows have the owner 'nan', as programs write a missing name"
    for wrong, said in {**refusals, None: "1 of 240 rows without a name", True: "1 of 240 rows without a"}.items():
        with pytest.raises(DataError, match=said):
            one.fit(x, y, groups=np.where(np.arange(len(named)) == 0, wrong, named))
    with pytest.raises(DataError, match="rows have the owner 'nan'"):  # a list: NumPy makes text of its NaN
        one.fit(x, y, owners=[*named[1:].tolist(), float("nan")])
    as_bytes = named.astype("S")
    assert list(one.fit(x, y, groups=as_bytes).owners_) == sorted(set(named))
    as_bytes[0] = b"\xff"
    with pytest.raises(DataError, match="groups holds bytes that are no UTF-8 text"):
        one.fit(x, y, groups=as_bytes)


@pytest.mark.parametrize("refit", [True, False])
def test_a_notebook_displays_no_private_attribute(refit, rows) -> None:
    x, y, *_ = rows
    people = np.array([f"patient {row // 2}" for row in range(240)])
    probe = make("noisy-gd", n_steps=1, condition="none", class_counts="yes")
    search = GridSearchCV(probe, {"learning_rate": [0.1]}, cv=KFold(2), refit=refit).fit(x, y, owners=people)
    pipeline = make_pipeline(FunctionTransformer(), clone(probe)).fit(x, y, noisygd__owners=people)
    for shown in (search, pipeline, pipeline[-1], clone(probe).set_params(insecure_seed=1).fit(x, y, owners=people)):
        html = shown._repr_mimebundle_()["text/html"]
        assert not [word for word in ("patient", "owners_", "private_record_losses_") if word in html]
    assert "class_counts_" not in html  # of the seeded probe
    if hasattr(BaseEstimator, "_get_fitted_attr_html"):
        assert "class_counts_" in pipeline._repr_html_()


def test_a_fit_forgets_the_fit_before(rows) -> None:
    x, y, *_ = rows
    probe = make("noisy-gd", class_counts="yes").fit(x, y, owners=np.arange(len(y)))
    assert hasattr(probe, "owners_")
    assert hasattr(probe, "class_counts_")
    probe.set_params(class_counts="no").fit(x[:90], y[:90])
    assert not hasattr(probe, "owners_")
    assert not hasattr(probe, "class_counts_")
    with pytest.raises(DataError, match="labels outside"):
        probe.set_params(classes=["a", "b"]).fit(x, y)
    with pytest.raises(NotFittedError):
        probe.predict(x)


@pytest.mark.parametrize("name", ["X", "y", "owners", "X_public"])
def test_values_under_a_mask_are_refused(name, rows) -> None:
    x, y, x_public, y_public = rows
    given = {"X": x, "y": y, "owners": np.arange(len(y)), "X_public": x_public, "y_public": y_public}
    masked = np.ma.array(given[name], mask=np.zeros(np.shape(given[name])))
    make("noisy-gd").fit(**given | {name: masked})
    masked[1] = np.ma.masked
    with pytest.raises(DataError, match=f"^{name} has masked entries"):
        make("noisy-gd").fit(**given | {name: masked})


def test_values_under_a_mask_are_not_predicted(rows, trained_run: Path) -> None:
    x, y, _, _ = rows
    for probe in (make("noisy-gd").fit(x, y), linprobe.load_run(trained_run)):
        masked = np.ma.masked_greater(x[:, :1] * np.ones(probe.n_features_in_), x[0, 0] - 1)
        with pytest.raises(DataError, match=r"^X has masked entries"):
            probe.predict(masked)


@pytest.mark.parametrize("method", ["noisy-gd", "dp-sgd", "dp-ls"])
def test_a_row_that_becomes_nan_after_it_was_checked_ends_the_fit(method, rows) -> None:
    x, y, _, _ = rows

    class Changing(ArraySource):
        def blocks(self):
            self._x[7, 1] = np.nan
            return super().blocks()

    with pytest.raises(DataError, match="a row holds NaN or infinity"):
        executed(make(method), Changing(x.copy(), y))


def test_complex_numbers_are_refused_without_showing_them(rows) -> None:
    x, y, _, _ = rows
    with pytest.raises(DataError) as refused:
        make("noisy-gd").fit(x + 1j, y)
    assert str(refused.value) == "Complex data not supported: X holds complex numbers; allowed: real ones; give X.real"


@pytest.mark.parametrize("name", ["X_unlabelled", "X_public"])
def test_other_rows_are_called_by_their_name_in_errors(name, rows) -> None:
    x, y, *_ = rows
    labels = {"y_public": y[:100]} if name == "X_public" else {}
    broken = (x[:100] + 7).astype(object)
    for cell, shown in ((np.nan, "NaN"), (-np.inf, "-inf"), ("n/a", "'n/a'"), (None, "None")):
        broken[5, 3] = cell
        for given in (broken, broken.astype(float)) if isinstance(cell, float) else (broken,):
            with pytest.raises(
                DataError, match=f"^{name} holds {shown} at row 5, column 3; allowed: finite numbers; rep"
            ):
                make("non-private").fit(x, y, **{name: given}, **labels)
    for given, words in (
        (x[:100, :3], f"{name} has 3 features, but NonPrivate is expecting 8 features"),
        (x[0], f"{name}: Expected 2D array, got 1D array"),
        (x[:0], f"{name}: Found array with 0 sample"),
        (csr_matrix(x[:100]), f"Sparse data was passed for {name}"),
    ):
        with pytest.raises(DataError, match="^" + words) as caught:
            make("non-private").fit(x, y, **{name: given}, **labels)
        assert "\n" not in str(caught.value)


def test_fitting_again_on_other_classes_forgets_the_first(rows) -> None:
    x, y, *_ = rows
    probe = NonPrivate(classes=[0, 1, 2]).fit(x, y)
    probe.set_params(classes=["0", "1", "2"]).fit(x, y.astype(str))
    assert probe.predict(x).dtype.kind == "U"


def test_predictions_of_a_vote_are_those_of_a_hand_count(rows) -> None:
    x, y, *_ = rows
    probe = fitted("noisy-gd", rows, epsilon=0.05, output="vote", ensemble=4, insecure_seed=3, score_noise=8.0)
    assert probe.coef_.shape == (4, 3, 8)
    assert probe.intercept_.shape == (4, 3)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    scores = np.einsum("nd,vcd->vnc", unit.astype(np.float64), probe.coef_) + probe.intercept_[:, None]
    votes = (scores.argmax(axis=2)[..., None] == np.arange(3)).sum(axis=0)
    found = probe.predict(x)
    np.testing.assert_array_equal(votes[np.arange(len(x)), found], votes.max(axis=1))
    np.testing.assert_array_equal(np.floor(probe.decision_function(x) + 1e-9), votes)
    # a tie goes to the class with the higher summed probability
    odds = np.exp(scores - scores.max(axis=2, keepdims=True))
    summed = (odds / odds.sum(axis=2, keepdims=True)).sum(axis=0)
    tied = (votes == votes.max(axis=1, keepdims=True)).sum(axis=1) > 1
    assert tied.any()
    best = np.where(votes == votes.max(axis=1, keepdims=True), summed, -1).argmax(axis=1)
    np.testing.assert_array_equal(found, best)
    assert (found == y).mean() > 0.4


def test_a_vote_of_two_classes_is_positive_for_the_second(rows) -> None:
    x, y, *_ = rows
    two = y < 2
    probe = NoisyGD(epsilon=5.0, classes=["no", "yes"], output="vote", ensemble=5).fit(
        x[two], np.array(["no", "yes"])[y[two]]
    )
    scores = probe.decision_function(x[two])
    assert scores.shape == (two.sum(),)
    np.testing.assert_array_equal(probe.predict(x[two]), np.where(scores > 0, "yes", "no"))
    assert (probe.predict(x[two]) == np.array(["no", "yes"])[y[two]]).mean() > 0.9


@pytest.mark.parametrize("name", METHODS)
def test_constructors_show_every_option_of_their_method_and_refuse_others(name) -> None:
    shown = inspect.signature(ESTIMATORS[name]).parameters
    options = {option.name: option.default for option in fields(METHODS[name].options)}
    assert {option: shown[option].default for option in options} == options
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in shown.values())
    assert ("sampling_rate" in shown) == METHODS[name].samples
    assert set(make(name).get_params()) == set(shown)
    with pytest.raises(TypeError, match="dropout"):
        make(name, dropout=0.5)
    if METHODS[name].spends:
        with pytest.raises(TypeError, match="epsilon"):
            ESTIMATORS[name](classes=[0, 1])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sampling_rate": 0.0}, ParameterError),
        ({"sampling_rate": 1.1}, ParameterError),
        ({"accountant": "gdp"}, ParameterError),
        ({"accountant": "moments"}, ParameterError),
        ({"optimizer": "lbfgs"}, ParameterError),
        ({"output": "vote", "ensemble": 21}, ParameterError),
        ({"init": "no/such/run"}, ParameterError),
        ({"init": "run"}, ParameterError),
    ],
)
def test_bad_parameters_of_sampled_methods_are_refused_in_one_line(changes, error, rows) -> None:
    with pytest.raises(error) as caught:
        fitted("dp-sgd", rows, **{"accountant": "rdp", "n_steps": 20, "sampling_rate": 0.5, **changes})
    assert "\n" not in str(caught.value)


def test_records_of_a_sampled_fit_lose_at_most_what_the_run_does(rows) -> None:
    quick = {"accountant": "rdp", "n_steps": 20, "sampling_rate": 0.5, "clip_norm": 0.7}
    probe = fitted("dp-sgd", rows, **quick)
    epsilon = probe.privacy_["epsilon"]
    losses = probe.private_record_losses_.epsilon(1e-5)
    assert losses.shape == (240,)
    assert 0 < losses.min() < 0.9 * losses.max() <= 0.9 * epsilon * (1 / 0.9)
    unobserved = fitted("dp-sgd", rows, **quick, per_record=False)
    assert unobserved.private_record_losses_.mu.shape == (0,)
    assert unobserved.privacy_["epsilon"] == epsilon


@pytest.mark.parametrize("method", ["noisy-gd", "dp-sgd"])
def test_losses_at_another_delta_are_bounded_by_the_epsilon_at_that_delta(rows, method) -> None:
    options = {"sampling_rate": 0.5} if method == "dp-sgd" else {"condition": "none"}
    probe = fitted(method, rows, n_steps=1, clip_norm=1e-3, **options)  # every record loses what the run does
    releases = [Releases(**one) for one in probe.privacy_["releases"]]
    losses = probe.private_record_losses_
    for delta in (1e-9, 1e-5, 1e-3):
        worst = choose_accountant("auto", releases).epsilon(releases, delta)
        for own in (losses.epsilon(delta), losses.epsilon(delta, worst_case=0.1)):
            assert own.max() == pytest.approx(worst, rel=1e-6)
    for delta in (0, 1, -1.0):
        with pytest.raises(ParameterError, match="delta is"):
            losses.epsilon(delta)


def test_a_run_folder_starts_an_estimator_and_is_charged(trained_run, private_file, features_file, cli) -> None:
    first = cli("train", private_file, "--method", "noisy-gd", "--eps", 3, "--steps", 5).stdout.strip()
    with FeatureFile(features_file) as features:
        x = np.concatenate([block for block, _ in features.blocks("train")])
        y = features.labels("train")
        public = np.concatenate([block for block, _ in features.blocks("public")]), features.labels("public")
    probe = NoisyGD(epsilon=5.0, classes=range(4), init=first).fit(x, y)
    assert [release["purpose"] for release in probe.privacy_["releases"]] == ["inherited", "inherited", "gradient"]
    assert 4.99 < probe.privacy_["epsilon"] <= 5
    with pytest.raises(PrivacyError, match="inherited releases alone"):
        NoisyGD(epsilon=2.0, classes=range(4), init=first).fit(x, y)
    with pytest.raises(DataError, match="shape"):
        NoisyGD(epsilon=5.0, classes=range(5), init=first).fit(x, y)
    # arrays cannot be compared with the public rows of a first run
    with pytest.raises(PrivacyError, match="had public rows that are not"):
        NoisyGD(epsilon=5.0, classes=range(4), init=str(trained_run)).fit(x, y, *public)


@pytest.mark.parametrize("name", ["X_public", "X_unlabelled"])
def test_rows_that_are_private_in_the_first_run_are_not_public(name, private_file, tmp_path, cli) -> None:
    file = Path(shutil.copy(private_file, tmp_path / "first.h5"))
    words = ("--method", "noisy-gd", "--eps", 1, "--centre", "none", "--intercept", 1, "--steps", 5)
    first = cli("train", file, *words).stdout.strip()
    with FeatureFile(file) as features:
        x, y = np.concatenate([block for block, _ in features.blocks("train")]), features.labels("train")
    probe = NoisyGD(epsilon=5.0, classes=range(4), init=first, centre="none", intercept=1)
    others = np.random.default_rng(0).permutation(x.T).T + 0.5
    public = {name: np.concatenate([others[:100], 3 * x[7:8]])}
    public |= {"y_public": y[:101]} if name == "X_public" else {}
    with pytest.raises(PrivacyError, match=f"^{name} holds training rows of .*first.h5, .*{first} come from; "):
        probe.fit(others[100:], y[100:], **public)
    file.unlink()
    with pytest.warns(PrivacyWarning, match=f"first.h5 is not here, so rows of {name} are not compared"):
        probe.fit(others[100:], y[100:], **public)


def test_a_run_folder_starts_an_estimator_whose_classes_are_in_another_order(private_file, cli) -> None:
    words = ("--method", "noisy-gd", "--eps", 8, "--condition", "none")
    first = linprobe.load_run(cli("train", private_file, *words).stdout.strip())
    with FeatureFile(private_file) as features:
        x, y = np.concatenate([block for block, _ in features.blocks("train")]), features.labels("train")
    for order in (np.arange(4), np.array([2, 0, 3, 1])):
        classes = first.classes_[order]
        probe = NoisyGD(
            epsilon=8.1, classes=classes, init=first.folder, condition="none", learning_rate=1e-9, n_steps=1
        )
        shares = probe.fit(x, first.classes_[y]).predict_proba(x)
        np.testing.assert_allclose(shares, first.predict_proba(x)[:, order], atol=1e-4)


def started(folder, x, y, classes) -> NoisyGD:
    """An estimator with nothing but the weights of a run."""
    probe = NoisyGD(epsilon=8.1, classes=classes, init=folder, condition="none", learning_rate=1e-9, n_steps=1)
    return probe.fit(x, y)


def test_a_run_starts_an_estimator_by_position_only_if_no_name_is_shared(tmp_path: Path, cli) -> None:
    y = np.arange(90) % 3
    x = (3 * np.eye(3, 6)[y] + np.random.default_rng(0).normal(size=(90, 6))).astype(np.float32)
    pandas = pytest.importorskip("pandas")
    for file, names in (("named", ["cat", "dog", "owl"]), ("numbered", ["0", "1", "2"])):
        frame = pandas.DataFrame(x, columns=list("abcdef")).assign(label=np.array(names)[y])
        frame.to_csv(tmp_path / f"{file}.csv", index=False)
        classes = ("--classes", ",".join(names))
        for words in (
            ("import", tmp_path / f"{file}.csv", *classes, "--out", tmp_path / f"{file}.h5"),
            ("train", tmp_path / f"{file}.h5", "--method", "noisy-gd", "--eps", "8", "--out", tmp_path / file),
        ):
            assert cli(*words).status == 0
    for folder, classes in (("named", [10, 11, 12]), ("numbered", [2.0, 0.0, 1.0])):
        expected = linprobe.load_run(tmp_path / folder).predict_proba(x)
        order = [0, 1, 2] if folder == "named" else [2, 0, 1]
        labels = y + 10 if folder == "named" else y.astype(float)
        shares = started(tmp_path / folder, x, labels, classes).predict_proba(x)
        np.testing.assert_allclose(shares, expected[:, order], atol=1e-4)
    with pytest.raises(DataError, match=r"has no class 'Cat'; allowed: cat, dog, owl"):
        started(tmp_path / "named", x, np.array(["Cat", "dog", "owl"])[y], ["owl", "Cat", "dog"])
    features = frame[list("fedcba")]
    with pytest.raises(DataError, match=r"^X has the columns f, e, d, .*trained with a, b, c"):
        started(tmp_path / "named", features, np.array(["cat", "dog", "owl"])[y], ["cat", "dog", "owl"])


@pytest.mark.parametrize("classes", [[[0, 1, 2]], ["cat", None], [[0], [1, 2]]])
def test_classes_without_an_order_are_refused(rows, classes) -> None:
    with pytest.raises(ParameterError, match=r"^classes is \[.*allowed: a name or number for each class"):
        make("noisy-gd", classes=classes).fit(*rows[:2])


@pytest.mark.parametrize(("kind", "most"), [("float64", 2**53), ("float32", 2**24)])
def test_labels_that_floats_round_are_refused(rows, kind, most) -> None:
    x, y, *_ = rows
    with pytest.raises(DataError, match=rf"^y has the label .* of type {kind}; allowed: below {most},"):
        make("noisy-gd", classes=[most + one for one in range(3)]).fit(x, (y + most).astype(kind))


def test_classes_that_floats_round_are_refused(rows) -> None:
    x, y, *_ = rows
    with pytest.raises(DataError, match=r"^classes has 9007199254740992 at place 0, .*; allowed: below"):
        make("noisy-gd", classes=[2.0**53, 2.0**53 + 2, 5.0]).fit(x, y.astype(np.int64) + 2**53)


def test_a_large_delta_is_warned_of(rows) -> None:
    x, y, *_ = rows
    with pytest.warns(PrivacyWarning, match=r"delta 0.002 is 0.48/N for 240 private rows.*try delta=4e-04$"):
        make("noisy-gd", delta=2e-3, n_steps=1).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        make("noisy-gd", delta=4e-4, n_steps=1).fit(x + 1, y)  # other rows: the first were fitted before
        make("non-private").fit(x + 2, y)


def refit_warnings(caught) -> list[str]:
    return [str(one.message) for one in caught if issubclass(one.category, PrivacyWarning)]


def together(n_fits: int, probe) -> str:
    """The epsilon of several fits like `probe`, as a warning states it."""
    releases = [Releases(**release) for release in probe.privacy_["releases"]]
    return rounded_up(GAUSSIAN.epsilon(n_fits * releases, 1e-5))


def test_a_warning_that_is_an_error_leaves_the_fit(rows) -> None:
    x, y, *_ = rows
    make("noisy-gd", delta=4e-4, n_steps=1).fit(x + 3, y)
    again = make("noisy-gd", delta=4e-4, n_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        with pytest.raises(PrivacyWarning, match="2 fits of this process"):
            again.fit(x + 3, y)
    assert again.predict(x + 3).shape == y.shape
    assert again.privacy_["epsilon"] > 0


def test_a_second_fit_of_the_same_rows_is_warned_of(rows, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, *public = rows
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        probe = make("noisy-gd", n_steps=2, condition="none").fit(x[:120], y[:120])
        make("noisy-gd", n_steps=2).fit(x[120:], y[120:])  # other rows
        for _ in range(2):
            make("non-private").fit(x + 50, y)
            make("noisy-gd", n_steps=2, insecure_seed=1).fit(x + 50, y)
            make("only-public").fit(x, y, *public)
            make("zero-shot").fit(x, y, text_weights=np.eye(8, 3))
    with pytest.warns(
        PrivacyWarning, match=f"in 2 fits .* together cost epsilon {together(2, probe)} at delta 1e-05 for a record;"
    ):
        clone(probe).fit(x[:120].astype(np.float32), 2 - y[:120])
    with pytest.warns(PrivacyWarning, match="in 3 fits"):
        clone(probe).fit(4 * x[:119], y[:119])  # training divides rows by their norms
    with pytest.warns(PrivacyWarning, match="in 3 fits"):
        probe.fit(np.concatenate([x[119:120], -x]), np.append(y[119], y))
    with monkeypatch.context() as patch:  # a fit that fails has released something too
        patch.setattr("linprobe.training.execute.check_weights", mock.Mock(side_effect=DivergedError("diverged")))
        with pytest.warns(PrivacyWarning, match="in 4 fits"), pytest.raises(DivergedError):
            probe.fit(x[119:], y[119:])
    with pytest.warns(PrivacyWarning, match="in 5 fits"):
        probe.fit(x[119:], y[119:])
    assert linprobe.PrivacyWarning is PrivacyWarning


@pytest.mark.parametrize("bare", [make("non-private"), make("noisy-gd", n_steps=1, insecure_seed=1)], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_a_fit_without_privacy_before_or_after_a_private_one_is_warned_of(bare, first, rows) -> None:
    x, y, *_ = rows
    probe = make("noisy-gd", n_steps=2, condition="none")
    both = [clone(bare), clone(probe)] if first else [clone(probe), clone(bare)]
    assert not texts_of(lambda: both[0].fit(x[:90], y[:90]))
    assert not texts_of(lambda: both[0].fit(x[90:], y[90:]))  # other rows
    assert texts_of(lambda: both[1].fit(x[80:100], y[80:100])) == [MIXED]
    (text,) = texts_of(lambda: clone(probe).fit(x[80:], y[80:]))
    assert text.startswith(
        f"{MIXED}; some were in 2 private fits of this process, which together cost epsilon "
        f"{together(2, probe.fit(x + 9, y))} at delta 1e-05 for a record; the figure holds unless private rows"
    )
    assert "\n" not in text


def test_fits_in_threads_are_warned_of_and_leave_no_filter_that_silences_all(rows) -> None:
    x, y, *_ = rows
    probe = make("noisy-gd", n_steps=1, condition="none")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: clone(probe).fit(x, y), range(24)))
        assert ("ignore", None, Warning, None, 0) not in warnings.filters
    assert sum("fits of this process" in text for text in refit_warnings(caught)) == 23


@pytest.mark.parametrize("labels", [np.arange(240), np.full(240, 1e300)])
def test_no_warning_depends_on_private_labels_and_no_filter_hides_one(labels, rows) -> None:
    seen = []

    def check(y) -> None:
        seen.append(list(warnings.filters))
        check_classification_targets(y)

    with (
        mock.patch("linprobe.api.estimators.check_classification_targets", check),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with pytest.raises(ValueError, match=r"labels outside|Unknown label type"):
            make("noisy-gd").fit(rows[0], labels)
    assert not caught
    assert seen == [before]


def test_a_fit_by_record_after_one_by_owner_is_warned_of_with_the_figure_of_a_record(rows) -> None:
    x, y, *_ = rows
    probe = make("noisy-gd", n_steps=2, condition="none").fit(x, y, owners=np.arange(240) // 3)
    halved = [
        Releases(**(one | {"noise_multiplier": one["noise_multiplier"] / 2})) for one in probe.privacy_["releases"]
    ]
    alone = [Releases(**one) for one in probe.privacy_["releases"]]
    epsilon = rounded_up(GAUSSIAN.epsilon([*halved, *alone], 1e-5))
    with pytest.warns(
        PrivacyWarning, match=f"cost epsilon {epsilon} at delta 1e-05 for a record; no epsilon covers a p"
    ):
        clone(probe).fit(x, y)


def test_cross_validation_and_searches_are_warned_of_with_what_they_cost(rows) -> None:
    x, y, *_ = rows
    probe = make("noisy-gd", n_steps=2, condition="none", delta=1e-5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_val_score(probe, x, y, cv=KFold(4))
    alone = make("noisy-gd", n_steps=2, condition="none").fit(x + 100, y)
    texts = refit_warnings(caught)
    assert len(texts) == 3
    assert f"in 3 fits of this process, which together cost epsilon {together(3, alone)} at" in texts[-1]
    for chosen_by_private_rows in ("StratifiedKFold", "GroupKFold"):
        assert chosen_by_private_rows in texts[-1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GridSearchCV(probe, {"learning_rate": [0.01, 0.1]}, cv=KFold(2)).fit(x + 50, y)
    # a row is in one of two folds for each of two settings, and in the last fit on all rows
    assert (
        f"in 3 fits of this process, which together cost epsilon {together(3, alone)} at" in refit_warnings(caught)[-1]
    )


@pytest.mark.parametrize(
    ("changes", "purposes"),
    [
        ({}, {"gradient"}),
        ({"centre": "private"}, {"mean", "gradient"}),
        ({"feature_epsilon_share": 0.05}, {"mean", "gradient"}),
        (None, {"mean", "gradient"}),
    ],
)
def test_dpsgd_f_pays_for_a_mean_only_if_public_rows_do_not_give_one(changes, purposes, rows) -> None:
    x, y, *_ = rows
    few = {"n_steps": 4, "accountant": "rdp"}
    probe = make("dpsgd-f", **few).fit(x, y) if changes is None else fitted("dpsgd-f", rows, **few, **changes)
    assert {release["purpose"] for release in probe.privacy_["releases"]} == purposes


def test_noise_of_a_large_epsilon_leaves_scikit_learns_solution() -> None:
    g, n_rows, n_classes = np.random.default_rng(1), 20000, 5
    y = g.integers(0, n_classes, n_rows)
    x = normalise_rows(g.normal(size=(n_classes, 6))[y] + g.normal(size=(n_rows, 6)))
    plain = {"init": "zero", "reference": "zero", "weight_decay": 1.0, "output": "last", "intercept": 0.0}
    plain |= {"condition": "none", "per_record": False, "clip_norm": 1.5, "n_steps": 200, "learning_rate": 1e-3}
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=2000).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # of a second fit on the same rows
        ours = {epsilon: NoisyGD(epsilon=epsilon, classes=range(n_classes), **plain).fit(x, y) for epsilon in (1, 100)}
    apart = {
        epsilon: np.linalg.norm(probe.coef_ - theirs.coef_) / np.linalg.norm(theirs.coef_)
        for epsilon, probe in ours.items()
    }
    assert apart[100] < 0.02 < 0.08 < apart[1]  # no gradient is clipped: what is left is noise
    assert np.mean(ours[100].predict(x) == theirs.predict(x)) > 0.995


def test_rows_that_are_not_centred_get_a_bias(rows) -> None:
    x, y, *_ = rows
    assert make("noisy-gd").fit(x, y).intercept_.any()
    assert not make("noisy-gd", intercept=0.0, condition="none").fit(x, y).intercept_.any()
