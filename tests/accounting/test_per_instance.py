"""Per-record losses: never below the exact figure, never above the worst case."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.accounting.accountants import PLD
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import epsilon_of, holds
from linprobe.accounting.per_instance import (
    ORDERS,
    RecordLosses,
    histogram_counts,
    per_instance_epsilon,
    record_losses,
    summary,
)
from linprobe.evaluation.pdp_report import sparkline
from linprobe.mechanisms.gaussian import LEVELS, Contributed
from tests.accounting.lower_bounds import check_record
from tests.conftest import mostly_nightly


@given(
    st.lists(st.just(0.0) | st.floats(-9, 2).map(lambda power: 10**power), min_size=1, max_size=30),
    st.floats(-12, -0.5).map(lambda power: 10**power),
)
def test_each_epsilon_is_a_bound_and_hardly_above_the_accountant_of_record(mus: list[float], delta: float) -> None:
    found = per_instance_epsilon(np.array(mus), delta)
    for mu, epsilon in zip(mus, found.tolist(), strict=True):
        assert holds(epsilon, delta, mu)
        least = epsilon_of(mu, delta)
        assert epsilon <= max(least * (1 + 1e-8), least + 1e-11)


def test_epsilon_grows_with_mu() -> None:
    epsilons = per_instance_epsilon(np.linspace(0, 5, 200), 1e-5)
    assert (np.diff(epsilons) >= 0).all()
    assert epsilons[0] == 0


def test_no_record_is_reported_above_the_worst_case() -> None:
    mu = np.full(5, 0.71911)
    worst = epsilon_of(0.71911, 1e-5)
    assert RecordLosses(mu, np.zeros((5, 0), dtype=np.float32)).epsilon(1e-5, worst).max() <= worst


def test_summary_of_known_figures() -> None:
    report = summary(np.array([0.1, 0.2, 0.6, 0.9]), 1.0)
    assert report["records"] == 4
    assert report["max"] == 0.9
    assert report["mean"] == pytest.approx(0.45)
    assert report["share_below_half"] == 0.5
    assert report["quantiles"]["0.5"] == pytest.approx(0.4)


@given(st.lists(st.floats(0, 3), min_size=2, max_size=40), st.integers(0, 39))
def test_one_record_moves_the_histogram_by_one_count(epsilons, place) -> None:
    place %= len(epsilons)
    with_it = histogram_counts(np.array(epsilons), 3.0)
    without = histogram_counts(np.array(epsilons[:place] + epsilons[place + 1 :]), 3.0)
    assert np.linalg.norm(with_it - without) == 1
    assert with_it.sum() == len(epsilons)


def test_sparkline_rises_from_low_to_full_height() -> None:
    line = sparkline(np.linspace(0, 1, 500), 1.0)
    assert line[0] == "▁"
    assert line[-1] == "█"
    assert list(line) == sorted(line)


STEPS = Releases("gradient", 2.0, 0.2, 50)
NO_MU = np.zeros(0)


def losses_at(share: float, steps: Releases = STEPS, inherited: tuple[Releases, ...] = (), n: int = 3) -> RecordLosses:
    """Losses of `n` records that would have contributed `share` of the sensitivity at every step."""
    contributed = Contributed()
    for _ in range(steps.count):
        contributed.add(np.full(n, share), steps.noise_multiplier, steps.sampling_rate)
    return record_losses(n, contributed.squared_mu, contributed.levels, steps, inherited)


def renyi_epsilon(releases: list[Releases], delta: float) -> float:
    """Google's Renyi accountant at the same orders, as a reference."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant([float(order) for order in ORDERS])
    for release in releases:
        event = GaussianDpEvent(release.noise_multiplier)
        if release.sampling_rate < 1:
            event = PoissonSampledDpEvent(release.sampling_rate, event)
        accountant.compose(SelfComposedDpEvent(event, release.count))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("level", [1, 8, 20, 45, 63, 64])
def test_a_constant_share_costs_what_the_accountant_finds_at_the_noise_it_sees(level) -> None:
    share = (level / LEVELS) ** 2
    found = losses_at(share).epsilon(1e-5, math.inf)
    exact = renyi_epsilon([Releases("gradient", STEPS.noise_multiplier / share, 0.2, 50)], 1e-5)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-9)
    assert (found >= exact * (1 - 1e-9)).all()


@given(st.floats(1e-6, 1))
def test_a_share_between_two_levels_is_rounded_up(share) -> None:
    found = losses_at(share, n=1).epsilon(1e-5, math.inf)[0]
    level = math.ceil(math.sqrt(share) * LEVELS)
    assert found == losses_at((level / LEVELS) ** 2, n=1).epsilon(1e-5, math.inf)[0]
    assert (level / LEVELS) ** 2 >= share


@pytest.mark.parametrize("records", mostly_nightly((4, 24), (4).__eq__))
def test_no_random_loss_is_below_the_exact_one_nor_far_above_it(records: int) -> None:
    rng = np.random.default_rng(11)
    found = [check_record(rng, sampled_only=place % 2 == 0) for place in range(records)]
    assert all(holds for holds, _ in found)
    assert max(excess for _, excess in found) < 1e-6


