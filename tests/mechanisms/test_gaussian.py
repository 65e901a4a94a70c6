"""The noise has the stated variance, is independent and cryptographic, and is never reused; events precede values."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from linprobe.mechanisms import noise as noise_module
from linprobe.mechanisms.gaussian import ClippedSum, GaussianMechanism
from linprobe.mechanisms.noise import GRID_BITS, PART, NoiseSource
from linprobe.parallel.process_group import in_group


def zero_sum(shape=(200, 50), sensitivity=2.0) -> ClippedSum:
    return ClippedSum(np.zeros(shape), sensitivity, np.ones(3))


def noise(n_releases: int, multiplier: float = 3.0) -> np.ndarray:
    mechanism = GaussianMechanism(NoiseSource(1), lambda event: None)
    return np.stack([mechanism.release(zero_sum(), multiplier, purpose="gradient") for _ in range(n_releases)])


def variance_is(sample: np.ndarray, std: float) -> bool:
    """Chi-square test of the variance at the 1e-6 level."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], sample.size)
    return bool(low <= (sample**2).sum() / std**2 <= high)


def test_noise_has_the_stated_variance_and_not_two_thirds_or_three_halves_of_it() -> None:
    sample = noise(5)
    assert variance_is(sample, 6.0)
    assert not variance_is(sample, 6.0 * 2 / 3)
    assert not variance_is(sample, 6.0 * 3 / 2)


def test_noise_is_normal() -> None:
    assert stats.kstest(noise(3).ravel() / 6.0, "norm").pvalue > 1e-6


def test_noise_is_independent_across_classes_steps_and_rows() -> None:
    sample = noise(2) / 6.0
    size = 1 / math.sqrt(sample[0].size)
    assert abs((sample[0] * sample[1]).mean()) < 6 * size
    assert abs((sample[0][:, 1:] * sample[0][:, :-1]).mean()) < 6 * size
    assert abs((sample[0][1:] * sample[0][:-1]).mean()) < 6 * size
    correlations = np.corrcoef(sample[0].T) - np.eye(50)
    assert np.abs(correlations).max() < 6 / math.sqrt(200)


def standard(source: NoiseSource, *shape: int) -> np.ndarray:
    """Noise of standard deviation 1 alone."""
    return source.add_noise(np.zeros(shape), 1.0)


def test_moments_and_tail_counts_are_those_of_a_normal() -> None:
    sample = standard(NoiseSource(5), 4_000_000)
    n = sample.size
    assert abs(sample.mean()) < 6 / math.sqrt(n)
    assert variance_is(sample, 1.0)
    assert abs((sample**4).mean() - 3) < 6 * math.sqrt(96 / n)
    assert abs((sample[1:] * sample[:-1]).mean()) < 6 / math.sqrt(n)
    for threshold in (1.0, 2.0, 3.0, 4.0, 4.9, 5.2):
        for side in (sample, -sample):
            expected = stats.norm.sf(threshold)
            low, high = stats.binom.ppf([1e-7, 1 - 1e-7], n, expected)
            assert low <= (side > threshold).sum() <= high


def test_a_source_never_repeats_a_draw_and_two_sources_differ() -> None:
    one, two = NoiseSource(), NoiseSource()
    draws = [standard(one, 8), standard(one, 8), standard(two, 8)]
    one.ratchet()
    draws.append(standard(one, 8))
    assert len({draw.tobytes() for draw in draws}) == 4


def test_a_new_key_does_not_give_earlier_draws_and_follows_from_the_old_one_alone() -> None:
    source = NoiseSource(7)
    before = source.key
    standard(source, 8)
    source.ratchet()
    other = NoiseSource(7)
    other.ratchet()
    assert source.key == other.key != before
    assert source.draws == 0


def test_a_renewed_key_needs_the_old_key_and_fresh_bytes_and_a_seed_has_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = NoiseSource()
    before = source.key
    assert len({before, source.renewed_key(), source.renewed_key()}) == 3
    assert source.key == before
    monkeypatch.setattr(noise_module.os, "urandom", lambda n: bytes(n))  # an operating system that repeats itself
    one, two = source.renewed_key(), NoiseSource().renewed_key()
    assert len({before, one, two}) == 3
    seeded = NoiseSource(7)
    assert seeded.renewed_key() == seeded.key


