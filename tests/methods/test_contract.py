"""The contract that every registered method must satisfy."""

import json
from dataclasses import replace

import numpy as np
import pytest

from linprobe.accounting.accountants import gdp_mu
from linprobe.accounting.events import grouped
from linprobe.data.blocks import ArraySource, normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.errors import ParameterError, UsageError
from linprobe.gradients.clipped_sum import row_sum
from linprobe.mechanisms.gaussian import LEVELS, GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS, Method, Problem, PublicFacts, Run, Schedule, find_method, paper_options
from linprobe.options.declaration import Option, declared
from linprobe.options.requests import TrainRequest, VerifyRequest
from linprobe.runs.check import verify_run
from linprobe.training.train import train_run
from tests.methods.private_reads import guarded
from tests.methods.test_subspace import projected
from tests.small_blocks import SmallBlocks

N, D, C, STEPS, SIGMA, RATE = 90, 7, 4, 6, 5.0, 0.4
SPENDING = [method for method in METHODS.values() if method.spends]
PICKED = [
    (METHODS["dp-sgd"], {"optimizer": "adam", "loss": "squared"}),
    (METHODS["dpsgd-f"], {"centre": "public"}),
    (METHODS["dpsgd-f"], {"variant": "theory"}),
    (METHODS["mirror-descent"], {"update": "exact"}),
    (METHODS["mirror-descent"], {"update": "exact", "loss": "squared"}),
    (METHODS["mirror-descent"], {"alpha": 0.5, "extra_clip": 0.01}),
    (METHODS["dope-sgd"], {"clip_norm": 0.02, "origin_norm": 0.05}),
    (METHODS["dope-sgd"], {"extended": 0.5, "augment_public": 20, "public_batch": 7, "init": "zero"}),
    (METHODS["adadps"], {"scale_floor": 0.01, "init": "zero"}),
    (METHODS["adamix"], {"subspace": "gradient"}),
    (METHODS["adamix"], {"subspace": "gradient", "subspace_dim": 5}),
    (METHODS["adamix"], {"subspace": "features", "subspace_dim": 2}),
    (METHODS["adamix"], {"variant": "theory"}),
    (METHODS["noisy-gd"], {"schedule": "theory", "output": "weighted", "radius": 3.0, "weight_decay": 5.0}),
]


def words_of(method: Method) -> list[dict]:
    """One variant for each word of an option that few methods have, unless a variant above covers it."""
    tried = [options.items() for picked, options in PICKED if picked is method]
    return [
        {name: word}
        for name, option in declared(method.options).items()
        if sum(name in declared(other.options) for other in METHODS.values()) <= 2
        for word in option.words
        if word != option.default and not any((name, word) in options for options in tried)
    ]


VARIANTS = [
    *((method, {}) for method in SPENDING),
    *PICKED,
    *((method, options) for method in SPENDING for options in words_of(method)),
]
every_spending_variant = pytest.mark.parametrize(
    ("method", "options"), VARIANTS, ids=[f"{m.name}{''.join(f'-{k}={v}' for k, v in o.items())}" for m, o in VARIANTS]
)


class SpyMechanism(GaussianMechanism):
    """Records the arguments of each release; with `replay`, returns the values of an earlier run."""

    def __init__(self, replay: list[np.ndarray] | None = None, seed: int = 3) -> None:
        self.events, self.sums, self.values, self._replay = [], [], [], replay
        super().__init__(NoiseSource(seed), self.events.append)

    def release(self, clipped, noise_multiplier, *, purpose, projection=None) -> np.ndarray:
        value = super().release(clipped, noise_multiplier, purpose=purpose, projection=projection)
        self.sums.append(clipped.value if projection is None else projected(projection, clipped.value))
        if self._replay is not None:
            value = self._replay[len(self.values)]
        self.values.append(value)
        return value

    @property
    def steps(self) -> list[int]:
        """Indices of the gradient releases among all releases."""
        return [place for place, event in enumerate(self.events) if event.purpose == "gradient"]


