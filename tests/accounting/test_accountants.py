"""Epsilon from events: known facts, two accountants, exact composition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.accounting.accountants import (
    accountants_agree,
    epsilon_by_cross_check,
    epsilon_of,
    gdp_mu,
    log_delta_of,
)
from linprobe.accounting.events import GaussianEvent
from linprobe.accounting.ledger import Ledger, read_ledger
from linprobe.errors import PrivacyError


def events(*multipliers: float) -> list[GaussianEvent]:
    return [GaussianEvent("gradient", step, 1.0, sigma) for step, sigma in enumerate(multipliers)]


def test_one_release_at_sigma_one_costs_the_published_epsilon() -> None:
    assert epsilon_of(1.0, 1e-5) == pytest.approx(4.3772, abs=5e-5)


def test_published_sigma_for_epsilon_three_costs_three() -> None:
    assert epsilon_of(1 / 1.39059, 1e-5) == pytest.approx(3, abs=2e-5)


def test_mu_is_root_t_over_sigma_and_not_the_misprinted_t_over_sigma() -> None:
    assert gdp_mu(events(*[20.0] * 206)) == pytest.approx(math.sqrt(206) / 20, rel=1e-14)


def test_unequal_multipliers_compose_by_squares() -> None:
    assert gdp_mu(events(1.0, 2.0, 4.0)) == pytest.approx(math.sqrt(1 + 1 / 4 + 1 / 16), rel=1e-14)


def test_no_release_costs_nothing_and_a_noiseless_one_everything() -> None:
    assert epsilon_of(gdp_mu([]), 1e-5) == 0
    assert epsilon_by_cross_check([], 1e-5) == 0
    assert epsilon_of(gdp_mu(events(1.0, 0.0)), 1e-5) == math.inf


@given(st.floats(1e-3, 12), st.floats(1e-9, 1e-2))
def test_reported_epsilon_never_understates(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert epsilon == 0 or log_delta_of(epsilon, mu) <= math.log(delta)


def test_delta_formula_equals_numerical_integration() -> None:
    # delta(eps) = E_P max(0, 1 - exp(eps - L)) for the privacy loss L ~ N(mu^2/2, mu^2) of a mu-GDP mechanism
    for mu, epsilon in ((0.5, 0.7), (1.0, 2.0), (2.5, 4.0)):
        loss = np.linspace(epsilon, mu**2 / 2 + 14 * mu, 400_001)
        density = np.exp(-((loss - mu**2 / 2) ** 2) / (2 * mu**2)) / (mu * math.sqrt(2 * math.pi))
        delta = np.trapezoid((1 - np.exp(epsilon - loss)) * density, loss)
        assert math.exp(log_delta_of(epsilon, mu)) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("mu", [0.05, 0.3, 0.72, 1.5, 4.0])
@pytest.mark.parametrize("n_steps", [1, 50, 1000])
def test_the_two_accountants_agree(mu: float, n_steps: int) -> None:
    composed = events(*[math.sqrt(n_steps) / mu] * n_steps)
    assert accountants_agree(epsilon_of(gdp_mu(composed), 1e-5), epsilon_by_cross_check(composed, 1e-5))


def test_the_accountants_are_not_said_to_agree_when_noise_is_half_of_what_is_claimed() -> None:
    claimed, real = events(*[10.0] * 50), events(*[5.0] * 50)
    assert not accountants_agree(epsilon_of(gdp_mu(claimed), 1e-5), epsilon_by_cross_check(real, 1e-5))


def test_ledger_file_holds_each_event_before_append_returns(tmp_path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for step, event in enumerate(events(3.0, 4.0, 5.0), start=1):
        ledger.append(event)
        assert len(read_ledger(tmp_path / "ledger.jsonl")) == step
    ledger.close()
    assert read_ledger(tmp_path / "ledger.jsonl") == events(3.0, 4.0, 5.0)


def test_reopened_ledger_keeps_what_was_spent(tmp_path) -> None:
    for event in events(3.0, 4.0):
        ledger = Ledger(tmp_path / "ledger.jsonl")
        ledger.append(event)
        ledger.close()
    assert Ledger(tmp_path / "ledger.jsonl").events == events(3.0, 4.0)


GOOD_LINE = (
    '{"event": "gaussian", "purpose": "gradient", "step": 0, '
    '"sensitivity": 1, "noise_multiplier": 3, "sampling_rate": 1}'
)


def test_the_line_that_the_refused_ones_are_made_from_is_read(tmp_path) -> None:
    (tmp_path / "ledger.jsonl").write_text(GOOD_LINE + "\n")
    assert read_ledger(tmp_path / "ledger.jsonl") == events(3.0)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        GOOD_LINE.replace("gaussian", "laplace"),
        GOOD_LINE.replace('"noise_multiplier": 3, ', ""),
        GOOD_LINE.replace('"noise_multiplier": 3', '"noise_multiplier": -1'),
        GOOD_LINE.replace('"noise_multiplier": 3', '"noise_multiplier": NaN'),
        GOOD_LINE.replace('"sampling_rate": 1', '"sampling_rate": 0.1'),
    ],
)
def test_a_ledger_line_that_is_no_event_is_refused(tmp_path, line: str) -> None:
    (tmp_path / "ledger.jsonl").write_text(line + "\n")
    with pytest.raises(PrivacyError, match="line 1"):
        read_ledger(tmp_path / "ledger.jsonl")
