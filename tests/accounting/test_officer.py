"""The arithmetic of `verify.html` against balls and dp-accounting: it never understates epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from linprobe.accounting.accountants import GAUSSIAN, PLD, RENYI, gaussian_figures, renyi_estimate
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import delta_of, epsilon_of, holds
from linprobe.accounting.selection import SelectionEvent, selection_epsilon
from tests.conftest import mostly_nightly
from tests.hostile.officer import Officer, officer

SETTINGS = 5_000
SAMPLED = ((0.15, 3.1198, 200), (0.01, 1.0, 5), (0.001, 0.6, 1000), (0.3, 20.0, 50), (0.5, 0.8, 3), (0.0001, 1.0, 100))
DELTAS = (1e-5, 1e-9)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Officer]:
    with officer(tmp_path_factory.mktemp("page")) as found:
        yield found


def _as_json(releases: list[Releases]) -> list[dict[str, float]]:
    return [
        {"noise_multiplier": one.noise_multiplier, "sampling_rate": one.sampling_rate, "count": one.count}
        for one in releases
    ]


def test_epsilon_holds_exactly_where_a_ball_says_so(page: Officer) -> None:
    rng = np.random.default_rng(39)
    settings, expected = [], []
    for mu in (10 ** rng.uniform(-3, 2, SETTINGS)).tolist():
        # from far below the mean of the loss to 30 standard deviations above it
        epsilon = abs(mu * (mu / 2 + rng.uniform(-2, 30)))
        delta = delta_of(epsilon, mu)
        if 0 < delta < 1:
            settings.append((mu, delta, epsilon))
            expected.append([holds(one, delta, mu) for one in (epsilon, math.nextafter(epsilon, 0))])
    assert len(settings) > 0.9 * SETTINGS
    assert all(found for found, _ in expected)
    assert sum(not found for _, found in expected) > 0.5 * len(settings)
    assert page.ask("gaussian", settings=settings) == expected


def test_epsilon_has_the_bits_of_the_ball(page: Officer) -> None:
    rng = np.random.default_rng(40)
    settings = [(10 ** rng.uniform(-4, 2), 10 ** rng.uniform(-15, -2)) for _ in range(200)]
    settings += [(1e-8, 1e-12), (900.0, 1e-5), (0.7, 1e-300), (1e-3, 0.5), (1001.0, 1e-5)]
    found = [math.inf if one is None else one for one in page.ask("gaussianEpsilon", settings=settings)]
    assert found == [epsilon_of(*setting) for setting in settings]


def test_mu_and_rho_are_rounded_up(page: Officer) -> None:
    rng = np.random.default_rng(41)
    for _ in range(200):
        releases = [
            Releases("", float(10 ** rng.uniform(-2, 6)), 1.0, int(rng.integers(1, 10**6)))
            for _ in range(rng.integers(1, 4))
        ]
        found, expected = page.ask("figures", releases=_as_json(releases)), gaussian_figures(releases)
        assert (found["mu"], found["rho"]) == (expected["gdp_mu"], expected["zcdp_rho"])


@pytest.mark.parametrize("delta", mostly_nightly(DELTAS, DELTAS[0].__eq__))
def test_the_renyi_bound_is_never_below_linprobes_figures(page: Officer, delta: float) -> None:
    for rate, sigma, count in SAMPLED:
        releases = [Releases("gradient", sigma, rate, count)]
        found, renyi = page.ask("epsilon", releases=_as_json(releases), delta=delta), RENYI.epsilon(releases, delta)
        assert found >= PLD.epsilon(releases, delta, rough=True)
        assert renyi <= found <= 1.1 * renyi + 0.15
    mixed = [Releases("gradient", 3.0, 0.1, 50), Releases("mean", 9.0, 1.0, 1)]
    assert page.ask("epsilon", releases=_as_json(mixed), delta=delta) >= RENYI.epsilon(mixed, delta)


@pytest.mark.parametrize(
    ("rate", "sigma", "count", "delta"),
    [
        (0.1, 0.36359633, 200, 1e-5),  # epsilon 100; whole orders give 255
        (0.01, 0.2866, 20, 1e-5),
        (0.001, 0.19685949, 5, 1e-5),
        (0.5, 0.3, 10, 1e-9),
        (1e-9, 0.1, 10**6, 1e-3),
        (0.999999, 2.0, 3, 1e-2),
        (0.3, 0.012, 2, 1e-5),  # exponents beyond float64
    ],
)
def test_orders_between_1_and_2_hold_and_are_near_the_integral_at_large_epsilon(
    page: Officer, rate: float, sigma: float, count: int, delta: float
) -> None:
    releases = [Releases("gradient", sigma, rate, count)]
    found = page.ask("epsilon", releases=_as_json(releases), delta=delta)
    exact, renyi = PLD.epsilon(releases, delta, rough=True), renyi_estimate(releases, delta)
    assert found >= (renyi if math.isinf(exact) else exact) * (1 - 1e-6)
    assert found <= 1.6 * renyi + 0.1


def test_a_selection_costs_what_linprobe_says_but_for_its_grid(page: Officer) -> None:
    runs = tuple((Releases("gradient", sigma, 1.0, 30), Releases("selection", 12.0, 1.0, 1)) for sigma in (9.0, 20.0))
    for mean in (2, 5, 30):
        event = SelectionEvent(mean, runs)
        found = page.ask("selection", runs=[_as_json(list(run)) for run in runs], mean=mean, delta=1e-5)
        expected = selection_epsilon(event, 1e-5, GAUSSIAN)
        assert 0.999 * expected < found <= expected * (1 + 1e-12)


def test_right_guesses_are_at_least_phi_of_half_mu(page: Officer) -> None:
    mus = [0.01, 0.7191174112270522, 3.0, 100.0]
    for mu, found in zip(mus, page.ask("guesses", mus=mus), strict=True):
        exact = (1 + math.erf(mu / math.sqrt(8))) / 2
        assert exact * (1 - 1e-15) <= found <= min(1, exact * (1 + 1e-14))
