"""Methods one by one: each computes what its paper states."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from linprobe.data.blocks import normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.errors import LinprobeError
from linprobe.gradients.loss import best_scale, loss_and_gradient, loss_gradient_and_norms, minimise
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS, Problem, Run, Schedule, text_scale
from linprobe.methods._base import Iterates
from linprobe.methods._descent import TEXT_SPREAD, TRAINED_TEXT_SCALE, score_noise, spread, start_strength, step_size
from linprobe.methods._directions import top_left_subspace
from linprobe.methods.adamix import AdaMixOptions
from linprobe.methods.noisy_gd import NoisyGDOptions
from tests.conftest import mostly_nightly
from tests.methods.test_contract import C, D, SpyMechanism, fit, problem
from tests.methods.test_subspace import projected


def noiseless(steps: int) -> Run:
    return Run(Schedule(steps, 0.0, 1.0), GaussianMechanism(NoiseSource(0), lambda event: None), lambda: None)


@pytest.mark.parametrize("n_classes", mostly_nightly([5, 2], (5).__eq__))
def test_zero_noise_and_infinite_clip_reach_scikit_learns_optimum(n_classes) -> None:
    g = np.random.default_rng(1)
    y = g.integers(0, n_classes, 300)
    x = normalise_rows((g.normal(size=(n_classes, 6))[y] + g.normal(size=(300, 6))).astype(np.float32))
    options = NoisyGDOptions(init="zero", clip_norm=np.inf, learning_rate=0.02, weight_decay=1.0, output="last")
    data = Problem(6, n_classes, private=ArrayRows(x, y))
    ours = METHODS["noisy-gd"].fit(data, options, noiseless(3000)).weights
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=5000).fit(x.astype(np.float64), y).coef_
    if n_classes == 2:
        # scikit-learn's binary weights w stand for scores (-w/2, w/2) at twice the penalty
        theirs = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=5000).fit(x.astype(np.float64), y)
        np.testing.assert_allclose(ours[:, 1] - ours[:, 0], theirs.coef_[0], atol=1e-4)
    else:
        np.testing.assert_allclose(ours, theirs.T, atol=1e-4)


def test_public_warm_start_is_scikit_learns_optimum() -> None:
    g = np.random.default_rng(2)
    y = g.integers(0, 3, 60)
    x = normalise_rows(g.normal(size=(60, 5)).astype(np.float32))
    data = Problem(5, 3, public=ArrayRows(x, y))
    ours = fit(METHODS["only-public"], {"weight_decay": 0.1}, data, SpyMechanism()).weights
    theirs = LogisticRegression(C=10, fit_intercept=False, tol=1e-10, max_iter=9999).fit(x.astype(np.float64), y).coef_
    np.testing.assert_allclose(ours, theirs.T, atol=2e-3)


def test_one_noisy_gd_step_is_the_formula() -> None:
    data = problem()
    options = NoisyGDOptions(init="zero", clip_norm=100, learning_rate=0.3, weight_decay=0.7, output="last")
    weights = METHODS["noisy-gd"].fit(data, options, noiseless(1)).weights
    np.testing.assert_allclose(weights, -0.3 * loss_and_gradient(data.private, np.zeros((D, C)))[1], atol=1e-4)


def test_adamix_clips_at_the_quantile_of_public_norms_and_counts_the_public_gradient() -> None:
    data, spy = problem(), SpyMechanism()
    options = AdaMixOptions(init="zero", learning_rate=0.1, output="last", clip_quantile=0.8)
    run = Run(Schedule(1, 5.0, 0.2), spy, lambda: None)
    weights = METHODS["adamix"].fit(data, options, run).weights
    zeros = np.zeros((D, C))
    _, gradient, (norms,) = loss_gradient_and_norms(data.public, zeros)
    assert spy.events[0].sensitivity == pytest.approx(np.quantile(norms, 0.8))
    np.testing.assert_allclose(weights, -0.1 * (spy.values[0] + gradient), atol=1e-6)


@pytest.mark.parametrize("subspace", ["none", "gradient"])
def test_adamix_says_that_training_diverged(subspace: str) -> None:
    given = {"init": "zero", "subspace": subspace, "learning_rate": 1e9, "weight_decay": 1e9, "reference": "zero"}
    with (
        pytest.raises(LinprobeError, match="training diverged"),
        np.errstate(over="ignore", invalid="ignore"),
        warnings.catch_warnings(action="ignore"),
    ):
        METHODS["adamix"].fit(problem(), AdaMixOptions(**given), noiseless(30))


@pytest.mark.parametrize("method", ["noisy-gd", "adamix", "dp-sgd", "ppgd"])
def test_weight_decay_alone_does_not_overshoot(method: str) -> None:
    options = METHODS[method].options
    weights = METHODS[method].fit(problem(), options(weight_decay=1e6), noiseless(30)).weights
    assert np.linalg.norm(weights) < 100


def test_adamix_release_lies_in_the_public_gradients_subspace() -> None:
    data, spy = problem(), SpyMechanism()
    history = fit(METHODS["adamix"], {"init": "zero", "subspace": "gradient", "subspace_dim": 2}, data, spy).history
    _, singular, _ = np.linalg.svd(spy.values[0])
    assert (singular > 1e-3).sum() == 2
    subspace = top_left_subspace(loss_and_gradient(data.public, np.zeros((D, C)))[1], 2, C - 1)
    np.testing.assert_allclose(projected(subspace, spy.values[0]), spy.values[0], atol=1e-3)
    assert all(0 < step["captured_energy"] <= 1 for step in history)


def test_adamix_survives_a_perfectly_fitted_public_set() -> None:
    data = problem()
    few = Problem(D, C, private=data.private, public=ArrayRows(data.public.x[:C], data.public.y[:C]))
    spy = SpyMechanism()
    weights = fit(METHODS["adamix"], {"weight_decay": 1e-9}, few, spy).weights
    assert np.isfinite(weights).all()
    assert spy.events[0].sensitivity == 0.02


def test_adamix_stays_on_course_when_private_rows_fit_the_public_ones_perfectly() -> None:
    # 20,000 private rows per class drive the public loss to zero; without a floor under tau_t the steps diverge
    g = np.random.default_rng(0)
    centres = g.normal(size=(C, 60))
    y = np.arange(4 * 20_000 + 8) % C
    x = normalise_rows((centres[y] + 0.5 * g.normal(size=(len(y), 60))).astype(np.float32))
    data = Problem(60, C, private=ArrayRows(x[8:], y[8:]), public=ArrayRows(x[:8], y[:8]))
    schedule = Schedule(50, 50**0.5 / 0.5, 0.5)
    run = Run(schedule, GaussianMechanism(NoiseSource(0), lambda event: None), lambda: None)
    weights = METHODS["adamix"].fit(data, AdaMixOptions(), run).weights
    assert ((x @ weights).argmax(axis=1) == y).mean() > 0.99


def test_ppgd_clips_at_the_norm_of_the_average_public_gradient_and_ends_on_the_public_rows() -> None:
    data, spy = problem(), SpyMechanism()
    weights = fit(METHODS["ppgd"], {}, data, spy).weights
    average = loss_and_gradient(data.public, np.zeros((D, C)))[1] / data.public.n_rows
    assert spy.events[0].sensitivity == pytest.approx(np.linalg.norm(average))
    assert loss_and_gradient(data.public, weights)[0] < 0.5


def test_ppgd_ends_on_the_private_model_if_a_class_has_no_public_row() -> None:
    data, spy = problem(), SpyMechanism()
    of_two = np.asarray(data.public.y) < C - 1
    few = Problem(D, C, private=data.private, public=ArrayRows(data.public.x[of_two], data.public.y[of_two]))
    options = {"output": "last", "learning_rate": 0.1, "weight_decay": 1e-9}
    weights = fit(METHODS["ppgd"], options, few, spy).weights
    np.testing.assert_allclose(weights, -0.1 * np.sum(spy.values, axis=0), atol=1e-5)


def test_fully_private_is_noisy_gd_from_zero() -> None:
    fully = fit(METHODS["fully-private"], {}, problem(), SpyMechanism()).weights
    plain = fit(METHODS["noisy-gd"], {"init": "zero"}, problem(), SpyMechanism()).weights
    np.testing.assert_array_equal(fully, plain)


def test_ngd_counts_public_rows_at_every_step_and_noisy_gd_does_not() -> None:
    with_public = fit(METHODS["ngd"], {"init": "zero"}, problem(), SpyMechanism()).weights
    without = fit(METHODS["noisy-gd"], {"init": "zero"}, problem(), SpyMechanism()).weights
    assert np.linalg.norm(with_public - without) > 0.01


def test_zero_shot_is_the_text_and_text_starts_noisy_gd() -> None:
    data = problem()
    np.testing.assert_array_equal(fit(METHODS["zero-shot"], {}, data, SpyMechanism()).weights, data.text_weights)
    started = fit(METHODS["noisy-gd"], {"init": "text", "learning_rate": 1e-9}, data, SpyMechanism()).weights
    np.testing.assert_allclose(started, data.text_weights, atol=1e-4)


def test_text_counts_for_less_where_private_rows_say_more() -> None:
    encodings = np.eye(400, 10)
    scale = text_scale(encodings, 0.1, 1000)
    rows = normalise_rows(np.random.default_rng(0).standard_normal((2000, 400)))
    assert (rows @ encodings * scale).std(axis=1).mean() == pytest.approx(TEXT_SPREAD, rel=0.1)
    assert text_scale(encodings, 0.1, 1500) == scale
    assert text_scale(encodings, 0.1, 3000) == pytest.approx(scale / 2)
    assert text_scale(encodings, 0.2, 3000) == pytest.approx(scale / 4)
    assert text_scale(encodings + 3, 0.1, 1000) == pytest.approx(scale)  # what all classes share moves no score apart
    assert text_scale(encodings, None, 1000) == text_scale(np.ones((400, 10)), 0.1, 1000) == TRAINED_TEXT_SCALE


def with_useful_text() -> Problem:
    """The problem with class means in the place of text weights."""
    data = problem()
    rows = data.private_rows
    means = np.stack([rows.x[rows.y == c].mean(axis=0) for c in range(C)], axis=1)
    return replace(data, text_weights=means / np.linalg.norm(means, axis=0))


@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_text_fits_public_rows_best_at_its_scale(loss) -> None:
    data = with_useful_text()
    scales = np.linspace(0, 20, 2001)
    losses = np.array([loss_and_gradient(data.public, scale * data.text_weights, loss)[0] for scale in scales])
    for deviation in (1.0, 1e9):
        found = best_scale(data.public, data.text_weights, spread=deviation, most=20, loss=loss)
        assert found == pytest.approx(scales[np.argmin(losses + (scales / deviation) ** 2 / 2)], abs=0.02)
        assert found > 0.3
        assert best_scale(data.public, -data.text_weights, spread=deviation, most=20, loss=loss) < 1e-3


def test_public_rows_and_text_weights_start_together() -> None:
    data = with_useful_text()
    without = replace(data, text_weights=None)
    towards = best_scale(data.public, data.text_weights, spread=10, most=100) / 2 * data.text_weights
    together = minimise(data.public, towards, weight_decay=0.01, reference=towards)
    for name in ("only-public", "noisy-gd"):
        still = {"learning_rate": 1e-300} if name == "noisy-gd" else {}
        started = fit(METHODS[name], still, data, SpyMechanism()).weights
        np.testing.assert_allclose(started, together, atol=1e-6)
        alone = fit(METHODS[name], still, without, SpyMechanism()).weights
        np.testing.assert_array_equal(
            fit(METHODS[name], {**still, "init": "public"}, data, SpyMechanism()).weights, alone
        )
        assert np.linalg.norm(together - alone) > 0.1


def test_non_private_learns_from_all_rows() -> None:
    data = problem()
    weights = fit(METHODS["non-private"], {}, data, SpyMechanism()).weights
    accuracy = ((data.private.x @ weights).argmax(axis=1) == data.private.y).mean()
    public = fit(METHODS["only-public"], {}, data, SpyMechanism()).weights
    assert accuracy > ((data.private.x @ public).argmax(axis=1) == data.private.y).mean()


def test_noise_of_the_whole_run_in_a_score_is_what_was_asked_for() -> None:
    # no data at all: W after T steps is pure noise with std score_noise in every coordinate
    empty = Problem(40, 50, private=ArrayRows(np.zeros((1, 40), np.float32), [0]))
    options = NoisyGDOptions(init="zero", score_noise=0.7, weight_decay=1e-9, output="last")
    schedule = Schedule(30, 12.0, 30**0.5 / 12.0)
    mechanism = GaussianMechanism(NoiseSource(4), lambda event: None)
    weights = METHODS["noisy-gd"].fit(empty, options, Run(schedule, mechanism, lambda: None)).weights
    assert weights.std() == pytest.approx(0.7, rel=0.08)


def test_a_given_learning_rate_or_score_noise_is_used_as_it_is() -> None:
    schedule, data = Schedule(9, 3.0, 1.0), problem()
    assert step_size(NoisyGDOptions(learning_rate=0.25), data, schedule, informed=True)(0.5) == 0.25
    eta = step_size(NoisyGDOptions(score_noise=1.5), data, schedule, informed=True)(0.5)
    assert eta == pytest.approx(1.5 / (9 * 0.5))


@pytest.mark.parametrize(
    ("n_rows", "mu", "facts", "expected"),
    [
        (320, 0.1, {"informed": True}, 8 / 15),  # g = 8
        (320, 0.1, {"informed": False}, 1.0),
        (8000, 1.0, {"informed": True}, 3 * 50 / 2000),  # g = 2000
        (8000, 1.0, {"informed": False, "damped": True}, 4.0),
        (3200, 0.5, {"informed": False, "damped": True}, 400 / 300),
        (3200, 0.5, {"informed": False, "damped": True, "centred": True}, 1.0),
        (2400, 2.0, {"informed": False, "damped": True, "centred": True}, 10_000 / 8 / 1200),
        (16000, 1.0, {"informed": False, "damped": True, "centred": True, "momentum": 7 / 9}, 1.0),
        (80000, 5.0, {"informed": True, "centred": True, "momentum": 7 / 9}, 0.1),  # 10,000 / g
        (80000, 5.0, {"informed": True, "centred": True}, 0.1 / 8),
        (80000, 5.0, {"informed": True, "preconditioned": True}, 1.0),
        (8000, 1.0, {"informed": True, "momentum": 0.5}, 3 * 50 * 3 / 2000),
        (4000, 1.0, {"informed": True, "centred": True, "row_norm": 0.4}, 2.5),
        (320, 0.1, {"informed": True, "public": 2 * np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]}, 1.0),
    ],
)
def test_the_default_score_noise_follows_the_budget_and_the_rows_of_a_class(n_rows, mu, facts, expected) -> None:
    rows = ArrayRows(np.zeros((n_rows, 4), np.float32), np.zeros(n_rows, np.int64))
    public = facts.pop("public", None)  # two rows, twice each: k = 1, corrected d = 1.125
    known = None if public is None else ArrayRows(public, np.arange(4))
    data = Problem(4, 4, private=rows, public=known, centred=facts.pop("centred", False))
    assert score_noise(NoisyGDOptions(), data, Schedule(50, 1.0, mu), **facts) == pytest.approx(expected)


@pytest.mark.parametrize(("drawn", "expected"), [(True, 4096), (False, 1024)])
def test_public_rows_from_elsewhere_are_trusted_less_than_rows_from_the_training_rows(drawn, expected) -> None:
    x = np.kron(np.ones((64, 1)), np.eye(64)).astype(np.float32)  # k = 64 rows of 64 classes, in 63 directions
    public = ArrayRows(x, np.tile(np.arange(64), 64))
    rows = ArrayRows(np.zeros((64, 64), np.float32), np.arange(64))
    data = Problem(64, 64, private=rows, public=public, drawn=drawn)
    assert start_strength(data) == pytest.approx(1.5 * expected**0.5, rel=0.02)
    assert start_strength(data.with_public(public)) == 1.5 * 1024**0.5  # synthetic rows, for example


def test_raw_rows_are_taken_for_as_alike_as_text_vectors() -> None:
    text = np.array([[3.0, 3.0], [0.5, -0.5]])  # r^2 = 1 / 37
    data = Problem(2, 2, text_weights=text)
    assert start_strength(data) == pytest.approx(15 * (37 / 2) ** 2)
    assert start_strength(replace(data, text_weights=10 * text)) == start_strength(data)
    assert start_strength(replace(data, text_weights=text[::-1] * [1, -1])) == pytest.approx(15)
    assert start_strength(replace(data, centred=True)) == start_strength(replace(data, text_weights=None)) == 15
    assert start_strength(replace(data, short_mean=True)) == 15
    assert start_strength(replace(data, text_weights=np.ones((2, 2)))) == pytest.approx(15e8)


def test_the_spread_of_public_rows_is_the_number_of_directions_they_fill() -> None:
    x = np.random.default_rng(5).normal(size=(400, 30)).astype(np.float32)
    assert spread(ArrayRows(x, np.zeros(400, np.int64))) == pytest.approx(30, rel=0.03)
    assert spread(ArrayRows(x[:12] + 9, np.zeros(12, np.int64))) == pytest.approx(30, rel=0.3)


def test_outputs_are_what_their_names_say() -> None:
    iterates = [np.full((1, 1), float(t)) for t in range(21)]
    expected = {
        "last": 20.0,
        "average": (19 + 20) / 2,
        "weighted": sum(2 * t / (20 * 21) * (t - 1) for t in range(1, 21)),
    }
    for kind, value in expected.items():
        average = Iterates(iterates[0], 20, kind)
        for after in iterates[1:]:
            average.move(after)
        assert average.result()[0, 0] == pytest.approx(value)


def test_the_radius_bounds_the_weights() -> None:
    weights = fit(
        METHODS["noisy-gd"], {"init": "zero", "radius": 0.01, "output": "last"}, problem(), SpyMechanism()
    ).weights
    assert np.linalg.norm(weights) == pytest.approx(0.01)