class RepeatedSampler:
    """The same samples in every run, without the record `out`, if any; stores the samples drawn."""

    rate = RATE

    def __init__(self, out: int | None = None) -> None:
        self._rng, self._out, self.drawn = np.random.default_rng(7), out, []

    def draw(self, n_rows: int, first: int = 0) -> np.ndarray:
        joined = self._rng.random(n_rows) < self.rate
        self.drawn.append(joined.copy())
        if self._out is not None:
            joined[self._out] = False
        return joined


class Checkpoint:
    """Keeps the state of a run after some of its steps, and stops the run there; from a kept state, a run resumes."""

    def __init__(self, stop: int) -> None:
        self._stop, self._state = stop, None

    def restored(self):
        return self._state

    def offer(self, state) -> None:
        if self._state is None and state["done"] == self._stop:
            kept = {**state, "history": json.dumps(state["history"])}
            self._state = {name: np.array(value) for name, value in kept.items()}
            raise StoppedError

    def withdraw(self) -> None:
        """A kept state is a copy."""


class StoppedError(Exception):
    """Ends a run after the step of its checkpoint."""


def problem(n: int = N, block_rows: int = 1024, drop: int | None = None) -> Problem:
    g = np.random.default_rng(0)
    centres = 2 * g.normal(size=(C, D))
    y = np.arange(n + 12) % C
    x = normalise_rows((centres[y] + g.normal(size=(n + 12, D))).astype(np.float32))
    public, private = np.arange(n + 12) < 12, np.arange(n + 12) >= 12
    if drop is not None:
        x[12 + drop] = 0
    text = normalise_rows(g.normal(size=(C, D)).astype(np.float32)).T.astype(np.float64)
    return Problem(
        D,
        C,
        private=SmallBlocks(x[private], y[private], block_rows),
        public=ArrayRows(x[public], y[public]),
        text_weights=text,
    )


def steps_of(method: Method) -> int:
    """Number of gradient releases."""
    return 1 if method.one_step else STEPS


def fit(
    method: Method,
    options: dict,
    data: Problem,
    mechanism: GaussianMechanism,
    sigma: float = SIGMA,
    sampler: RepeatedSampler | None = None,
    keeper: Checkpoint | None = None,
):
    rate = RATE if method.samples else 1.0
    options = method.make_options(options)
    others = {share.purpose: sigma for share in method.shares(options)} if method.spends else {}
    steps = steps_of(method)
    public = None if data.public is None else ArraySource(data.public.x, data.public.y)
    facts = PublicFacts(steps, data.n_features, data.n_classes, public, data.text_weights is not None)
    method.refuse(options, facts)
    schedule = Schedule(steps, sigma, rate * steps**0.5 / sigma if sigma else rate, rate, others)
    run = Run(schedule, mechanism, lambda: None, sampler or RepeatedSampler(), keeper=keeper)
    return method.fit(data, options, run)


def neighbour_of(method: Method, options: dict, spy: SpyMechanism, dropped: int) -> SpyMechanism:
    """A run without one record on the first run's releases. N is public, so the record keeps its place: it stays out
    of every sample, or its row is zero."""
    neighbour = SpyMechanism(replay=spy.values)
    if not method.samples:
        fit(method, options, problem(drop=dropped), neighbour)
    else:
        fit(method, options, problem(), neighbour, sampler=RepeatedSampler(out=dropped))
    return neighbour


@every_spending_variant
def test_neighbours_differ_by_at_most_sensitivity_at_every_step(method, options) -> None:
    spy = SpyMechanism()
    fit(method, options, problem(), spy)
    for dropped in (0, 17, N - 1):
        neighbour = neighbour_of(method, options, spy, dropped)
        for event, ours, theirs in zip(spy.events, spy.sums, neighbour.sums, strict=True):
            assert np.linalg.norm(ours - theirs) <= event.sensitivity


