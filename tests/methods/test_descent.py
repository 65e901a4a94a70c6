"""Methods on Poisson samples: special cases in which they are equal, optimisers, and outputs."""

import math

import numpy as np
import pytest
import torch

from linprobe.data.blocks import normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.errors import ParameterError, UsageError
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.methods import METHODS, Problem, PublicFacts, Run, Schedule, adadps, dope_sgd
from linprobe.methods._base import Iterates
from linprobe.methods._descent import Descent, DescentOptions
from tests.conftest import mostly_nightly
from tests.methods.test_contract import C, D, problem

STEPS, SIGMA, RATE, SEED = 8, 3.0, 0.3, 11
SAMPLED = [name for name, method in METHODS.items() if method.samples]


def train(name: str, data: Problem, rate: float = RATE, sigma: float = SIGMA, steps: int = STEPS, **options):
    """Weights and releases, with the samples and noise of one seed."""
    source, values = NoiseSource(SEED), []
    mechanism = GaussianMechanism(source, lambda event: None)
    release = mechanism.release

    def kept(*args, **kwargs):
        values.append(release(*args, **kwargs))
        return values[-1]

    mechanism.release = kept
    method = METHODS[name]
    schedule = Schedule(steps, sigma, rate * math.sqrt(steps) / sigma if sigma else 1.0, rate, {"mean": sigma})
    run = Run(schedule, mechanism, lambda: None, PoissonSampler(source, rate))
    fitted = method.fit(data, method.make_options({"init": "zero", "clip_norm": 0.2, **options}), run)
    return fitted, values


