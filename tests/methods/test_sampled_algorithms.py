"""Parts of the methods on Poisson samples: mirror steps, private mean and ball, public samples and scales."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linprobe.accounting.events import grouped
from linprobe.api.estimators import DPSGDF
from linprobe.data.blocks import ArraySource, normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.errors import UsageError
from linprobe.gradients.clipped_sum import row_sum
from linprobe.gradients.loss import loss_and_gradient, mean_squared_gradient, residuals
from linprobe.gradients.rounding import GRID_STEP, LEAST_ROWS
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS, Problem, PublicFacts, Run, Schedule, dpsgd_f
from linprobe.methods.adadps import public_scale
from linprobe.methods.dope_sgd import clip_origin, gaussian_rows
from linprobe.methods.dpsgd_f import ball, feature_clipped
from linprobe.methods.mirror_descent import MirrorDescentOptions, alphas, mirror_map
from tests.methods.test_contract import C, D, SpyMechanism, fit, problem
from tests.small_blocks import SmallBlocks

# mirror descent


def test_an_exact_squared_step_is_the_closed_form() -> None:
    public, g = problem().public, np.random.default_rng(1)
    weights, step = g.normal(size=(D, C)), g.normal(size=(D, C))
    x = public.x.astype(np.float64)
    ridge = 0.3 * np.mean((x**2).sum(axis=1)) / D
    hessian = x.T @ x / len(x) + ridge * np.eye(D)
    moved = mirror_map(public, MirrorDescentOptions(update="exact", loss="squared", ridge=0.3))(weights, step)
    expected = weights - np.linalg.eigvalsh(hessian)[0] * np.linalg.inv(hessian) @ step
    np.testing.assert_allclose(moved, expected, atol=1e-9)
    assert np.linalg.norm(moved - weights) <= np.linalg.norm(step)


def test_the_least_eigenvalue_of_a_wide_hessian_is_that_of_a_dense_solver() -> None:
    g = np.random.default_rng(2)
    x = normalise_rows(g.normal(size=(700, 520)).astype(np.float32))
    public = ArrayRows(x, np.arange(700) % 2)
    step = g.normal(size=(520, 2))
    moved = mirror_map(public, MirrorDescentOptions(update="exact", loss="squared"))(np.zeros((520, 2)), step)
    wide = x.astype(np.float64)
    hessian = wide.T @ wide / 700 + np.mean((wide**2).sum(axis=1)) / 520 * np.eye(520)
    expected = -np.linalg.eigvalsh(hessian)[0] * np.linalg.solve(hessian, step)
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_an_exact_step_is_plain_where_public_rows_are_their_own_mean(loss) -> None:
    """A single public row is its own mean, so it is zero after centring, and its loss has no curvature."""
    weights, step = np.ones((D, C)), np.random.default_rng(1).normal(size=(D, C))
    public = ArrayRows(np.zeros((1, D), np.float32), [0])
    moved = mirror_map(public, MirrorDescentOptions(update="exact", loss=loss))(weights, step)
    np.testing.assert_allclose(moved, weights - step, atol=1e-5)


@pytest.mark.parametrize("size", [0.01, 1.0])
def test_an_exact_softmax_step_solves_the_mirror_equation(size) -> None:
    public, g = problem().public, np.random.default_rng(1)
    weights, step = g.normal(size=(D, C)), size * g.normal(size=(D, C))
    moved = mirror_map(public, MirrorDescentOptions(update="exact"))(weights, step)
    ridge = np.mean((public.x.astype(np.float64) ** 2).sum(axis=1)) / D

    def dual(point):
        return loss_and_gradient(public, point)[1] / public.n_rows / ridge + point

    np.testing.assert_allclose(dual(moved), dual(weights) - step, atol=2e-2 * size)
    assert np.linalg.norm(moved - weights) <= np.linalg.norm(step) * (1 + 1e-3)


def test_the_weight_of_private_gradients_falls_as_a_cosine() -> None:
    np.testing.assert_allclose(
        alphas(MirrorDescentOptions(), 10), [np.cos(np.pi * t / 80) for t in range(1, 11)], atol=1e-15
    )
    np.testing.assert_allclose(alphas(MirrorDescentOptions(horizon=10), 10)[-1], 0, atol=1e-15)
    np.testing.assert_array_equal(alphas(MirrorDescentOptions(alpha=0.3), 4), [0.3] * 4)


def test_the_extra_clip_bounds_the_mean_gradient_that_is_used() -> None:
    data = problem()
    options = {"alpha": 1.0, "extra_clip": 1e-3, "init": "zero", "optimizer": "sgd", "learning_rate": 0.5}
    fitted = fit(METHODS["mirror-descent"], {**options, "output": "last", "weight_decay": 1e-9}, data, SpyMechanism())
    assert np.linalg.norm(fitted.weights) <= 6 * 0.5 * 1e-3 * data.private.n_rows * (1 + 1e-6)


# dope-sgd and adadps


def test_an_origin_is_shortened_to_the_length_asked_and_no_further() -> None:
    origin = np.array([[3.0], [4.0]])
    np.testing.assert_allclose(clip_origin(origin, 1.0), origin / 5)
    np.testing.assert_array_equal(clip_origin(origin, 6.0), origin)
    np.testing.assert_array_equal(clip_origin(origin, None), origin)


def test_a_dope_sgd_step_adds_the_expected_batch_of_public_gradients_and_not_the_drawn_one() -> None:
    data, spy = problem(), SpyMechanism()
    options = METHODS["dope-sgd"].make_options(
        {"init": "zero", "optimizer": "sgd", "learning_rate": 0.1, "output": "last", "weight_decay": 1e-9}
    )

    class Nobody:
        rate = 0.25

        def draw(self, n_rows, first):
            return np.zeros(n_rows, dtype=bool)

    weights = (
        METHODS["dope-sgd"].fit(data, options, Run(Schedule(1, 3.0, 1.0, 0.25), spy, lambda: None, Nobody())).weights
    )
    origin = loss_and_gradient(data.public, np.zeros((D, C)))[1] / data.public.n_rows
    expected = -0.1 * (data.private.n_rows * origin + spy.values[0] / 0.25)
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_extended_public_rows_train_as_private_ones_and_cost_none_of_them() -> None:
    data = problem()
    spies = [SpyMechanism(), SpyMechanism()]
    for spy, extended in zip(spies, (0.0, 0.5), strict=True):
        fit(METHODS["dope-sgd"], {"extended": extended, "init": "zero"}, data, spy)
    assert [len(spy.contributed.levels) for spy in spies] == [data.private.n_rows] * 2
    assert grouped(spies[0].events) == grouped(spies[1].events)


def test_the_public_scale_has_unit_mean_square_above_its_floor() -> None:
    moment = mean_squared_gradient(problem().public, np.zeros((D, C)))
    scale = public_scale(moment, 0.1)
    np.testing.assert_allclose(np.mean((scale - 0.1) ** 2), 1)
    np.testing.assert_allclose((scale - 0.1) ** 2 / moment, ((scale - 0.1) ** 2 / moment)[0, 0])
    np.testing.assert_array_equal(public_scale(np.zeros((3, 2)), 0.1), np.ones((3, 2)))


# dpsgd-f


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 50),
    d=st.integers(1, 30),
    block_rows=st.sampled_from([1, 7, 1024]),
    radius=st.sampled_from([None, 1e-3, 0.3]),
)
@example(seed=1, n=45, d=1, block_rows=7, radius=1e-3)  # a sum of 0, where only the grid bounds the rounding
def test_the_sum_of_rows_moves_by_at_most_its_sensitivity(seed, n, d, block_rows, radius) -> None:
    g = np.random.default_rng(seed)
    x = normalise_rows((g.normal(size=d) + 10.0 ** g.uniform(-4, 1) * g.normal(size=(n, d))).astype(np.float32))
    x[0] *= 5  # a row longer than the bound
    origin = None if radius is None else x[1:].mean(axis=0).astype(np.float64)
    clip_norm = 1.0 if radius is None else radius
    grid = GRID_STEP * LEAST_ROWS * clip_norm  # by which the term of each block may be rounded
    for removed in (0, n - 1):
        keep = np.arange(n) != removed
        rows = SmallBlocks(x, np.zeros(n, int), block_rows)
        whole, empty = row_sum(rows, clip_norm, origin), row_sum(rows.emptied(keep), clip_norm, origin)
        without = row_sum(SmallBlocks(x[keep], np.zeros(n - 1, int), block_rows), clip_norm, origin)
        np.testing.assert_allclose(empty.value, without.value, rtol=1e-12, atol=n * grid)
        moved = np.linalg.norm(whole.value - without.value)
        assert moved <= whole.contributions[removed] * clip_norm <= whole.sensitivity == clip_norm


def test_the_mean_of_unit_rows_is_released_with_sensitivity_one_and_is_their_mean() -> None:
    data, spy = problem(), SpyMechanism()
    fit(METHODS["dpsgd-f"], {}, data, spy)
    assert (spy.events[0].purpose, spy.events[0].sensitivity, spy.events[0].sampling_rate) == ("mean", 1.0, 1.0)
    np.testing.assert_allclose(spy.sums[0][:, 0], data.private.x.sum(axis=0), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["practical", "theory"])
def test_shares_of_epsilon_are_those_asked_for_and_everything_fits_the_target(name) -> None:
    from linprobe.accounting.accountants import GAUSSIAN, RENYI

    g = np.random.default_rng(0)
    x, y = g.normal(size=(300, 8)), np.arange(300) % 3
    options = {"feature_epsilon_share": 0.2} if name == "practical" else {"variant": "theory"}
    probe = DPSGDF(epsilon=2.0, classes=range(3), accountant="rdp", n_steps=20, **options).fit(x, y)
    by_purpose = {release["purpose"]: release for release in probe.privacy_["releases"]}
    shares = {"mean": (0.2, 1)}
    if name == "theory":
        shares = {"median": (1 / 9, 10), "radius": (1 / 9, 10), "mean": (1 / 9, 1), "quantile": (1 / 3, 10)}
    assert set(by_purpose) == {*shares, "gradient"}
    releases = {event["purpose"]: event for event in probe.privacy_["releases"]}
    for purpose, (share, count) in shares.items():
        (release,) = [found for found in _as_releases(releases) if found.purpose == purpose]
        assert release.count == count
        assert 2 * share * (1 - 1e-6) <= GAUSSIAN.epsilon([release], 1e-5) <= 2 * share
    assert 2 * 0.999 <= probe.privacy_["epsilon"] <= 2
    assert RENYI.epsilon(_as_releases(releases), 1e-5) == probe.privacy_["epsilon"]


def _as_releases(found: dict):
    from linprobe.accounting.events import Releases

    return [Releases(**release) for release in found.values()]


def clustered(n: int = 4000, spread: float = 0.05) -> tuple[ArrayRows, np.ndarray]:
    g = np.random.default_rng(4)
    centre = np.zeros(12)
    centre[2] = 1.0
    x = normalise_rows((centre + spread * g.normal(size=(n, 12))).astype(np.float32))
    x[: n // 50] = normalise_rows(g.normal(size=(n // 50, 12)).astype(np.float32))  # two in a hundred lie anywhere
    return ArrayRows(x, np.zeros(n, int)), x


def test_text_alone_guesses_the_centre() -> None:
    rows, x = clustered()
    text = np.eye(12)[:, [2, 2]] * 5.0
    data = Problem(12, 2, private=rows, text_weights=text)
    schedule = Schedule(1, 1.0, 1.0, 1.0, {"mean": 500.0})  # the noise is half as long as a row

    def centre(problem: Problem) -> np.ndarray:
        run = Run(schedule, GaussianMechanism(NoiseSource(1), lambda event: None), lambda: None)
        return dpsgd_f.centre_of(problem, METHODS["dpsgd-f"].options(), run)

    np.testing.assert_array_equal(centre(data), np.eye(12)[2])
    beside = data.with_public(ArrayRows(x[-4:], np.arange(4) % 2))  # text weights are then differences of classes
    np.testing.assert_array_equal(centre(beside), centre(replace(data, text_weights=None)))
    assert np.abs(centre(beside) - np.eye(12)[2]).max() > 0.05


def test_the_ball_of_the_theory_holds_the_cluster_and_little_else() -> None:
    rows, x = clustered()
    mechanism = GaussianMechanism(NoiseSource(1), lambda event: None)
    schedule = Schedule(1, 1.0, 1.0, 1.0, dict.fromkeys(("median", "radius", "mean", "quantile"), 2.0))
    centre, radius = ball(rows, Run(schedule, mechanism, lambda: None))
    distances = np.linalg.norm(x - x[len(x) // 50 :].mean(axis=0), axis=1)
    exact = np.quantile(distances, 0.9)
    assert np.linalg.norm(centre - x[len(x) // 50 :].mean(axis=0)) < 0.03
    assert 0.8 * exact < radius < 1.2 * exact
    assert ((np.linalg.norm(x - centre, axis=1) <= radius).mean()) == pytest.approx(0.9, abs=0.03)


def test_counts_of_the_theory_move_by_at_most_their_sensitivity() -> None:
    data = problem()
    spy = SpyMechanism()
    schedule = Schedule(1, 5.0, 1.0, 1.0, dict.fromkeys(("median", "radius", "mean", "quantile"), 5.0))
    ball(data.private, Run(schedule, spy, lambda: None))
    neighbour = SpyMechanism(replay=spy.values)
    keep = np.arange(data.private.n_rows) != 3

    # the number of records is public and does not change
    without_one = ArrayRows(data.private.x[keep], data.private.y[keep]).as_shard(0, data.private.n_rows)
    ball(without_one, Run(schedule, neighbour, lambda: None))
    assert {event.purpose for event in spy.events} == {"median", "radius", "mean", "quantile"}
    for event, ours, theirs in zip(spy.events, spy.sums, neighbour.sums, strict=True):
        assert np.linalg.norm(ours - theirs) <= event.sensitivity


def test_the_rotation_keeps_lengths_and_can_be_undone() -> None:
    rotate, back = dpsgd_f._rotation(13)
    x = np.random.default_rng(0).normal(size=(5, 13))
    np.testing.assert_allclose(back(rotate(x)), x, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(rotate(x), axis=1), np.linalg.norm(x, axis=1))


def test_gradients_of_feature_clipped_rows_are_within_the_theorys_clip() -> None:
    rows, _ = clustered(500)
    tau = 0.05
    clipped = feature_clipped(rows.translated(np.zeros(12), tau), tau)
    weights = np.random.default_rng(0).normal(size=(13, 3)) * 40
    for block in clipped.blocks():
        assert (block.norms <= np.sqrt(2) * tau * (1 + 1e-6)).all()
        r = residuals(block.x, block.y, weights.astype(np.float32))
        assert (block.norms * np.linalg.norm(r, axis=1) <= 2 * tau * (1 + 1e-6)).all()


@pytest.mark.parametrize("options", [{}, {"centre": "public"}, {"variant": "theory"}, {"output": "vote"}])
def test_folded_weights_and_bias_score_like_the_translated_model(options, monkeypatch) -> None:
    kept = {}
    real = METHODS["dpsgd-f"].fit.__globals__["descend"]

    def descend(private, problem, opts, run, *, shift, column, clip):
        kept.update(shift=shift, column=column)
        fitted = real(private, problem, opts, run, shift=shift, column=column, clip=clip)
        kept["fitted"] = fitted
        return fitted

    monkeypatch.setitem(METHODS["dpsgd-f"].fit.__globals__, "descend", descend)
    thetas = []
    result = real.__globals__["Descent"].result
    monkeypatch.setattr(real.__globals__["Descent"], "result", lambda self: thetas.append(result(self)) or thetas[-1])
    data = problem()
    fitted = fit(METHODS["dpsgd-f"], options, data, SpyMechanism())
    moved = np.concatenate([data.private.x - kept["shift"], np.full((data.private.n_rows, 1), kept["column"])], axis=1)
    scores = np.einsum("nd,...dc->...nc", data.private.x.astype(np.float64), fitted.weights)
    np.testing.assert_allclose(
        scores + fitted.bias[..., None, :], np.einsum("nd,...dc->...nc", moved, thetas[-1]), atol=1e-9
    )


@pytest.mark.parametrize("text", [None, np.linspace(-1, 1, D * C).reshape(D, C) ** 3])
def test_a_translated_start_is_the_optimum_on_translated_public_rows(text) -> None:
    data = replace(problem(), text_weights=text)
    fitted = fit(
        METHODS["dpsgd-f"], {"centre": "public", "learning_rate": 1e-300, "output": "last"}, data, SpyMechanism()
    )
    shift = data.public.x.mean(axis=0)
    column = np.full((data.public.n_rows, 1), 0.1, np.float32)
    moved = ArrayRows(np.concatenate([data.public.x - shift, column], axis=1), data.public.y)
    wide = None if text is None else np.concatenate([text, (shift @ text)[None] / 0.1])  # the same scores of raw rows
    there = Problem(D + 1, C, public=moved, text_weights=wide)
    optimum = fit(METHODS["only-public"], {}, there, SpyMechanism()).weights
    np.testing.assert_allclose(data.public.x @ fitted.weights + fitted.bias, moved.x @ optimum, atol=1e-3)


def test_a_translated_start_from_text_keeps_its_scores() -> None:
    data = problem()
    still = {"learning_rate": 1e-300, "output": "last", "init": "text"}
    moved = fit(METHODS["dpsgd-f"], still, data, SpyMechanism())
    plain = fit(METHODS["dp-sgd"], still, data, SpyMechanism())
    scores = data.private.x @ moved.weights + moved.bias
    np.testing.assert_allclose(scores, data.private.x @ plain.weights, atol=1e-5)


# augmentation


def test_augmented_rows_have_the_class_means_and_the_pooled_covariance() -> None:
    g = np.random.default_rng(3)
    y = np.arange(12) % 3
    centres = 8 * np.eye(3, 5)
    x = (centres[y] + 0.3 * g.normal(size=(12, 5)) @ np.diag([1, 2, 0.5, 1, 3])).astype(np.float32)
    public = ArrayRows(x, y)
    raw = []

    def kept(rows):
        raw.append(rows.copy())
        return normalise_rows(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linprobe.methods.dope_sgd.normalise_rows", kept)
        drawn = gaussian_rows(public, 4, 30_000)
    raw = np.concatenate(raw)
    np.testing.assert_allclose(np.linalg.norm(drawn.x, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(np.bincount(drawn.y, minlength=4), [10_000, 10_000, 10_000, 0])
    means = np.stack([x[y == c].mean(axis=0) for c in range(3)])
    within = sum((x[y == c] - means[c]).T @ (x[y == c] - means[c]) for c in range(3)) / (12 - 3)
    for c in range(3):
        ours = raw[drawn.y == c]
        np.testing.assert_allclose(ours.mean(axis=0), means[c], atol=5 * np.sqrt(within.max() / 10_000))
    residual = raw - means[drawn.y]
    np.testing.assert_allclose(residual.T @ residual / len(raw), within, atol=0.05 * within.max())


def test_augmentation_needs_a_class_with_two_rows() -> None:
    method, x = METHODS["dope-sgd"], np.eye(3, 4, dtype=np.float32)
    options = method.make_options({"augment_public": 10})
    method.refuse(options, PublicFacts(2, 4, 5, ArraySource(x, np.array([0, 1, 1]))))
    with pytest.raises(UsageError, match="two public rows"):
        method.refuse(options, PublicFacts(2, 4, 5, ArraySource(x, np.arange(3))))


def test_augmented_rows_reach_the_warm_start() -> None:
    data = problem()
    still = {"learning_rate": 1e-300, "output": "last", "init": "public"}
    plain = fit(METHODS["dope-sgd"], still, data, SpyMechanism()).weights
    augmented = fit(METHODS["dope-sgd"], {**still, "augment_public": 40}, data, SpyMechanism()).weights
    assert np.linalg.norm(plain - augmented) > 1e-2
    empty = Problem(D, C, private=data.private, public=data.public)
    np.testing.assert_array_equal(
        augmented, fit(METHODS["dope-sgd"], {**still, "augment_public": 40}, empty, SpyMechanism()).weights
    )