@every_spending_variant
def test_a_record_is_charged_at_least_what_it_contributed(method, options) -> None:
    spy, sampler = SpyMechanism(), RepeatedSampler()
    fit(method, options, problem(), spy, sampler=sampler)
    for dropped in (0, 17, N - 1):
        neighbour = neighbour_of(method, options, spy, dropped)
        shares = [
            np.linalg.norm(spy.sums[place] - neighbour.sums[place]) / spy.events[place].sensitivity
            for place in (range(len(spy.events)) if not method.samples else spy.steps)
        ]
        if not method.samples:
            moved = sum((share / SIGMA) ** 2 for share in shares)
            mu = spy.contributed.squared_mu[dropped] ** 0.5
            assert mu**2 >= moved * (1 - 1e-9)
            assert mu <= moved**0.5 + len(shares) ** 0.5 / SIGMA * 2e-3
        else:
            counts = spy.contributed.levels[dropped]
            assert counts.sum() == STEPS
            charged = np.repeat((np.arange(LEVELS + 1) / LEVELS) ** 2, counts)[::-1]
            joined = sorted(
                (share for share, drawn in zip(shares, sampler.drawn, strict=True) if drawn[dropped]), reverse=True
            )
            assert joined, "never sampled; another seed is needed"
            assert all(share <= level + 1e-12 for share, level in zip(joined, charged, strict=False))


@every_spending_variant
def test_private_rows_are_read_only_for_a_release(method, options) -> None:
    with guarded(problem(), method.fit) as data:
        fit(method, options, data, SpyMechanism())


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda rows: [len(block.y) for block in rows.blocks()], "lazy_blocks"),
        (lambda rows: rows.translated(np.zeros(D), 1.0).norms.max(), "norms"),
        (lambda rows: rows.y[0], "y"),
        (lambda rows: row_sum(rows, 1.0, origin=np.zeros(D)).value, "value"),
    ],
    ids=["blocks", "view", "labels", "sum"],
)
def test_another_read_of_private_rows_is_refused(read, name) -> None:
    honest = METHODS["noisy-gd"]

    def leaking(data: Problem, options, run: Run):
        read(data.private_rows)
        return honest.fit(data, options, run)

    method = replace(honest, fit=leaking)
    with guarded(problem(), method.fit) as data, pytest.raises(AssertionError, match=rf"\.{name} is read"):
        fit(method, {}, data, SpyMechanism())


@every_spending_variant
def test_releases_are_as_many_and_as_noisy_as_scheduled_and_no_record_exceeds_the_run(method, options) -> None:
    spy = SpyMechanism()
    fit(method, options, problem(), spy)
    shares = {share.purpose: share.count for share in method.shares(method.make_options(options))}
    releases = {release.purpose: release for release in grouped(spy.events)}
    assert {purpose: release.count for purpose, release in releases.items()} == {**shares, "gradient": steps_of(method)}
    assert {event.noise_multiplier for event in spy.events} == {SIGMA}
    assert [event.step for event in spy.events] == list(range(len(spy.events)))
    assert releases["gradient"].sampling_rate == (RATE if method.samples else 1.0)
    if not method.samples:
        assert spy.contributed.squared_mu.shape == (N,)
        assert spy.contributed.squared_mu.max() ** 0.5 <= gdp_mu(grouped(spy.events)) * (1 + 1e-12)


@every_spending_variant
def test_a_run_is_verified(method, options, features_file, tmp_path) -> None:
    few = {} if method.one_step else {"steps": STEPS}
    sampled = {"sampling_rate": RATE, "accountant": "rdp"} if method.samples else {}
    out = tmp_path / "run"
    train_run(
        TrainRequest(
            method=method.name, features=features_file, epsilon=3.0, options=options, out=out, **few, **sampled
        )
    )
    assert verify_run(VerifyRequest(run=out))["refused"] is None


@every_spending_variant
def test_block_size_does_not_change_the_result(method, options) -> None:
    whole = fit(method, options, problem(), SpyMechanism()).weights
    blocks = fit(method, options, problem(block_rows=7), SpyMechanism()).weights
    np.testing.assert_allclose(whole, blocks, atol=1e-3 * np.abs(whole).max())


