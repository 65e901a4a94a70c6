"""The sampled accountant: never below the true epsilon, and above it by no more than is stated."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flint import acb, arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from linprobe.accounting import loss_distribution
from linprobe.accounting.accountants import GAUSSIAN, GOOGLE, PLD, RENYI, _on_grid, renyi_estimate, third_opinion
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import delta_of
from linprobe.accounting.loss_distribution import (
    UnresolvedError,
    convolved,
    epsilon_of_kinds,
    exponentials,
    gains,
    largest_added,
    loss_of,
    total_loss,
)
from linprobe.accounting.loss_grid import Grid, Kind, Window, grid_for
from tests.accounting.lower_bounds import Setting, delta_of_the_sum, random_settings
from tests.conftest import mostly_nightly

EXCESS, LEAST_EXCESS = 1e-4, 5e-4  # relative to epsilon, or absolute where that is more


def sampled(rate: float, sigma: float, count: int) -> list[Releases]:
    return [Releases("gradient", sigma, rate, count)]


# exact values: ball arithmetic for one and two releases, Gaussian DP for sums over all rows


def one_release(epsilon: arb, rate: float, sigma: float) -> tuple[arb, arb]:
    """delta(epsilon) of one sampled release, P against Q and Q against P."""
    a, q, root = epsilon.exp(), arb(rate), arb(sigma) * arb(2).sqrt()

    def beyond(excess: arb) -> tuple[arb, arb]:
        place = arb(sigma) ** 2 * (excess / q).log() + arb(1) / 2
        return (place / root).erfc() / 2, ((place - 1) / root).erfc() / 2

    above, below = a - 1 + q, 1 / a - 1 + q
    first = 1 - a
    if above > 0:
        absent, present = beyond(above)
        first = q * present - above * absent
    if not below > 0:
        return first, arb(0)
    absent, present = beyond(below)
    return first, (1 - absent) - a * ((1 - q) * (1 - absent) + q * (1 - present))


def two_releases(epsilon: float, rate: float, sigma: float) -> arb:
    """delta(epsilon) of two sampled releases, P against Q: an integral over the noise of the first, a ball."""
    q, variance = arb(rate), arb(sigma) ** 2

    def integrand(x: acb, _: bool) -> acb:
        ratio = 1 - q + q * ((2 * x - 1) / (2 * variance)).exp()
        density = (-(x**2) / (2 * variance)).exp() / (acb.pi() * 2 * variance).sqrt()
        # delta of the second release at exp(epsilon) / ratio, times the density of the first under P
        excess = acb(epsilon).exp() - (1 - q) * ratio
        place = variance * (excess / (q * ratio)).log() + arb(1) / 2
        root = acb(sigma) * acb(2).sqrt()
        return density * (q * ratio * ((place - 1) / root).erfc() - excess * (place / root).erfc()) / 2

    # beyond the last place, the losses of the first release alone exceed epsilon + log(1 / (1 - q))
    last = variance * ((((arb(epsilon).exp() / (1 - q)) - 1 + q) / q).log()) + arb(1) / 2
    low = -arb(40) * arb(sigma)
    inside = acb.integral(integrand, acb(low), acb(last - arb(2) ** -40)).real
    a, root = arb(epsilon).exp(), arb(sigma) * arb(2).sqrt()
    absent, present = (last / root).erfc() / 2, ((last - 1) / root).erfc() / 2
    # there delta of the second release is 1 - exp(epsilon) / ratio
    return inside + (1 - q) * absent + q * present - a * absent


@pytest.mark.parametrize(("rate", "sigma"), [(0.0011, 0.4838), (0.01, 1.0), (0.15, 3.1), (0.5, 0.7), (0.999, 2.0)])
@pytest.mark.parametrize("delta", mostly_nightly([1e-13, 1e-5, 1e-3], (1e-13, 1e-3).__contains__))
def test_one_release_costs_its_closed_form(rate: float, sigma: float, delta: float) -> None:
    epsilon = PLD.epsilon(sampled(rate, sigma, 1), delta)
    with ctx.workprec(256):
        assert max(float(each.upper()) for each in one_release(arb(epsilon), rate, sigma)) <= delta * (1 + 1e-15)
        if epsilon > LEAST_EXCESS:
            less = one_release(arb(epsilon - max(EXCESS * epsilon, LEAST_EXCESS)), rate, sigma)
            assert max(float(each.lower()) for each in less) > delta


@pytest.mark.parametrize(
    ("rate", "sigma", "delta"),
    mostly_nightly(
        [(0.0011, 0.4838, 1e-6), (0.0124, 0.4696, 4.5e-4), (0.15, 3.1, 1e-5), (0.5, 0.7, 1e-9), (0.3, 20.0, 1e-12)],
        lambda case: case[0] in (0.0011, 0.15, 0.3),
    ),
)
def test_two_releases_cost_their_integral(rate: float, sigma: float, delta: float) -> None:
    epsilon = PLD.epsilon(sampled(rate, sigma, 2), delta)
    with ctx.workprec(128):
        assert two_releases(epsilon, rate, sigma) <= delta
        less = two_releases(epsilon * (1 - EXCESS), rate, sigma)
        assert less > delta


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.3, 1.0, 5.0, 7.0, 30.0, 900.0])
@pytest.mark.parametrize("delta", mostly_nightly([1e-13, 1e-8, 1e-5, 1e-3], (1e-13, 1e-5).__contains__))
def test_sums_over_all_rows_cost_what_gaussian_dp_says(mu: float, delta: float) -> None:
    exact = GAUSSIAN.epsilon(sampled(1, 1 / mu, 1), delta)
    assert exact <= PLD.epsilon(sampled(1, 1 / mu, 1), delta) <= exact * (1 + EXCESS)


@pytest.mark.parametrize(
    ("mu", "steps", "delta"),
    mostly_nightly([(7.0, 300, 1e-13), (5.0, 10**5, 1e-13), (1.0, 10**6, 1e-10)], lambda case: case[1] == 300),
)
def test_a_rate_just_below_1_costs_no_less_than_all_rows_but_for_those_left_out(
    mu: float, steps: int, delta: float
) -> None:
    rate, sigma = 1 - 1e-9, math.sqrt(steps) / mu
    found, full = (PLD.epsilon(sampled(each, sigma, steps), delta) for each in (rate, 1))
    # every row is in every sample with probability rate^steps; delta then has at least this share of the full one
    low, high = 0.0, full
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rate**steps * delta_of(middle, mu) * (1 - 1e-12) > delta else (low, middle)
    exact = GAUSSIAN.epsilon(sampled(1, sigma, steps), delta)
    assert low <= found <= exact * (1 + EXCESS)


def test_what_dp_accounting_understates_is_not_understated() -> None:
    # q = 1 - 1e-9: every row is in all samples with probability 0.9999, so delta is above that of mu = 5 times 0.9999
    near_full = sampled(1 - 1e-9, math.sqrt(10**5) / 5, 10**5)
    assert 48.629 <= PLD.epsilon(near_full, 1e-13) <= 48.634
    half = sampled(0.5, 41.0, 10_000)
    assert 8.9955 <= PLD.epsilon(half, 1e-12) <= 8.9965


# random settings up to 10^5 steps, between bounds that share no code

RANDOM = np.random.default_rng(36)


def settings_of(count: int) -> list[tuple[float, float, int, float]]:
    found = []
    for _ in range(count):
        rate, steps = float(10 ** RANDOM.uniform(-4, -0.01)), int(10 ** RANDOM.uniform(0, 5))
        mu, delta = float(10 ** RANDOM.uniform(-1.5, 0.8)), float(10 ** RANDOM.uniform(-12, -3))
        found.append((rate, 1 / math.sqrt(math.log1p(mu**2 / rate**2 / steps)), steps, delta))
    return found


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"), [*settings_of(1), *mostly_nightly(settings_of(47), lambda _: False)]
)
def test_random_settings_lie_between_bounds_of_other_methods(
    rate: float, sigma: float, steps: int, delta: float
) -> None:
    releases = sampled(rate, sigma, steps)
    found, rough = PLD.epsilon(releases, delta), PLD.epsilon(releases, delta, rough=True)
    assert math.isfinite(found)
    assert found <= RENYI.epsilon(releases, delta) * (1 + 1e-3)
    assert found <= GAUSSIAN.epsilon(sampled(1, sigma, steps), delta) * (1 + 1e-3)
    # a finer grid may lower a bound, but no two bounds are far apart
    assert found <= 1.001 * rough + 1e-4
    opinion = GOOGLE.epsilon(releases, delta)
    assert math.isnan(opinion) or GOOGLE.agrees(found, opinion)


@pytest.mark.parametrize(
    "setting",
    mostly_nightly(
        [*random_settings(7, 4, math.log10(1400), 6), *random_settings(8, 20, 3, 6)],
        random_settings(7, 4, math.log10(1400), 6)[2:].__contains__,
    ),
)
def test_no_test_of_the_sum_of_very_many_releases_finds_more_than_the_bound(setting: Setting) -> None:
    epsilon = PLD.epsilon(setting.releases(), setting.delta)
    assert delta_of_the_sum(setting, epsilon) <= setting.delta


@pytest.mark.parametrize(
    "setting",
    mostly_nightly(
        [
            Setting(0.02, 30.0, 200_000, 1e-6, full=4.0),
            Setting(0.3, 170.0, 10**6, 1e-12),
            Setting(0.1, 12.0, 5000, 1e-9),
        ],
        lambda setting: setting.rate == 0.02,
    ),
)
def test_the_test_of_the_sum_finds_nearly_all_of_what_a_large_noise_costs(setting: Setting) -> None:
    epsilon = PLD.epsilon(setting.releases(), setting.delta)
    assert delta_of_the_sum(setting, epsilon) <= setting.delta < delta_of_the_sum(setting, 0.99 * epsilon)


@pytest.mark.parametrize(
    ("rate", "sigma", "count", "delta", "most"),
    mostly_nightly(
        [(6e-6, 1.1, 107_543, 3e-12, 0.35), (6e-6, 1.2, 107_543, 3e-12, 0.25), (2.2e-7, 0.43, 300_000, 9e-5, 0.02)],
        lambda case: case[1] != 1.2,
    ),
)
def test_very_many_releases_at_a_tiny_rate_have_an_epsilon_far_below_a_renyi_bound(
    rate: float, sigma: float, count: int, delta: float, most: float
) -> None:
    epsilon = PLD.epsilon(sampled(rate, sigma, count), delta, rough=True)
    assert delta_of_the_sum(Setting(rate, sigma, count, delta), epsilon) <= delta
    assert epsilon < most < renyi_estimate(sampled(rate, sigma, count), delta) / 2


def test_adding_a_record_costs_at_most_what_the_rates_allow() -> None:
    kinds = [Kind(1.0, 0.25, 3), Kind(2.0, 0.5, 2)]
    assert largest_added(kinds) == pytest.approx(-3 * math.log(0.75) - 2 * math.log(0.5), rel=1e-15)
    assert largest_added([*kinds, Kind(1.0, 1.0, 1)]) == math.inf
    grid = grid_for(kinds, 1e-9, 0.03, reverse=True)
    assert total_loss(kinds, grid).epsilon(1e-9) <= largest_added(kinds) * (1 + 1e-6)


def test_numbers_beyond_float64_are_an_infinite_epsilon_without_a_warning() -> None:
    kinds = [Kind(0.05, 1e-6, 100_000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert epsilon_of_kinds(kinds, 1e-9, 8.0) == math.inf
    with np.errstate(invalid="ignore"), pytest.warns(RuntimeWarning, match="overflow"):
        epsilon_of_kinds.__wrapped__(kinds, 1e-9, 8.0)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    mostly_nightly([(0.01, 0.8, 300), (0.15, 3.0, 200), (0.008, 0.5, 500)], (0.15, 3.0, 200).__eq__),
)
def test_a_sample_of_losses_exceeds_no_bound(rate: float, sigma: float, steps: int) -> None:
    """delta(epsilon) estimated from drawn losses, at deltas that a sample resolves."""
    rng, draws = np.random.default_rng(1), 100_000
    total = np.zeros(draws)
    for _ in range(steps):
        place = sigma * rng.standard_normal(draws) + (rng.random(draws) < rate)
        total += np.log1p(rate * np.expm1((2 * place - 1) / (2 * sigma**2)))
    for delta in (1e-2, 1e-1):
        epsilon = PLD.epsilon(sampled(rate, sigma, steps), delta)
        gains_there = np.maximum(0.0, -np.expm1(epsilon - total))
        error = 4 * gains_there.std() / math.sqrt(draws)
        assert abs(gains_there.mean() - delta) <= error + 1e-3 * delta


# compositions


MEAN = Releases("mean", 4.0, 1.0, 1)


def test_kinds_together_cost_at_least_each_and_their_order_does_not_matter() -> None:
    parts = [MEAN, *sampled(0.05, 2.0, 400), *sampled(0.2, 5.0, 1000), Releases("histogram", 9.0, 1.0, 3)]
    whole = PLD.epsilon(parts, 1e-6, rough=True)
    assert PLD.epsilon(parts[::-1], 1e-6, rough=True) == pytest.approx(whole, rel=1e-9)
    for left_out in range(len(parts)):
        fewer = [part for place, part in enumerate(parts) if place != left_out]
        assert PLD.epsilon(fewer, 1e-6, rough=True) < whole
    assert whole < RENYI.epsilon(parts, 1e-6)


@pytest.mark.parametrize("steps", [1, 50, 5000])
def test_a_mean_beside_samples_of_nearly_all_rows_adds_squares_of_mu(steps: int) -> None:
    releases = [MEAN, *sampled(1 - 1e-12, math.sqrt(steps), steps)]
    exact = GAUSSIAN.epsilon([MEAN, *sampled(1, math.sqrt(steps), steps)], 1e-6)
    assert exact * (1 - 1e-6) <= PLD.epsilon(releases, 1e-6) <= exact * (1 + EXCESS)


def test_equal_kinds_are_one() -> None:
    assert PLD.epsilon([*sampled(0.1, 2.0, 30), *sampled(0.1, 2.0, 70)], 1e-5) == PLD.epsilon(
        sampled(0.1, 2.0, 100), 1e-5
    )


@pytest.mark.parametrize("steps", mostly_nightly([3, 5000], (3).__eq__))
def test_deltas_hold_and_epsilon_is_their_inverse(steps: int) -> None:
    releases = [MEAN, *sampled(0.05, 4.0, steps)]
    epsilon = PLD.epsilon(releases, 1e-5)
    deltas = PLD.deltas(releases, [0.0, epsilon / 2, epsilon, 1.4 * epsilon], 1e-5)
    assert (np.diff(deltas) < 0).all()
    assert deltas[2] == pytest.approx(1e-5, rel=1e-2)
    assert PLD.epsilon(releases, float(deltas[1])) == pytest.approx(epsilon / 2, rel=1e-2)


@pytest.mark.parametrize("delta", [1e-200, 5e-324])
def test_a_delta_whose_square_or_shares_float64_does_not_hold_has_bounds(delta: float) -> None:
    exact, _ = one_release(arb(3), 0.1, 1.0)
    assert exact <= PLD.deltas(sampled(0.1, 1.0, 1), [3.0], delta)[0] <= 1
    assert PLD.epsilon(sampled(0.1, 1.0, 1), delta) >= PLD.epsilon(sampled(0.1, 1.0, 1), 1e-100)


WORKLOADS = {
    "rate": st.floats(-3, 0).map(lambda power: 10**power),
    "sigma": st.floats(-0.5, 1.5).map(lambda power: 10**power),
    "count": st.integers(1, 2000),
    "delta": st.floats(-12, -2).map(lambda power: 10**power),
}


def check_order(rate: float, sigma: float, count: int, delta: float) -> None:
    here = PLD.epsilon(sampled(rate, sigma, count), delta)
    cheaper = (
        sampled(rate, sigma * 1.1, count),
        sampled(rate * 0.9, sigma, count),
        sampled(rate, sigma, max(1, count // 2)),
    )
    for releases in cheaper:
        assert PLD.epsilon(releases, delta) <= here * (1 + 1e-2) + 1e-9


def test_releases_that_hardly_differ_cost_nothing_beyond_delta() -> None:
    for count in (1, 2, 3):
        variation = count * 0.01 / math.sqrt(2 * math.pi)  # a little above the total variation
        assert PLD.epsilon(sampled(0.01, 1.0, count), variation * (1 + 1e-9)) == 0
        assert PLD.epsilon(sampled(0.01, 1.0, count), variation / 2, rough=True) > 0


@given(**WORKLOADS)
@settings(max_examples=2)
def test_more_noise_fewer_steps_or_a_smaller_rate_never_cost_more(
    rate: float, sigma: float, count: int, delta: float
) -> None:
    check_order(rate, sigma, count, delta)


@pytest.mark.nightly
@given(**WORKLOADS | {"rate": st.floats(-4, 0).map(lambda power: 10**power)})
@settings(max_examples=25)
def test_more_noise_fewer_steps_or_a_smaller_rate_never_cost_more_in_many_workloads(
    rate: float, sigma: float, count: int, delta: float
) -> None:
    check_order(rate, sigma, count, delta)


# the bound on rounding, against ball arithmetic


def test_the_error_of_a_convolution_is_bounded_and_the_bound_is_not_idle() -> None:
    rng, length, count = np.random.default_rng(0), 256, 37
    masses = rng.random(length) ** 8
    masses /= masses.sum()
    other = rng.random(length)
    other /= other.sum()
    found, bound = convolved([(masses, count), (other, 1)])
    with ctx.workprec(200):
        spectrum = [a**count * b for a, b in zip(_dft(masses), _dft(other), strict=True)]
        exact = [value.real / length for value in acb.dft(spectrum, inverse=False)]
        exact = [exact[0], *exact[:0:-1]]
        errors = [abs(float((arb(float(ours)) - theirs).mid())) for ours, theirs in zip(found, exact, strict=True)]
    assert 0 < max(errors) <= bound / 10  # a margin of ten over what was measured
    assert bound < 1e-12


def _dft(values: np.ndarray) -> list[acb]:
    return list(acb.dft([acb(arb(float(value))) for value in values]))


@pytest.mark.parametrize("length", [2, 4, 64, 1 << 13])
def test_roots_of_unity_are_within_the_error_of_a_pass(length: int) -> None:
    roots = loss_distribution._roots(length)
    with ctx.workprec(120):
        for place in range(0, length // 2, max(1, length // 64)):
            exact = (acb(-2) * place / length).exp_pi_i()
            assert float(abs(acb(complex(roots[place])) - exact).upper()) <= 7 * loss_distribution.UNIT


@pytest.mark.parametrize(("rate", "start", "count"), [(1e-3, -500, 1000), (-2e-5, 0, 4097), (0.7, -3, 9)])
def test_tables_of_exponentials_are_within_eight_units(rate: float, start: int, count: int) -> None:
    powers, less = exponentials(rate, count, start), gains(abs(rate), count)
    with ctx.workprec(120):
        for place in range(0, count, 1 + count // 50):
            exact = (arb(rate) * (start + place)).exp()
            assert abs(float(arb(float(powers[place])) / exact - 1)) <= 8 * loss_distribution.UNIT
            kept = -(-arb(abs(rate)) * place).expm1()
            assert place == 0 or abs(float(arb(float(less[place])) / kept - 1)) <= 8 * loss_distribution.UNIT


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 0.7), (0.3, 4.0), (1.0, 2.0)])
def test_the_grid_of_one_release_dominates_it_at_every_epsilon(rate: float, sigma: float, reverse: bool) -> None:
    kind = Kind(sigma, rate, 1)
    grid = grid_for([kind], 1e-6, 0.05, reverse)
    assert grid is not None
    one = loss_of(kind, grid, grid.points[0])
    losses = grid.step * (one.start + np.arange(len(one.masses)))
    with ctx.workprec(200):
        raw = [
            arb(float(mass)) * (one.scale - arb(grid.tilt) * (one.start + place)).exp()
            for place, mass in enumerate(one.masses.tolist())
        ]
        assert sum(raw, arb(one.infinite)) >= 1 - arb(2) ** -60
        for epsilon in np.linspace(losses[0] + 1e-9, losses[-1] + 0.5, 40).tolist():
            there = sum(
                (
                    mass * (1 - (arb(epsilon) - arb(loss)).exp())
                    for mass, loss in zip(raw, losses, strict=True)
                    if loss > epsilon
                ),
                arb(one.infinite),
            )
            assert there >= one_release(arb(epsilon), rate, sigma)[reverse] * (1 - arb(2) ** -40) - arb(2) ** -150


# what is not covered


TWO_STAGES = [Kind(1.0, 0.01, 2000)]


@pytest.mark.parametrize(
    "change",
    [
        lambda window, grid: {"below": math.nextafter(grid.tilt, 0)},
        lambda window, grid: {"below": math.nan},
        lambda window, grid: {"above": -1e-9},
        lambda window, grid: {"kept": window.size + grid.ratio},
        lambda window, grid: {"start": window.start + 1},
    ],
)
def test_a_grid_on_which_the_bounds_do_not_hold_is_refused(change: Callable[[Window, Grid], dict[str, float]]) -> None:
    grid = grid_for(TWO_STAGES, 1e-6, 0.03, reverse=False)
    assert grid is not None
    assert grid.ratio > 1
    assert total_loss(TWO_STAGES, grid).epsilon(1e-6) < 10
    (((members, count, window), *rest),) = grid.groups
    bad = replace(window, **change(window, grid))
    with pytest.raises(UnresolvedError):
        total_loss(TWO_STAGES, replace(grid, groups=(((members, count, bad), *rest),)))
    with pytest.raises(UnresolvedError):
        total_loss(TWO_STAGES, replace(grid, tilt=-grid.tilt))


@pytest.mark.parametrize("count", mostly_nightly([10**9, 10**12], (10**12).__eq__))
def test_more_releases_than_can_be_resolved_never_look_cheap(count: int) -> None:
    found = epsilon_of_kinds([Kind(1.0, 0.01, count)], 1e-5, 0.03)
    assert found == math.inf or found > 1e4


def test_a_third_opinion_on_samples_is_dp_accountings_where_it_resolves_delta() -> None:
    releases = sampled(0.15, 3.1198, 200)
    opinion = third_opinion(PLD, releases, 1e-5)
    assert opinion is not None
    assert opinion[0] is GOOGLE
    assert GOOGLE.agrees(PLD.epsilon(releases, 1e-5), opinion[1])
    assert third_opinion(PLD, sampled(0.5, 41.0, 10_000), 1e-12) is None
    assert third_opinion(RENYI, releases, 1e-5) is None


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_the_third_opinion_does_not_confirm_noise_or_a_rate_that_is_off_by_one_in_a_hundred(factor: float) -> None:
    found = PLD.epsilon(sampled(0.15, 3.1198, 200), 1e-5)
    assert not GOOGLE.agrees(found, GOOGLE.epsilon(sampled(0.15, 3.1198 * factor, 200), 1e-5))
    assert not GOOGLE.agrees(found, GOOGLE.epsilon(sampled(0.15 * factor, 3.1198, 200), 1e-5))


def test_a_third_opinion_below_the_figure_of_record_contradicts_nothing_and_one_above_does() -> None:
    releases = sampled(0.1, 1.0, 20)
    opinion = GOOGLE.epsilon(releases, 1e-5)
    assert not GOOGLE.contradicts(1.02 * opinion, releases, 1e-5, opinion)
    assert GOOGLE.contradicts(0.98 * opinion, releases, 1e-5, opinion)
    assert not GOOGLE.contradicts(opinion, releases, 1e-5, math.nan)


def test_a_larger_third_opinion_counts_if_a_finer_grid_repeats_it() -> None:
    releases = sampled(5.5e-6, 1.62, 116_059)  # the first grid is in units of a Renyi bound of 0.18
    opinion = GOOGLE.epsilon(releases, 1e-7)
    assert not GOOGLE.agrees(0.00451, opinion)
    assert not GOOGLE.contradicts(0.00451, releases, 1e-7, opinion)
    assert GOOGLE.contradicts(0.003, releases, 1e-7, opinion)


def test_dp_accounting_has_no_opinion_where_it_would_count_a_sample_as_all_rows() -> None:
    assert third_opinion(PLD, sampled(1.2e-7, 1.25, 1595), 1e-9) is None


@pytest.mark.parametrize(("multiplier", "count"), [(32.9, 70), (28.91, 72), (7.15, 154)])
def test_merged_full_sums_cost_no_less(multiplier: float, count: int) -> None:
    (merged,) = _on_grid((Kind(multiplier, 1.0, count),))
    assert merged.count / Fraction(merged.multiplier) ** 2 >= count / Fraction(multiplier) ** 2
