"""What every registered method must keep, whatever it computes."""

import numpy as np
import pytest

from linprobe.accounting.accountants import gdp_mu
from linprobe.errors import ParameterError, UsageError
from linprobe.mechanisms.entropy import NoiseSource
from linprobe.mechanisms.gaussian import GaussianMechanism, Release
from linprobe.methods import METHODS, Method, Problem, Run, Schedule, find_method, paper_options
from linprobe.rows import ArrayRows, normalise_rows

N, D, C, STEPS, SIGMA = 90, 7, 4, 6, 5.0
SPENDING = [method for method in METHODS.values() if method.spends]
VARIANTS = [(method, {}) for method in SPENDING] + [
    (METHODS["adamix"], {"subspace": "gradient"}),
    (METHODS["adamix"], {"subspace": "gradient", "subspace_dim": 5}),
    (METHODS["adamix"], {"subspace": "features", "subspace_dim": 2}),
    (METHODS["adamix"], {"variant": "theory"}),
    (METHODS["noisy-gd"], {"schedule": "theory", "average": "weighted", "radius": 3.0, "weight_decay": 5.0}),
]
every_spending_variant = pytest.mark.parametrize(
    ("method", "options"), VARIANTS, ids=[f"{m.name}{''.join(f'-{k}={v}' for k, v in o.items())}" for m, o in VARIANTS]
)


class SpyMechanism(GaussianMechanism):
    """Keeps what each release was given; hands out the values of an earlier run if told to."""

    def __init__(self, replay: list[np.ndarray] | None = None, seed: int = 3) -> None:
        self.events, self.sums, self.values, self._replay = [], [], [], replay
        super().__init__(NoiseSource(seed), self.events.append)

    def release(self, clipped, noise_multiplier, *, purpose, projection=None) -> Release:
        release = super().release(clipped, noise_multiplier, purpose=purpose, projection=projection)
        self.sums.append(clipped.value if projection is None else projection.project(clipped.value))
        if self._replay is not None:
            release = Release(self._replay[len(self.values)], release.event)
        self.values.append(release.value)
        return release


def problem(n: int = N, block_rows: int = 1024, drop: int | None = None) -> Problem:
    g = np.random.default_rng(0)
    centres = 2 * g.normal(size=(C, D))
    y = np.arange(n + 12) % C
    x = normalise_rows((centres[y] + g.normal(size=(n + 12, D))).astype(np.float32))
    public, private = np.arange(n + 12) < 12, np.arange(n + 12) >= 12
    if drop is not None:
        private[12 + drop] = False
    text = normalise_rows(g.normal(size=(C, D)).astype(np.float32)).T.astype(np.float64)
    return Problem(
        D,
        C,
        private=ArrayRows(x[private], y[private], block_rows),
        public=ArrayRows(x[public], y[public]),
        text_weights=text,
    )


def fit(method: Method, options: dict, data: Problem, mechanism: GaussianMechanism, sigma: float = SIGMA):
    schedule = Schedule(STEPS, sigma, STEPS**0.5 / sigma if sigma else 1.0)
    return method.fit(data, method.make_options(options), Run(schedule, mechanism, lambda: None))


@every_spending_variant
def test_neighbours_differ_by_at_most_sensitivity_at_every_step(method, options) -> None:
    spy = SpyMechanism()
    fit(method, options, problem(), spy)
    for dropped in (0, 17, N - 1):
        neighbour = SpyMechanism(replay=spy.values)
        fit(method, options, problem(drop=dropped), neighbour)
        for event, ours, theirs in zip(spy.events, spy.sums, neighbour.sums, strict=True):
            assert np.linalg.norm(ours - theirs) <= event.sensitivity


@every_spending_variant
def test_a_record_is_charged_at_least_what_it_contributed(method, options) -> None:
    spy = SpyMechanism()
    fit(method, options, problem(), spy)
    for dropped in (0, 17, N - 1):
        neighbour = SpyMechanism(replay=spy.values)
        fit(method, options, problem(drop=dropped), neighbour)
        moved = sum(
            (np.linalg.norm(ours - theirs) / (event.sensitivity * SIGMA)) ** 2
            for event, ours, theirs in zip(spy.events, spy.sums, neighbour.sums, strict=True)
        )
        assert spy.per_instance_mu[dropped] ** 2 >= moved * (1 - 1e-9)
        assert spy.per_instance_mu[dropped] <= moved**0.5 + STEPS**0.5 / SIGMA * 2e-3