@every_spending_variant
def test_a_resumed_run_ends_with_the_same_weights_and_history(method, options) -> None:
    whole, keeper = SpyMechanism(), Checkpoint(steps_of(method) // 2)
    expected = fit(method, options, problem(), whole)
    with pytest.raises(StoppedError):
        fit(method, options, problem(), SpyMechanism(replay=whole.values), keeper=keeper)
    before = whole.steps[0]  # a resumed run gets these values again, then those of the steps that remain
    values = whole.values[:before] + whole.values[before + steps_of(method) // 2 :]
    resumed = fit(method, options, problem(), SpyMechanism(replay=values), keeper=keeper)
    np.testing.assert_array_equal(resumed.weights, expected.weights)
    assert resumed.history == expected.history


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
        method.make_options({"dropout": 0.9})


def other_values(option: Option) -> list:
    """A few allowed values of an option that are not its default."""
    tried = option.words or ((1, 2, 5) if option.kind is int else (0.3, 2.0, 1e-3))
    return [value for value in tried if value != option.default and (option.words or option._holds(value))]


def effect_of(method: Method, given: dict) -> list:
    """Everything that options change, on the path of `fit`: the weights, and what the plan makes of them."""
    data, options = problem(), method.make_options(given)
    if getattr(options, "text_scale", None) is not None:
        data = replace(data, text_weights=options.text_scale * data.text_weights)
    fitted = fit(method, given, data, SpyMechanism())
    return [fitted.weights.tolist(), np.asarray(fitted.bias).tolist(), method.shares(options)]


@pytest.mark.parametrize(("method", "options"), [(method, {}) for method in METHODS.values()], ids=[*METHODS])
def test_each_option_changes_the_result_or_is_refused(method, options) -> None:
    known = {name: option for name, option in declared(method.options).items() if name not in options}
    from_text = {**options, "init": "text"} if "init" in known else options
    before = effect_of(method, options)

    def does_nothing(name: str, value: object) -> bool:
        try:
            if name == "text_scale":
                return effect_of(method, {**from_text, name: value}) == effect_of(method, from_text)
            return effect_of(method, {**options, name: value}) == before
        except (ParameterError, UsageError):
            return False

    idle = [name for name, option in known.items() if all(does_nothing(name, value) for value in other_values(option))]
    assert idle == []


@pytest.mark.parametrize(
    "method", [m for m in METHODS.values() if "score_noise" in declared(m.options)], ids=lambda m: m.name
)
def test_two_settings_of_the_step_size_are_refused(method) -> None:
    with pytest.raises(UsageError, match="score-noise 2 does nothing with learning-rate"):
        method.make_options({"learning_rate": 0.1, "score_noise": 2})


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
        ("noisy-gd", {"output": "mean"}),
        ("noisy-gd", {"output": "vote", "ensemble": STEPS + 1}),
        ("dp-sgd", {"optimizer": "lbfgs"}),
        ("dp-sgd", {"loss": "hinge"}),
        ("dpsgd-f", {"variant": "new"}),
        ("dpsgd-f", {"centre": "median"}),
        ("mirror-descent", {"update": "second-order"}),
        ("mirror-descent", {"alpha": 1.5}),
        ("mirror-descent", {"horizon": STEPS - 1}),
        ("dope-sgd", {"extended": 1.5}),
        ("dope-sgd", {"public_batch": 0}),
        ("dope-sgd", {"augment_public": -1}),
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


@pytest.mark.parametrize(
    "method", [m for m in METHODS.values() if not m.samples and not m.one_step], ids=lambda m: m.name
)
@pytest.mark.parametrize("preset", ["paper", "paper-clip"])
def test_the_papers_settings_are_options_of_the_method(method, preset) -> None:
    method.make_options(paper_options(method, preset))
    assert paper_options(method, preset).get("weight_decay", 1e-2) == 1e-2