def test_threads_and_parts_change_no_number() -> None:
    values = np.random.default_rng(0).normal(size=3 * PART + 9) * 100
    whole = NoiseSource(7).add_noise(values, 2.5)
    source = NoiseSource(7)
    words = source.words(0, len(values))
    for place in (0, 1, PART - 1, PART, 2 * PART + 3, len(values) - 1):
        grid = 2.0 ** (1 - GRID_BITS)
        cell = source.cell(0, place, int(words[place]), float(values[place]), 2.5, grid)
        assert whole[place] == cell * grid
    reshaped = NoiseSource(7).add_noise(values.reshape(3, -1), 2.5)
    np.testing.assert_array_equal(reshaped.ravel(), whole)
    table = values[: 3 * PART].reshape(-1, 24)
    for layout in (table, np.asfortranarray(table), np.pad(table.T, ((0, 0), (0, 5)))[:, :-5].T):
        found = NoiseSource(7).add_noise(layout, 2.5)
        np.testing.assert_array_equal(found.ravel(), whole[: 3 * PART])


@pytest.mark.parametrize(
    "draw",
    [
        lambda source: source.add_noise(np.broadcast_to(np.zeros(1), (2**35,)), 1.0),
        lambda source: source.bernoulli(0.5, 8, start=2**35 - 8),
        lambda source: source.bernoulli(0.5, 8, start=4),
    ],
)
def test_a_draw_that_no_stream_has_is_refused_before_it_is_made(draw) -> None:
    source = NoiseSource(7)
    with pytest.raises(ValueError, match="below 2\\^35 in all"):
        draw(source)
    assert source.draws == 0


def test_only_a_seed_makes_noise_reproducible_and_it_says_so() -> None:
    np.testing.assert_array_equal(standard(NoiseSource(7), 5), standard(NoiseSource(7), 5))
    assert "not private" in NoiseSource(7).kind
    assert "not private" not in NoiseSource().kind


def test_the_event_is_recorded_before_the_noise_is_drawn() -> None:
    order = []

    class Source(NoiseSource):
        def add_noise(self, value, std):
            order.append("noise")
            return super().add_noise(value, std)

    mechanism = GaussianMechanism(Source(), lambda event: order.append(event.step))
    for _ in range(2):
        mechanism.release(zero_sum(), 3.0, purpose="gradient")
    assert order == [0, "noise", 1, "noise"]


def test_no_noise_is_below_the_multiplier_times_the_sensitivity() -> None:
    class Source(NoiseSource):
        def add_noise(self, value, std):
            assert Fraction(std) >= Fraction(multiplier) * Fraction(sensitivity)
            return value

    mechanism = GaussianMechanism(Source(), lambda event: None)
    for multiplier, sensitivity in np.random.default_rng(0).uniform(0.1, 9, (100, 2)).tolist():
        mechanism.release(zero_sum((1, 1), sensitivity), multiplier, purpose="gradient")


def test_ranks_make_the_same_draws() -> None:
    def draws(group) -> int:
        source = NoiseSource(1)
        GaussianMechanism(source, lambda event: None, group=group).release(zero_sum(), 3.0, purpose="gradient")
        return source.draws

    assert in_group(2, draws) == [1, 1]


def test_a_ledger_that_cannot_be_written_stops_the_release() -> None:
    def full(event) -> None:
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        GaussianMechanism(NoiseSource(), full).release(zero_sum(), 3.0, purpose="gradient")


def test_released_values_lie_on_a_public_grid() -> None:
    grid = 2.0 ** (math.floor(math.log2(6.0)) - 20)
    scaled = noise(1) / grid
    np.testing.assert_array_equal(scaled, np.rint(scaled))


@pytest.mark.parametrize(("multiplier", "sensitivity"), [(-1, 1), (math.nan, 1), (math.inf, 1), (3, math.inf), (3, 0)])
def test_noise_without_a_meaning_is_refused(multiplier, sensitivity) -> None:
    with pytest.raises(ValueError, match="allowed"):
        GaussianMechanism(NoiseSource(), lambda event: None).release(
            zero_sum(sensitivity=sensitivity), multiplier, purpose="gradient"
        )