def assert_same_course(left, right, atol: float = 1e-5) -> None:
    for ours, theirs in zip(left[1], right[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=atol)
    np.testing.assert_allclose(left[0].weights, right[0].weights, atol=atol)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_mirror_descent_without_the_public_gradient_is_dp_sgd(optimizer) -> None:
    mirror = train("mirror-descent", problem(), optimizer=optimizer, alpha=1.0)
    assert_same_course(mirror, train("dp-sgd", problem(), optimizer=optimizer))
    assert np.linalg.norm(mirror[0].weights - train("mirror-descent", problem(), alpha=0.5)[0].weights) > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_dope_sgd_around_nothing_is_dp_sgd(optimizer, monkeypatch) -> None:
    shifted = train("dope-sgd", problem(), optimizer=optimizer)
    monkeypatch.setattr(dope_sgd, "clip_origin", lambda origin, longest: np.zeros_like(origin))
    around_zero = train("dope-sgd", problem(), optimizer=optimizer)
    assert_same_course(around_zero, train("dp-sgd", problem(), optimizer=optimizer))
    assert np.linalg.norm(shifted[0].weights - around_zero[0].weights) > 1e-3


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_dope_sgd_around_its_history_is_dp_sgd_where_nothing_is_clipped(optimizer) -> None:
    whole = {"rate": 1.0, "sigma": 0.0, "clip_norm": 100, "optimizer": optimizer, "learning_rate": 1e-3}
    around, plain = train("dope-sgd", problem(), origin="history", **whole), train("dp-sgd", problem(), **whole)
    np.testing.assert_allclose(around[0].weights, plain[0].weights, atol=1e-5)
    origins = [step["origin_norm"] for step in around[0].history]
    assert origins[0] == 0
    assert min(origins[1:]) > 0


def test_an_origin_from_history_is_the_sum_of_the_releases(monkeypatch) -> None:
    origins = []
    monkeypatch.setattr(dope_sgd, "clip_origin", lambda origin, longest: origins.append(origin) or origin)
    data = problem()
    fitted, values = train("dope-sgd", data, origin="history", momentum=0.8, weight_decay=1e-9)
    moved = 0.2 / (RATE * data.private.n_rows) * np.cumsum(values, axis=0)
    np.testing.assert_allclose(origins[1:], moved[:-1], atol=1e-6)
    assert not np.any(origins[0])
    assert all("public_loss" not in step for step in fitted.history)


@pytest.mark.parametrize(("given", "words"), [({"optimizer": "sgd"}, "momentum or adam"), ({"public_batch": 5}, "5")])
def test_an_origin_from_history_refuses_what_it_cannot_use(given, words) -> None:
    with pytest.raises(UsageError, match=f"origin history.*{words}|{words}.*origin history"):
        train("dope-sgd", problem(), origin="history", **given)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_adadps_at_an_even_scale_is_dp_sgd(optimizer, monkeypatch) -> None:
    scaled = train("adadps", problem(), optimizer=optimizer)
    monkeypatch.setattr(adadps, "public_scale", lambda moment, floor: np.ones_like(moment))
    even = train("adadps", problem(), optimizer=optimizer)
    assert_same_course(even, train("dp-sgd", problem(), optimizer=optimizer))
    assert np.linalg.norm(scaled[0].weights - even[0].weights) > 1e-3


def test_dpsgd_f_around_a_zero_mean_is_dp_sgd_with_an_intercept() -> None:
    data = problem()
    balanced = np.concatenate([data.public.x, -data.public.x])
    labels = np.concatenate([data.public.y, data.public.y])
    column = np.full((data.private.n_rows, 1), 0.5, dtype=np.float32)
    with_column = Problem(D + 1, C, private=ArrayRows(np.concatenate([data.private.x, column], axis=1), data.private.y))
    centred = data.with_public(ArrayRows(balanced, labels))
    moved, values = train("dpsgd-f", centred, centre="public", bias_scale=0.5, score_noise=1.0)
    plain, others = train("dp-sgd", with_column, score_noise=1.0)
    for ours, theirs in zip(values, others, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(moved.weights, plain.weights[:-1], atol=1e-5)
    np.testing.assert_allclose(moved.bias, 0.5 * plain.weights[-1], atol=1e-5)


@pytest.mark.parametrize("output", ["last", "weighted"])
def test_dp_sgd_on_all_rows_without_momentum_is_noisy_gd(output) -> None:
    options = {"learning_rate": 0.03, "output": output, "weight_decay": 0.4}
    sampled = train("dp-sgd", problem(), rate=1.0, optimizer="sgd", **options)
    assert_same_course(sampled, train("noisy-gd", problem(), rate=1.0, **options), atol=1e-12)


@pytest.mark.parametrize("name", mostly_nightly(SAMPLED, ("dp-sgd", "dpsgd-f").__contains__))
def test_learning_rate_means_the_same_at_every_sampling_rate(name) -> None:
    # without noise, the mean over many samples of a step is the step on all rows
    data = problem()
    step = {"steps": 1, "sigma": 0.0, "learning_rate": 0.1, "optimizer": "sgd", "output": "last"}
    options = {"centre": "public"} if name == "dpsgd-f" else {}
    whole = train(name, data, rate=1.0, **step, **options)[0].weights
    mean = np.zeros_like(whole)
    for seed in range(300):
        source = NoiseSource(seed)
        method = METHODS[name]
        given = {key: value for key, value in step.items() if key not in ("steps", "sigma")}
        chosen = method.make_options({"init": "zero", "clip_norm": 0.2, **given, **options})
        schedule = Schedule(1, 0.0, 1.0, 0.5)
        mechanism = GaussianMechanism(source, lambda event: None)
        mean += method.fit(data, chosen, Run(schedule, mechanism, lambda: None, PoissonSampler(source, 0.5))).weights
    distance = np.linalg.norm(mean / 300 - whole) / np.linalg.norm(whole)
    assert distance < 0.05


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_every_sampled_method_learns_separable_rows(name, loss) -> None:
    g = np.random.default_rng(0)
    y = np.arange(640) % C
    x = normalise_rows((3 * np.eye(C, 12)[y] + 0.5 * g.normal(size=(640, 12))).astype(np.float32))
    data = Problem(12, C, private=ArrayRows(x[40:], y[40:]), public=ArrayRows(x[:8], y[:8]))
    options = METHODS[name].make_options({"init": "zero", "loss": loss, "score_noise": 0.3})
    source = NoiseSource(2)
    schedule = Schedule(100, 2.0, 0.15 * 10 / 2.0, 0.15, {"mean": 2.0})
    mechanism = GaussianMechanism(source, lambda event: None)
    fitted = METHODS[name].fit(data, options, Run(schedule, mechanism, lambda: None, PoissonSampler(source, 0.15)))
    assert ((x[40:] @ fitted.weights + fitted.bias).argmax(axis=1) == y[40:]).mean() > 0.95


# optimisers


def course(gradients: list[np.ndarray], **options) -> list[np.ndarray]:
    """Iterates for given gradients, from zero and without weight decay."""
    data = Problem(*gradients[0].shape)
    settings = DescentOptions(init="zero", output="last", weight_decay=1e-300, **options)
    descent = Descent(data, settings, Schedule(len(gradients), 1.0, 1.0))
    iterates = []
    for gradient in gradients:
        descent.step(gradient)
        iterates.append(descent.weights)
    return iterates


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_optimisers_take_the_steps_of_torch(optimizer) -> None:
    gradients = list(np.random.default_rng(1).normal(size=(6, 5, 3)))
    ours = course(gradients, optimizer=optimizer, learning_rate=0.07)
    weight = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    theirs = {
        "sgd": lambda: torch.optim.SGD([weight], lr=0.07),
        # torch's momentum sums past gradients, ours takes their mean
        "momentum": lambda: torch.optim.SGD([weight], lr=0.07 * (1 - 0.9), momentum=0.9),
        "adam": lambda: torch.optim.Adam([weight], lr=0.07, betas=(0.9, 0.999), eps=1e-12),
    }[optimizer]()
    for gradient, iterate in zip(gradients, ours, strict=True):
        weight.grad = torch.tensor(gradient)
        theirs.step()
        np.testing.assert_allclose(iterate, weight.detach().numpy(), atol=1e-12)


def test_weight_decay_pulls_towards_its_reference() -> None:
    start = np.full((2, 2), 4.0)
    for reference, expected in (("init", 4.0), ("zero", 4.0 - 0.1 * 0.5 * 4.0)):
        options = DescentOptions(
            optimizer="sgd", learning_rate=0.1, weight_decay=0.5, reference=reference, output="last"
        )
        descent = Descent(Problem(2, 2), options, Schedule(1, 1.0, 1.0), start=start)
        descent.step(np.zeros((2, 2)))
        np.testing.assert_allclose(descent.result(), expected)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_noise_of_the_whole_sampled_run_in_a_score_is_what_was_asked_for(optimizer) -> None:
    empty = Problem(40, 50, private=ArrayRows(np.zeros((1, 40), np.float32), [0]))
    # momentum has not yet spent the last steps' noise: a tenth of the steps is still to come
    fitted, _ = train(
        "dp-sgd", empty, steps=200, sigma=7.0, optimizer=optimizer, score_noise=0.7, weight_decay=1e-9, output="last"
    )
    assert fitted.weights.std() == pytest.approx(0.7, rel=0.12)


# outputs

ITERATES = [np.array([[float(t)], [t * t / 4.0]]) for t in (5, 2, 7, 1, 3, 8, 6)]  # W_1 .. W_7 of T = 6 steps


def output_of(kind: str, ensemble: int | None = None) -> np.ndarray:
    output = Iterates(ITERATES[0], 6, kind, ensemble)
    for after in ITERATES[1:]:
        output.move(after)
    return output.result()


def test_outputs_computed_by_hand() -> None:
    after = ITERATES[1:]
    np.testing.assert_array_equal(output_of("last"), after[-1])
    np.testing.assert_allclose(output_of("average", 4), sum(after[2:]) / 4)
    np.testing.assert_allclose(output_of("average"), after[-1])  # a tenth of six steps is one
    np.testing.assert_allclose(output_of("average", 6), sum(after) / 6)
    weighted = sum(2 * t / 42 * ITERATES[t - 1] for t in range(1, 7))
    np.testing.assert_allclose(output_of("weighted"), weighted)
    np.testing.assert_array_equal(output_of("vote", 3), np.stack(after[3:]))
    assert output_of("vote").shape == (1, 2, 1)
    moving = after[0]
    for iterate in after[1:]:
        moving = 0.5 * moving + 0.5 * iterate  # decay 1 - 2 / (3 + 1)
    np.testing.assert_allclose(output_of("ema", 3), moving)


@pytest.mark.parametrize("kind", ["average", "ema", "vote"])
def test_ensembles_of_no_or_too_many_iterates_are_refused(kind) -> None:
    method = METHODS["noisy-gd"]
    method.refuse(method.make_options({"output": kind, "ensemble": 6}), PublicFacts(6, 2, 1))
    with pytest.raises(ParameterError, match="1 to the number of steps, 6"):
        method.refuse(method.make_options({"output": kind, "ensemble": 7}), PublicFacts(6, 2, 1))
    with pytest.raises(ParameterError, match="ensemble is 0; allowed: above 0"):
        method.make_options({"output": kind, "ensemble": 0})


@pytest.mark.parametrize("kind", ["last", "weighted"])
def test_an_ensemble_that_would_do_nothing_is_refused(kind) -> None:
    with pytest.raises(UsageError, match="option ensemble 2 does nothing"):
        METHODS["noisy-gd"].make_options({"output": kind, "ensemble": 2})


@pytest.mark.parametrize("name", [*SAMPLED, "noisy-gd"])
def test_votes_are_the_last_iterates(name) -> None:
    rate = RATE if METHODS[name].samples else 1.0
    votes, _ = train(name, problem(), rate=rate, output="vote", ensemble=3)
    last, _ = train(name, problem(), rate=rate, output="last")
    mean, _ = train(name, problem(), rate=rate, output="average", ensemble=3)
    assert votes.weights.shape == (3, D, C)
    np.testing.assert_allclose(votes.weights[-1], last.weights, atol=1e-12)
    np.testing.assert_allclose(votes.weights.mean(axis=0), mean.weights, atol=1e-9)
    if name == "dpsgd-f":
        assert votes.bias.shape == (3, C)
        np.testing.assert_allclose(votes.bias.mean(axis=0), mean.bias, atol=1e-9)
