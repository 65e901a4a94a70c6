"""Private selection: the bound holds for mechanisms whose output distribution is known exactly, and judges agree."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from linprobe.accounting.accountants import GAUSSIAN, PLD
from linprobe.accounting.calibrate import calibrate
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import epsilon_of
from linprobe.accounting.ledger import read_ledger, read_selection, record_selection
from linprobe.accounting.selection import (
    SelectionEvent,
    calibrate_selection,
    first_loss,
    selection_cross_check,
    selection_deltas,
    selection_epsilon,
    selection_limit,
)
from linprobe.errors import ParameterError, PrivacyError
from tests.conftest import mostly_nightly

Array = Any
DELTA = 1e-5


def event_of(*multipliers: float, mean: int = 5, rate: float = 1.0) -> SelectionEvent:
    return SelectionEvent(mean, tuple((Releases("gradient", sigma, rate, 50),) for sigma in multipliers))


def best_of_geometric(q: Array, mean: int) -> Array:
    """P(the best of K outputs is y) for outputs in order of their score: differences of E[F(y)^K]."""
    gamma = 1 / mean
    below = np.clip(np.concatenate([[0.0], np.cumsum(q)]), 0, 1)
    return np.diff(gamma * below / (1 - (1 - gamma) * below))


def hockey_stick(p: Array, q: Array, epsilon: float) -> float:
    """The larger divergence of the two directions."""
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum())


weights = st.lists(st.floats(1e-3, 1.0), min_size=4, max_size=4)


@given(p=weights, q=weights, mean=st.integers(2, 50), epsilon=st.floats(0, 4))
@settings(max_examples=50)
def test_bound_holds_for_every_pair_of_output_distributions(
    p: list[float], q: list[float], mean: int, epsilon: float
) -> None:
    one, other = np.array(p) / sum(p), np.array(q) / sum(q)
    eps_1 = first_loss(lambda grid: np.array([hockey_stick(one, other, e) for e in grid]), mean, 10.0)
    spent = hockey_stick(best_of_geometric(one, mean), best_of_geometric(other, mean), epsilon + 2 * eps_1)
    assert spent <= mean * hockey_stick(one, other, epsilon) + 1e-12


@pytest.mark.parametrize("mean", [2, 5, 40])
@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0])
def test_bound_holds_for_a_gaussian_score(mu: float, mean: int) -> None:
    scores, width = np.linspace(-15, 15 + mu, 40001, retstep=True)
    pair = [norm.pdf(scores, shift) * width for shift in (0.0, mu)]
    above = [norm.sf(scores, shift) for shift in (0.0, mu)]
    best = [one / mean / (1 / mean + (1 - 1 / mean) * tail) ** 2 for one, tail in zip(pair, above, strict=True)]
    one_run = event_of(math.sqrt(50) / mu, mean=mean)
    epsilons = np.linspace(0.05, 1.2, 24) * selection_epsilon(one_run, DELTA, GAUSSIAN)
    exact = np.array([hockey_stick(*best, epsilon) for epsilon in epsilons])
    assert np.all(exact <= 1.001 * selection_deltas(one_run, epsilons.tolist(), DELTA, GAUSSIAN))
    assert exact.max() > hockey_stick(*pair, float(epsilons[0]))  # choosing does cost something


def test_a_fixed_number_of_runs_breaks_the_bound() -> None:
    """The theorem needs a random number of runs; with a known one, the best reveals more than the bound allows."""
    mean, pair = 40, [np.array([0.99, 0.01]), np.array([0.999, 0.001])]
    eps_1 = first_loss(lambda grid: np.array([hockey_stick(*pair, e) for e in grid]), mean, 10.0)
    epsilon = math.log(10)
    fixed = [np.diff(np.concatenate([[0.0], np.cumsum(one)]) ** (100 * mean)) for one in pair]
    random = [best_of_geometric(one, mean) for one in pair]
    allowed = mean * hockey_stick(*pair, epsilon)
    assert hockey_stick(*random, epsilon + 2 * eps_1) <= allowed + 1e-12 < hockey_stick(*fixed, epsilon + 2 * eps_1)


def test_selection_is_the_stated_formula_and_costs_more_than_its_run() -> None:
    event = event_of(20.0)
    mu = math.sqrt(50) / 20
    total = selection_epsilon(event, DELTA, GAUSSIAN)
    eps_1 = (total - epsilon_of(mu, DELTA / 5)) / 2
    delta_at = norm.cdf(mu / 2 - eps_1 / mu) - math.exp(eps_1) * norm.cdf(-mu / 2 - eps_1 / mu)
    assert delta_at <= math.expm1(eps_1) / 4
    assert delta_at == pytest.approx(math.expm1(eps_1) / 4, rel=1e-3)
    assert total > epsilon_of(mu, DELTA)


@pytest.mark.parametrize("rate", mostly_nightly([1.0, 0.15], (1.0).__eq__))
def test_judges_agree_and_the_renyi_bound_is_looser(rate: float) -> None:
    event = event_of(20.0 * rate, rate=rate)
    total, check = selection_epsilon(event, DELTA, PLD), selection_cross_check(event, DELTA)
    if rate == 1:
        assert total == pytest.approx(selection_epsilon(event, DELTA, GAUSSIAN), rel=1e-5)
    assert total < check < 2 * total + 3


def test_renyi_bound_is_the_published_one_for_a_gaussian() -> None:
    """Papernot and Steinke 2022, Corollary 4, at eta = 1: the divergence at order lambda, converted to epsilon."""
    mean, rho = 10, 0.05
    orders = np.linspace(1.01, 200, 100000)
    least = 1 + math.sqrt(math.log(mean) / rho)
    renyi = (
        4 * math.sqrt(rho * math.log(mean))
        - rho
        + np.where(
            orders <= least,
            2 * math.sqrt(rho * math.log(mean)),
            rho * (orders - 1) + math.log(mean) / (orders - 1),
        )
    )
    epsilon = (renyi + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)).min()
    found = selection_cross_check(event_of(math.sqrt(50 / (2 * rho)), mean=mean), DELTA)
    assert found == pytest.approx(epsilon, rel=0.02)


def test_several_budgets_cost_as_much_as_the_worst() -> None:
    both = selection_epsilon(event_of(20.0, 25.0), DELTA, GAUSSIAN)
    assert both == pytest.approx(selection_epsilon(event_of(20.0), DELTA, GAUSSIAN), rel=1e-12)
    assert both > selection_epsilon(event_of(25.0), DELTA, GAUSSIAN)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
def test_calibration_never_overspends_and_leaves_little(epsilon: float) -> None:
    def runs_at(one: float) -> list[tuple[Releases, ...]]:
        return [calibrate(epsilon=one, delta=DELTA / 5, n_private=1000).releases]

    one, judge, event = calibrate_selection(runs_at, mean_repetitions=5, epsilon=epsilon, delta=DELTA)
    assert 0.998 * epsilon <= selection_epsilon(event, DELTA, judge) <= epsilon
    assert judge.epsilon(event.runs[0], DELTA / 5) <= one


def test_limit_on_attacks_is_between_a_run_and_certainty() -> None:
    event, rates = event_of(20.0), np.array([1e-3, 1e-2, 0.1])
    limit = selection_limit(event, DELTA, GAUSSIAN)(rates)
    single = norm.cdf(norm.ppf(rates) + math.sqrt(50) / 20)
    assert np.all(single < limit)
    assert np.all(limit < 1)


def test_ledger_holds_the_selection_alone(tmp_path: Any) -> None:
    ledger = tmp_path / "ledger.jsonl"
    event = event_of(20.0, 25.0)
    record_selection(ledger, event)
    assert read_selection(ledger) == event
    with pytest.raises(PrivacyError, match="private selection"):
        read_ledger(ledger)
    with pytest.raises(FileExistsError):
        record_selection(ledger, event)
    ledger.write_text(ledger.read_text() * 2)
    with pytest.raises(PrivacyError, match="further lines"):
        read_selection(ledger)


@pytest.mark.parametrize(
    "change",
    [
        {"mean_repetitions": 1},
        {"mean_repetitions": 2.5},
        {"distribution": "fixed"},
        {"runs": []},
        {"runs": [[]]},
        {"runs": [[{"purpose": "gradient", "noise_multiplier": 0.0, "sampling_rate": 1.0, "count": 1}]]},
        {"runs": [[{"purpose": "gradient", "noise_multiplier": 2.0, "sampling_rate": 1.5, "count": 1}]]},
    ],
)
def test_malformed_selection_is_refused(tmp_path: Any, change: dict[str, Any]) -> None:
    fields = {**event_of(20.0).as_dict(), **change}
    with pytest.raises((ValueError, ParameterError)):
        SelectionEvent.from_dict(fields)
    (tmp_path / "ledger.jsonl").write_text(json.dumps(fields) + "\n")
    with pytest.raises(PrivacyError):
        read_selection(tmp_path / "ledger.jsonl")


def test_noise_too_small_has_no_epsilon() -> None:
    assert selection_epsilon(event_of(1e-4), DELTA, GAUSSIAN) == math.inf
    assert selection_cross_check(event_of(1e-4), DELTA) == math.inf


@pytest.mark.parametrize("mean", [3, 7, 11, 49])
def test_the_delta_of_one_run_is_at_most_a_share_of_delta(monkeypatch: pytest.MonkeyPatch, mean: int) -> None:
    asked: list[float] = []
    whole = type(GAUSSIAN).epsilon

    def recorded(self: Any, releases: Any, delta: float) -> float:
        asked.append(delta)
        return whole(self, releases, delta)

    monkeypatch.setattr(type(GAUSSIAN), "epsilon", recorded)
    for delta in (1e-5, 3e-6, 7e-7):
        selection_epsilon(event_of(20.0, mean=mean), delta, GAUSSIAN)
        assert max(map(Fraction, asked)) * mean <= Fraction(delta)
        asked.clear()
