"""mu-GDP: epsilon, delta and mu are bounds, and as tight as float64 allows."""

import math

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given
from hypothesis import strategies as st

from linprobe.accounting.figures import (
    LARGEST_MU,
    delta_of,
    epsilon_of,
    holds,
    largest_mu,
    mu_and_rho,
)

MU, DELTA = st.floats(-8, 3).map(lambda power: 10**power), st.floats(-300, -0.01).map(lambda power: 10**power)


def exact_delta(epsilon: float, mu: float) -> arb:
    """The formula at 1,200 bits; the integral over Phi instead of the error function."""
    with ctx.workprec(1200):
        first, second = (sign * arb(mu) / 2 - arb(epsilon) / arb(mu) for sign in (1, -1))
        # Phi(x) = Gamma(1/2, x^2 / 2) / (2 sqrt(pi)) below 0, and its complement above
        tails = [(x**2 / 2).gamma_upper(arb(1) / 2) / arb.pi().sqrt() / 2 for x in (first, second)]
        below = [tail if x < 0 else 1 - tail for x, tail in zip((first, second), tails, strict=True)]
        return below[0] - arb(epsilon).exp() * below[1]


def test_one_release_at_sigma_one_costs_the_published_epsilon() -> None:
    assert epsilon_of(1.0, 1e-5) == pytest.approx(4.3772, abs=5e-5)


def test_published_sigma_for_epsilon_three_costs_three() -> None:
    assert epsilon_of(1 / 1.39059, 1e-5) == pytest.approx(3, abs=2e-5)


@given(MU, DELTA)
def test_epsilon_is_the_least_that_holds(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert exact_delta(epsilon, mu) <= arb(delta)
    if epsilon > 0:
        assert exact_delta(math.nextafter(epsilon, 0), mu) > arb(delta)


@given(st.floats(0.01, 100), DELTA)
def test_the_largest_mu_is_the_largest_that_holds(epsilon: float, delta: float) -> None:
    mu = largest_mu(epsilon, delta)
    assert exact_delta(epsilon, mu) <= arb(delta)
    assert exact_delta(epsilon, math.nextafter(mu, math.inf)) > arb(delta)
    assert epsilon_of(mu, delta) <= epsilon


@given(st.floats(0, 50), MU)
def test_delta_is_an_upper_bound_one_unit_above_at_most(epsilon: float, mu: float) -> None:
    found, exact = delta_of(epsilon, mu), exact_delta(epsilon, mu)
    assert not exact > arb(found)  # 1 is told apart from 1 - e^-500000 by more bits than these
    assert found == 5e-324 or exact >= arb(math.nextafter(found, 0))


@pytest.mark.parametrize(("mu", "delta"), [(1e-4, 1e-50), (1e-3, 1e-15), (0.1, 1e-300), (1.0, 1e-8)])
def test_a_figure_of_float64_that_is_too_small_is_told_apart(mu: float, delta: float) -> None:
    # settings at which autodp's formula, in float64, gave smaller figures with some versions of SciPy
    assert not holds(math.nextafter(epsilon_of(mu, delta), 0), delta, mu)


def test_delta_formula_equals_numerical_integration() -> None:
    # delta(eps) = E_P max(0, 1 - exp(eps - L)) for the privacy loss L ~ N(mu^2/2, mu^2) of a mu-GDP mechanism
    for mu, epsilon in ((0.5, 0.7), (1.0, 2.0), (2.5, 4.0)):
        loss = np.linspace(epsilon, mu**2 / 2 + 14 * mu, 400_001)
        density = np.exp(-((loss - mu**2 / 2) ** 2) / (2 * mu**2)) / (mu * math.sqrt(2 * math.pi))
        delta = np.trapezoid((1 - np.exp(epsilon - loss)) * density, loss)
        assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-6)


def test_mu_is_root_t_over_sigma_and_not_the_misprinted_t_over_sigma() -> None:
    assert mu_and_rho([(1, 20.0)] * 206)[0] == pytest.approx(math.sqrt(206) / 20, rel=1e-14)
    assert mu_and_rho([(206, 20.0)])[0] == mu_and_rho([(1, 20.0)] * 206)[0]


def test_unequal_multipliers_compose_by_squares() -> None:
    assert mu_and_rho([(1, 1.0), (1, 2.0), (1, 4.0)])[0] == pytest.approx(math.sqrt(1 + 1 / 4 + 1 / 16), rel=1e-14)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e9)), max_size=5))
def test_mu_and_rho_are_rounded_up_and_only_to_the_next_number(terms: list[tuple[int, float]]) -> None:
    with ctx.workprec(1000):
        squared = sum((arb(count) / arb(sigma) ** 2 for count, sigma in terms), arb(0))
        for found, exact in zip(mu_and_rho(terms), (squared.sqrt(), squared / 2), strict=True):
            assert not exact > arb(found)
            assert not exact < arb(math.nextafter(found, -math.inf))


def test_what_float64_holds_is_not_rounded() -> None:
    assert mu_and_rho([(1, 1.0)])[0] == 1
    assert mu_and_rho([(4, 8.0)]) == (0.25, 0.03125)


def test_limits() -> None:
    assert epsilon_of(0.0, 1e-5) == delta_of(1.0, 0.0) == 0
    assert mu_and_rho([]) == (0, 0)
    assert mu_and_rho([(1, 0.0)])[0] == epsilon_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(1.001 * LARGEST_MU, 1e-5) == math.inf
    assert delta_of(1e5, math.inf) == 1
    assert epsilon_of(LARGEST_MU, 1e-5) < math.inf
    assert epsilon_of(1e-7, 1e-5) == 0  # delta at epsilon 0 is below 10^-5
