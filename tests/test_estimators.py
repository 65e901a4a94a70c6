"""The scikit-learn face: its conventions, declared classes, the guarantee it carries."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import linprobe
from linprobe.errors import DataError, LinprobeError, ParameterError, PrivacyError, UsageError
from linprobe.estimators import ESTIMATORS, NoisyGD, NonPrivate
from linprobe.methods import METHODS


class _ReadsClassesOffLabels:
    """For scikit-learn's checks only, which declare no classes: what linprobe itself must never do."""

    def _declared_classes(self, y, y_public):
        classes = np.unique(y)
        if len(classes) < 2:
            raise ParameterError("classes has 1 class; allowed: 2 or more")
        return classes


class CheckedNoisyGD(_ReadsClassesOffLabels, NoisyGD):
    pass


class CheckedNonPrivate(_ReadsClassesOffLabels, NonPrivate):
    pass


# The seed is there because two private fits differ on purpose, which the checks on repeated fits cannot know.
@parametrize_with_checks(
    [CheckedNoisyGD(epsilon=50.0, delta=1e-3, insecure_seed=0), CheckedNonPrivate()],
)
def test_scikit_learns_own_checks(estimator, check) -> None:
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


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_method_has_an_estimator_that_fits_predicts_and_clones(name, rows) -> None:
    probe = fitted(name, rows)
    assert probe.predict(rows[0]).shape == (240,)
    assert probe.decision_function(rows[0]).shape == (240, 3)
    assert clone(probe).get_params() == probe.get_params()
    assert name == "zero-shot" or (probe.predict(rows[0]) == rows[1]).mean() > 0.8
    assert set(ESTIMATORS) == set(METHODS)
    assert type(probe).__name__ in linprobe.__all__


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.spends])
def test_the_guarantee_never_exceeds_what_was_asked(name, rows) -> None:
    for epsilon in (0.3, 2.0):
        privacy = fitted(name, rows, epsilon=epsilon).privacy_
        assert epsilon * 0.999 <= privacy["epsilon"] <= privacy["epsilon_target"] == epsilon
        assert privacy["gdp_mu"] == pytest.approx(privacy["steps"] ** 0.5 / privacy["noise_multiplier"], abs=1e-12)
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
    assert probe.private_per_instance_mu_.shape == (260,)
    assert probe.privacy_["n_public"] == 0


def test_classes_are_never_read_off_private_labels(rows) -> None:
    x, y, x_public, y_public = rows
    with pytest.raises(ParameterError, match="classes is None"):
        NoisyGD(epsilon=1.0).fit(x, y)
    with pytest.raises(DataError, match="outside the 2 declared classes"):
        NoisyGD(epsilon=1.0, classes=[0, 1]).fit(x, y)
    np.testing.assert_array_equal(
        NoisyGD(epsilon=1.0).fit(x, y, X_public=x_public, y_public=y_public).classes_, [0, 1, 2]
    )
    probe = NoisyGD(epsilon=1.0, classes=["a", "b", "c", "never seen"]).fit(x, np.array(["a", "b", "c"])[y])
    assert probe.coef_.shape == (4, 8)


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
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.8


def test_fitting_again_on_other_classes_forgets_the_first(rows) -> None:
    x, y, *_ = rows
    probe = NonPrivate(classes=[0, 1, 2]).fit(x, y)
    probe.set_params(classes=["0", "1", "2"]).fit(x, y.astype(str))
    assert probe.predict(x).dtype.kind == "U"