def test_the_sum_over_very_many_releases_from_all_rows_is_not_rounded_down() -> None:
    contributed = Contributed()
    for _ in range(1000):
        contributed.add(np.array([0.1, 1.0]), 3.0, 1.0)
    mu = record_losses(2, contributed.squared_mu, contributed.levels, STEPS, ()).mu
    for found, share in zip(mu.tolist(), (0.1, 1.0), strict=True):
        assert Fraction(found) ** 2 >= 1000 * Fraction(share) ** 2 / 9
        assert found == pytest.approx(math.sqrt(1000) * share / 3, rel=1e-9)


def test_a_full_share_costs_the_run_and_no_more_than_it() -> None:
    by_renyi = losses_at(1.0).epsilon(1e-5, math.inf)[0]
    run = PLD.epsilon([STEPS], 1e-5)
    assert run <= by_renyi <= 1.5 * run
    np.testing.assert_array_equal(losses_at(1.0).epsilon(1e-5, run), np.full(3, run))


def test_many_epsilons_take_less_memory_than_the_losses_and_are_those_of_each_record() -> None:
    rng = np.random.default_rng(3)
    renyi = rng.exponential(0.01, (300_000, len(ORDERS))).astype(np.float32)
    renyi[::7] = 0
    losses = RecordLosses(rng.exponential(0.1, len(renyi)) * (rng.random(len(renyi)) < 0.5), renyi)
    tracemalloc.start()
    found = losses.epsilon(1e-5, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * renyi.nbytes
    picked = rng.integers(0, len(renyi), 50)
    for place in picked.tolist():
        alone = RecordLosses(losses.mu[place : place + 1], renyi[place : place + 1])
        assert alone.epsilon(1e-5, 1.0)[0] == found[place]


def test_a_record_without_contributions_lost_nothing() -> None:
    np.testing.assert_array_equal(losses_at(0.0).epsilon(1e-5, 3.0), np.zeros(3))
    full_batch = record_losses(3, np.zeros(3), np.zeros((0, LEVELS + 1), dtype=np.uint16), STEPS, ())
    np.testing.assert_array_equal(full_batch.epsilon(1e-5, 3.0), np.zeros(3))


def test_losses_grow_with_the_share_and_with_every_further_step() -> None:
    shares = [losses_at(share).epsilon(1e-5, math.inf)[0] for share in (0.0, 0.01, 0.1, 0.5, 1.0)]
    assert shares == sorted(set(shares))
    more = Releases("gradient", 2.0, 0.2, 60)
    assert losses_at(0.5, more).epsilon(1e-5, math.inf)[0] > shares[3]


MEAN = Releases("inherited", 6.0, 1.0, 2)
EARLIER = Releases("inherited", 3.0, 0.1, 40)


@pytest.mark.parametrize("inherited", [(MEAN,), (EARLIER,), (MEAN, EARLIER)])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_every_record_is_charged_the_whole_of_what_was_inherited(inherited, share) -> None:
    found = losses_at(share, inherited=inherited).epsilon(1e-5, math.inf)
    own = [Releases("gradient", 2.0 / share, 0.2, 50)] if share else []
    assert found == pytest.approx(renyi_epsilon([*inherited, *own], 1e-5), rel=1e-4)


def test_releases_from_all_rows_add_to_sampled_ones() -> None:
    contributed = Contributed()
    contributed.add(np.array([0.0, 0.5, 1.0]), 4.0, 1.0)
    for _ in range(50):
        contributed.add(np.array([0.25, 0.25, 0.25]), 2.0, 0.2)
    losses = record_losses(3, contributed.squared_mu, contributed.levels, STEPS, ())
    for place, share in enumerate((0.0, 0.5, 1.0)):
        whole = [Releases("mean", 4.0 / share, 1.0, 1)] if share else []
        expected = renyi_epsilon([*whole, Releases("gradient", 8.0, 0.2, 50)], 1e-5)
        assert losses.epsilon(1e-5, math.inf)[place] == pytest.approx(expected, rel=1e-4)
    # a histogram costs every record alike
    charged = losses.charged(1 / 5.0**2).epsilon(1e-5, math.inf)
    expected = renyi_epsilon([Releases("", 5.0, 1.0, 1), Releases("gradient", 8.0, 0.2, 50)], 1e-5)
    assert charged[0] == pytest.approx(expected, rel=1e-4)
    assert (charged > losses.epsilon(1e-5, math.inf)).all()


def test_more_steps_than_a_short_counter_holds_are_counted() -> None:
    contributed = Contributed()
    for _ in range(2**16 + 3):
        contributed.add(np.ones(1), 100.0, 0.01)
    assert contributed.levels[0, LEVELS] == 2**16 + 3


def test_many_records_are_judged_as_few_are(monkeypatch) -> None:
    levels = np.random.default_rng(0).integers(0, 9, (50, LEVELS + 1)).astype(np.uint16)
    whole = record_losses(40, NO_MU, levels, STEPS, ())
    monkeypatch.setattr("linprobe.accounting.per_instance.RECORDS_AT_ONCE", 7)
    np.testing.assert_array_equal(record_losses(40, NO_MU, levels, STEPS, ()).renyi, whole.renyi)


def test_an_epsilon_of_the_run_at_another_delta_bounds_no_loss_of_a_fit() -> None:
    losses = RecordLosses(np.ones(2), np.zeros((2, 0), dtype=np.float32), (Releases("gradient", 1.0, 1.0, 1),))
    np.testing.assert_array_equal(losses.epsilon(1e-9, epsilon_of(1.0, 1e-3)), losses.epsilon(1e-9))