@every_spending_variant
def test_releases_are_as_many_and_as_noisy_as_scheduled_and_no_record_exceeds_the_run(method, options) -> None:
    spy = SpyMechanism()
    fit(method, options, problem(), spy)
    assert [event.noise_multiplier for event in spy.events] == [SIGMA] * STEPS
    assert [event.step for event in spy.events] == list(range(STEPS))
    assert spy.per_instance_mu.shape == (N,)
    assert spy.per_instance_mu.max() <= gdp_mu(spy.events) * (1 + 1e-12)


@every_spending_variant
def test_block_size_does_not_change_the_result(method, options) -> None:
    whole = fit(method, options, problem(), SpyMechanism()).weights
    blocks = fit(method, options, problem(block_rows=7), SpyMechanism()).weights
    np.testing.assert_allclose(whole, blocks, atol=1e-3 * np.abs(whole).max())


@every_spending_variant
def test_noise_reaches_the_weights(method, options) -> None:
    one = fit(method, options, problem(), SpyMechanism(seed=1)).weights
    other = fit(method, options, problem(), SpyMechanism(seed=2)).weights
    assert np.linalg.norm(one - other) > 1e-3


@every_spending_variant
def test_zero_noise_is_deterministic_and_the_private_rows_count(method, options) -> None:
    one = fit(method, options, problem(), SpyMechanism(seed=1), sigma=0.0).weights
    same = fit(method, options, problem(), SpyMechanism(seed=2), sigma=0.0).weights
    without = fit(method, options, problem(drop=5), SpyMechanism(seed=1), sigma=0.0).weights
    np.testing.assert_array_equal(one, same)
    assert np.linalg.norm(one - without) > 0


@every_spending_variant
def test_a_run_on_one_private_row_works(method, options) -> None:
    data = problem()
    one = Problem(
        D, C, private=ArrayRows(data.private.x[:1], data.private.y[:1]), public=data.public, text_weights=None
    )
    assert np.isfinite(fit(method, options, one, SpyMechanism()).weights).all()


@pytest.mark.parametrize("method", [m for m in METHODS.values() if not m.spends and m.private], ids=lambda m: m.name)
def test_methods_that_spend_nothing_work_without_private_rows(method) -> None:
    spy = SpyMechanism()
    data = problem()
    without = Problem(D, C, private=None, public=data.public, text_weights=data.text_weights)
    weights = fit(method, {}, without, spy).weights
    np.testing.assert_array_equal(weights, fit(method, {}, data, spy).weights)
    assert spy.events == []


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda m: m.name)
def test_missing_data_is_refused_with_the_next_step(method) -> None:
    if "public" in method.needs:
        with pytest.raises(UsageError, match="--public-shots"):
            fit(method, {}, Problem(D, C, private=problem().private), SpyMechanism())
    if "text" in method.needs:
        with pytest.raises(UsageError, match="text/weights"):
            fit(method, {}, Problem(D, C, private=problem().private, public=problem().public), SpyMechanism())
    if "private" in method.needs:
        with pytest.raises(UsageError, match="training rows"):
            fit(method, {}, Problem(D, C, public=problem().public), SpyMechanism())


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda m: m.name)
def test_options_of_other_methods_are_refused(method) -> None:
    with pytest.raises(UsageError, match=f"does nothing for {method.name}; its options are"):
        method.make_options({"momentum": 0.9})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("noisy-gd", {"clip_norm": 0.0}),
        ("noisy-gd", {"clip_norm": float("nan")}),
        ("noisy-gd", {"learning_rate": -1.0}),
        ("noisy-gd", {"weight_decay": 0.0}),
        ("adamix", {"clip_quantile": 1.5}),
        ("adamix", {"subspace_dim": 0}),
    ],
)
def test_option_values_outside_their_range_are_refused(name, options) -> None:
    with pytest.raises(ParameterError, match="allowed: above"):
        METHODS[name].make_options(options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("noisy-gd", {"init": "best"}),
        ("noisy-gd", {"average": "mean"}),
        ("noisy-gd", {"schedule": "cosine"}),
        ("noisy-gd", {"reference": "text"}),
        ("adamix", {"variant": "new"}),
        ("adamix", {"subspace": "random"}),
    ],
)
def test_option_words_that_do_not_exist_are_refused(name, options) -> None:
    with pytest.raises(ParameterError, match="allowed:"):
        fit(METHODS[name], options, problem(), SpyMechanism())


def test_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean adamix"):
        find_method("adamx")


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda m: m.name)
def test_the_papers_settings_are_options_of_the_method(method) -> None:
    method.make_options(paper_options(method))
    assert method.name == "zero-shot" or paper_options(method)["weight_decay"] == 1e-2
