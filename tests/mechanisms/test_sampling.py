"""Poisson samples: stated rate, independent records, a separate stream; tracking of records does not change sums."""

import itertools

import numpy as np
import pytest
from scipy import stats

from linprobe.accounting.ledger import Ledger
from linprobe.api.estimators import DPSGD, DPSGDF
from linprobe.data import blocks
from linprobe.data import rows as rows_module
from linprobe.data.blocks import ArraySource, Preprocessing
from linprobe.data.rows import ArrayRows, ChainedRows, StreamedRows
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import PLAIN, Origin, Scale
from linprobe.mechanisms import noise
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.methods import METHODS, Problem, Run, Schedule
from tests.conftest import executed
from tests.small_blocks import SmallBlocks

G = np.random.default_rng(5)
X = (G.normal(size=(2600, 6)) / 2.5).astype(np.float32)
Y = G.integers(0, 4, len(X))


def draws(rate: float, n_rows: int, count: int, seed: int = 1) -> np.ndarray:
    sampler = PoissonSampler(NoiseSource(seed), rate)
    return np.stack([sampler.draw(n_rows) for _ in range(count)])


@pytest.mark.parametrize("rate", [0.001, 0.15, 0.5, 0.97])
def test_batch_sizes_are_binomial(rate) -> None:
    n, count = 3000, 400
    sizes = draws(rate, n, count).sum(axis=1)
    assert stats.binomtest(int(sizes.sum()), n * count, rate).pvalue > 1e-6
    # sizes vary, and no more than those of independent records
    spread = sizes.var(ddof=1) / (n * rate * (1 - rate)) * (count - 1)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], count - 1)
    assert low < spread < high


def test_no_record_joins_with_more_than_the_stated_rate(monkeypatch) -> None:
    rate = 1e-6  # times 2^64 is no whole number
    monkeypatch.setattr(NoiseSource, "words", lambda self, draw, n, start: np.full(n, int(rate * 2**64), np.uint64))
    assert not NoiseSource().bernoulli(rate, 3).any()


def test_every_record_has_the_same_rate_and_joins_on_its_own() -> None:
    rate, n, count = 0.3, 60, 4000
    joined = draws(rate, n, count).astype(float)
    centred = (joined - rate) / (rate * (1 - rate)) ** 0.5
    assert np.abs(centred.mean(axis=0)).max() < 6 / count**0.5
    pairs = centred.T @ centred / count
    assert np.abs(pairs - np.diag(np.diag(pairs))).max() < 6 / count**0.5
    in_turn = (centred[1:] * centred[:-1]).mean(axis=0)
    assert np.abs(in_turn).max() < 6 / count**0.5


def test_two_draws_differ_and_only_a_seed_repeats_them() -> None:
    one, two = draws(0.5, 200, 2)
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(draws(0.5, 200, 2), [one, two])
    other = PoissonSampler(NoiseSource(), 0.5).draw(200)
    assert not np.array_equal(other, PoissonSampler(NoiseSource(), 0.5).draw(200))


def test_rate_one_takes_everybody_and_draws_nothing() -> None:
    class Silent(NoiseSource):
        def words(self, draw: int, n: int, start: int = 0):
            raise AssertionError("drawn")

    assert PoissonSampler(Silent(1), 1.0).draw(7).all()


def test_no_stream_is_used_twice_by_samples_or_noise(monkeypatch) -> None:
    keys = []
    real = noise.ChaCha20

    def watched(key, nonce):
        keys.append((key, nonce))
        return real(key, nonce)

    monkeypatch.setattr(noise, "ChaCha20", watched)
    probe = DPSGDF(epsilon=3, classes=range(4), n_steps=6, accountant="rdp").fit(X[:300], Y[:300])
    # a number that its first bits leave undecided, which is rare, has further bits in a stream that no draw has
    draws = [one for one in keys if not int.from_bytes(one[1][4:], "little") & noise.EXTENSION]
    # one for the mean, then one sample and one noise for each step
    assert len(draws) == 1 + 2 * 6 == len(set(draws))
    assert len({key for key, _ in keys}) == 1 + 6  # a new key after the mean, and after every step
    assert probe.privacy_["steps"] == 6


ROWS = {
    "array": lambda: ArrayRows(X, Y),
    "small blocks": lambda: SmallBlocks(X, Y, 100),
    "streamed": lambda: StreamedRows(ArraySource(X, Y).blocks, len(X), 6, Preprocessing()),
    "chained": lambda: ChainedRows(ArrayRows(X[:1500], Y[:1500]), ArrayRows(X[1500:], Y[1500:])),
    "translated": lambda: ArrayRows(X, Y).translated(np.arange(6) / 10, 0.5),
    "translated chain": lambda: ChainedRows(ArrayRows(X[:30], Y[:30]), ArrayRows(X[30:], Y[30:])).translated(
        np.arange(6) / 10, 0.5
    ),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("rate", [0.01, 0.4, 1.0])
def test_looking_at_those_who_stay_out_changes_no_sum(name, rate) -> None:
    rows = ROWS[name]()
    joined = np.random.default_rng(3).random(len(X)) < rate
    weights = np.random.default_rng(4).normal(size=(rows.n_features, 4))
    for geometry in (PLAIN, Origin(weights / 9), Scale(np.exp(weights))):
        looked, blind = (
            clipped_sum(rows.sample(joined, rate, observed=observed), weights, 0.3, geometry=geometry)
            for observed in (True, False)
        )
        np.testing.assert_allclose(blind.value, looked.value, atol=1e-4)
        # contributions of the public rows of a chain are not recorded
        private = {"chained": 1500, "translated chain": 30}.get(name, len(X))
        assert (looked.contributions.size, blind.contributions.size) == (private, 0)
        assert looked.sensitivity == blind.sensitivity == 0.3
        assert looked.sampling_rate == blind.sampling_rate == rate
        # what a record is charged does not depend on the sample
        everybody = clipped_sum(rows.sample(joined | True, rate, observed=True), weights, 0.3, geometry=geometry)
        np.testing.assert_array_equal(looked.contributions, everybody.contributions)


@pytest.mark.parametrize("name", ROWS)
def test_sampled_blocks_hold_the_sampled_rows_at_their_places(name, monkeypatch) -> None:
    for module in (rows_module, blocks):
        monkeypatch.setattr(module, "BLOCK_ROWS", 128)
    monkeypatch.setattr(rows_module, "SHARD_ROWS", 512)
    rows = ROWS[name]()
    joined = np.random.default_rng(3).random(len(X)) < 0.7
    everything = [(block.x.copy(), block.y, block.norms) for block in rows.blocks()]
    selected = []
    for load in rows.sample(joined, 0.7, observed=False).lazy_blocks():
        block = load()
        assert len(block.y) > 0
        assert block.start % 512 == 0 or "chain" in name or name == "small blocks"
        assert np.array_equal(block.sampled, joined[block.start : block.start + len(block.y)])
        selected.append((block.x[block.sampled], block.y[block.sampled], block.norms[block.sampled]))
    for whole, found in zip(zip(*everything, strict=True), zip(*selected, strict=True), strict=True):
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(whole)[joined], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ROWS)
def test_nobody_joining_is_a_sum_of_zero(name) -> None:
    rows = ROWS[name]()
    nobody = np.zeros(len(X), dtype=bool)
    for observed in (True, False):
        weights = np.ones((rows.n_features, 4))
        found = clipped_sum(rows.sample(nobody, 0.1, observed=observed), weights, 0.3)
        np.testing.assert_array_equal(found.value, np.zeros_like(weights))


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.samples and "private" in method.needs]
)
def test_empty_batches_get_noise_and_count(name) -> None:
    events, source = [], NoiseSource(3)
    schedule = Schedule(40, 5.0, 1e-6, 1e-6, {"mean": 5.0})
    run = Run(schedule, GaussianMechanism(source, events.append), lambda: None, PoissonSampler(source, 1e-6))
    public = ArrayRows(X[:9], Y[:9])
    data = Problem(6, 4, private=ArrayRows(X[9:200], Y[9:200]), public=public)
    options = METHODS[name].make_options({"init": "zero"})
    fitted = METHODS[name].fit(data, options, run)
    steps = [event for event in events if event.purpose == "gradient"]
    assert len(steps) == 40
    assert {event.sampling_rate for event in steps} == {1e-6}
    assert np.isfinite(fitted.weights).all()
    assert np.linalg.norm(fitted.weights) > 0


def test_every_step_of_a_tiny_rate_is_in_the_ledger() -> None:
    ledger = Ledger()
    probe = DPSGD(epsilon=1, classes=range(4), n_steps=30, sampling_rate=1e-4, accountant="rdp", condition="none")
    trained = executed(probe, ArraySource(X[:200], Y[:200]), ledger=ledger)
    assert [event.step for event in ledger.events] == list(range(30))
    assert trained.privacy.steps == 30


def test_a_step_without_a_sampler_of_its_rate_is_refused() -> None:
    rows = ArrayRows(X, Y)
    mechanism = GaussianMechanism(NoiseSource(1), lambda event: None)
    for sampler in (None, PoissonSampler(NoiseSource(1), 0.2)):
        run = Run(Schedule(1, 1.0, 1.0, 0.1), mechanism, lambda: None, sampler)
        with pytest.raises(ValueError, match=r"the run has no sampler of rate 0\.1"):
            run.batch(rows)
    assert Run(Schedule(1, 1.0, 1.0), mechanism, lambda: None).batch(rows) is rows


def test_records_are_charged_where_they_stayed_out_and_only_for_what_was_observed() -> None:
    rates = {}
    for observed, rate in itertools.product((True, False), (0.3, 1.0)):
        mechanism = GaussianMechanism(NoiseSource(1), lambda event: None)
        run = Run(Schedule(3, 2.0, 1.0, rate), mechanism, lambda: None, PoissonSampler(NoiseSource(2), rate), observed)
        for _ in range(3):
            clipped = clipped_sum(run.batch(ArrayRows(X, Y)), np.zeros((6, 4)), 0.3)
            mechanism.release(clipped, 2.0, purpose="gradient")
        rates[observed, rate] = mechanism.contributed
    assert (rates[True, 0.3].levels.sum(axis=1) == 3).all()
    assert rates[True, 0.3].squared_mu.size == 0
    assert rates[False, 0.3].levels.shape[0] == 0
    assert rates[True, 1.0].levels.shape[0] == 0
    assert rates[True, 1.0].squared_mu.shape == (len(X),)
