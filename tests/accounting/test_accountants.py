"""Epsilon from releases: known facts, three accountants, exact composition."""

import copy
import errno
import json
import math
import os
import pickle
import sys
import warnings

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from linprobe.accounting.accountants import (
    ACCOUNTANTS,
    AUTODP,
    GAUSSIAN,
    PLD,
    RENYI,
    Accountant,
    _composed_by,
    _kinds,
    _renyi_accountant,
    choose_accountant,
    gdp_mu,
    renyi_table,
    third_opinion,
)
from linprobe.accounting.events import GaussianEvent, Releases, grouped
from linprobe.accounting.ledger import Ledger, read_ledger
from linprobe.errors import ParameterError, PrivacyError
from tests.conftest import mostly_nightly


def events(*multipliers: float) -> list[GaussianEvent]:
    return [GaussianEvent("gradient", step, 1.0, sigma) for step, sigma in enumerate(multipliers)]


def sampled(rate: float, sigma: float, count: int) -> list[Releases]:
    return [Releases("gradient", sigma, rate, count)]


def test_grouping_loses_no_release_and_keeps_the_order_of_first_sight() -> None:
    mixed = [
        GaussianEvent("mean", 0, 1.0, 5.0),
        GaussianEvent("gradient", 1, 1.0, 2.0, 0.1),
        GaussianEvent("gradient", 2, 9.0, 2.0, 0.1),
        GaussianEvent("gradient", 3, 1.0, 2.0, 0.2),
        GaussianEvent("mean", 4, 1.0, 5.0),
    ]
    assert grouped(mixed) == (
        Releases("mean", 5.0, 1.0, 2),
        Releases("gradient", 2.0, 0.1, 2),
        Releases("gradient", 2.0, 0.2, 1),
    )


def test_a_sampled_release_has_no_mu() -> None:
    with pytest.raises(ValueError, match="sampling rate"):
        gdp_mu(sampled(0.5, 1.0, 1))


@pytest.mark.parametrize("accountant", ["gdp", "pld", "rdp"])
def test_no_release_costs_nothing_and_a_noiseless_one_everything(accountant: str) -> None:
    assert ACCOUNTANTS[accountant].epsilon([], 1e-5) == 0
    assert ACCOUNTANTS[accountant].epsilon(grouped(events(1.0, 0.0)), 1e-5) == math.inf


# full sums: exact, and confirmed by the privacy-loss distribution


@pytest.mark.parametrize("mu", [0.05, 0.3, 0.72, 1.5, 4.0])
@pytest.mark.parametrize("n_steps", [1, 50, 1000])
def test_the_two_accountants_agree(mu: float, n_steps: int) -> None:
    composed = grouped(events(*[math.sqrt(n_steps) / mu] * n_steps))
    assert GAUSSIAN.agrees(GAUSSIAN.epsilon(composed, 1e-5), PLD.epsilon(composed, 1e-5))


def test_the_accountants_are_not_said_to_agree_when_noise_is_half_of_what_is_claimed() -> None:
    claimed, real = sampled(1, 10.0, 50), sampled(1, 5.0, 50)
    assert not GAUSSIAN.agrees(GAUSSIAN.epsilon(claimed, 1e-5), PLD.epsilon(real, 1e-5))


# autodp: a third opinion on full sums, and none where it was not measured


def one_release(mu: float) -> list[Releases]:
    return [Releases("gradient", 1 / mu, 1.0, 1)]


@given(st.floats(-9, 2.99).map(lambda power: 10**power), st.floats(-300, -0.01).map(lambda power: 10**power))
def test_autodp_confirms_every_epsilon_of_record(mu: float, delta: float) -> None:
    opinion = third_opinion(GAUSSIAN, one_release(mu), delta)
    assert opinion is not None
    assert opinion[0] is AUTODP
    assert AUTODP.agrees(GAUSSIAN.epsilon(one_release(mu), delta), opinion[1])


@pytest.mark.parametrize("factor", [1 - 1e-6, 1 + 1e-6])
def test_autodp_does_not_confirm_noise_that_is_off_by_a_millionth(factor: float) -> None:
    for mu in (1e-2, 1.0, 100.0):
        claimed = GAUSSIAN.epsilon(one_release(mu * factor), 1e-8)
        assert not AUTODP.agrees(claimed, AUTODP.epsilon(one_release(mu), 1e-8))


@pytest.mark.parametrize(
    "releases", [[], sampled(0.5, 1.0, 1), sampled(1, 0.0, 1), sampled(1, 1e-4, 1), sampled(1, 1e12, 1)], ids=str
)
def test_autodp_has_no_opinion_outside_the_measured_range(releases: list[Releases]) -> None:
    assert not AUTODP.covers(releases)
    assert third_opinion(GAUSSIAN, releases, 1e-5) is None


def test_autodp_has_no_opinion_on_other_accountants_or_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert third_opinion(PLD, one_release(1.0), 1e-5) is None
    assert third_opinion(GAUSSIAN, one_release(1.0), 1e-310) is None

    def fail(sigma: float, delta: float) -> float:
        raise RuntimeError("Failed to find epsilon")

    monkeypatch.setattr("autodp.dp_bank.get_eps_ana_gaussian", fail)
    assert third_opinion(GAUSSIAN, one_release(1.0), 1e-5) is None
    monkeypatch.setitem(sys.modules, "autodp", None)
    assert not AUTODP.covers(one_release(1.0))


def test_autodp_changes_no_filter_of_warnings_once_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon = AUTODP.epsilon(one_release(1.0), 1e-5)
    seen: list[object] = []

    def look(sigma: float, delta: float) -> float:
        seen.append(warnings.filters)
        return epsilon + float(np.log(0.0))

    monkeypatch.setattr("autodp.dp_bank.get_eps_ana_gaussian", look)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert AUTODP.epsilon(one_release(1.0), 1e-5) == -math.inf
        assert seen[0] is warnings.filters
    assert not caught


# sampled sums: facts from the papers, an integral, and three accountants side by side

FACTS = [
    (500 / 48000, 1.51, 9600, 1e-5, 3.508),
    (500 / 48000, 20, 9600, 1e-5, 0.1851),
    (500 / 670015, 0.41, 67001, 1e-6, 25.93),
    (500 / 670015, 1.89, 67001, 1e-6, 0.4776),
    (250 / 46813, 0.5, 3745, 1e-5, 15.72),
    (250 / 46813, 1.08, 3745, 1e-5, 1.712),
]


@pytest.mark.parametrize(
    ("rate", "sigma", "count", "delta", "published"), mostly_nightly(FACTS, FACTS[::3].__contains__)
)
def test_published_settings_cost_what_renyi_accounting_says(
    rate: float, sigma: float, count: int, delta: float, published: float
) -> None:
    releases = sampled(rate, sigma, count)
    renyi = RENYI.epsilon(releases, delta)
    assert renyi == pytest.approx(published, rel=0.01)
    exact = PLD.epsilon(releases, delta)
    assert 0.85 * renyi < exact < renyi
    assert PLD.agrees(exact, renyi)
    assert RENYI.agrees(renyi, exact)


@pytest.mark.parametrize(("rate", "sigma", "delta"), [(0.1, 1.0, 1e-5), (0.9, 0.7, 1e-3)])
def test_one_sampled_release_costs_what_its_own_integral_says(rate: float, sigma: float, delta: float) -> None:
    # P = (1 - q) N(0, sigma^2) + q N(1, sigma^2) against Q = N(0, sigma^2), both ways round
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 1_000_001)
    without = np.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    ratio = 1 - rate + rate * np.exp((2 * x - 1) / (2 * sigma**2))
    epsilon = PLD.epsilon(sampled(rate, sigma, 1), delta)
    gains = (without * (ratio - math.exp(epsilon)), without * (1 - math.exp(epsilon) * ratio))
    assert max(np.trapezoid(np.maximum(gain, 0), x) for gain in gains) == pytest.approx(delta, rel=5e-3)


CASES = [
    (float(rate), float(sigma), int(count), float(delta))
    for rng in [np.random.default_rng(7)]
    for rate, sigma, count, delta in zip(
        10 ** rng.uniform(-3, 0, 6),
        10 ** rng.uniform(-0.2, 1, 6),
        10 ** rng.uniform(1, 3.5, 6),
        10 ** rng.uniform(-10, -3, 6),
        strict=True,
    )
]


@pytest.mark.parametrize(("rate", "sigma", "count", "delta"), mostly_nightly(CASES, CASES[::3].__contains__))
def test_renyi_never_undercuts_the_distribution_and_sampling_never_costs_more(
    rate: float, sigma: float, count: int, delta: float
) -> None:
    exact = PLD.epsilon(sampled(rate, sigma, count), delta)
    assert exact <= RENYI.epsilon(sampled(rate, sigma, count), delta)
    assert exact <= GAUSSIAN.epsilon(sampled(1, sigma, count), delta)


@pytest.mark.parametrize(
    ("releases", "delta"),
    [
        ((Releases("gradient", 1.2, 0.5, 4),), 1e-5),  # the series of the lowest fractional orders do not converge
        ((Releases("gradient", 20.0, 0.01, 9600),), 1e-5),  # the best order is 63
        ((Releases("gradient", 0.4, 0.001, 100), Releases("mean", 9.0, 1.0, 1)), 1e-8),  # 2.5
        ((Releases("gradient", 0.5, 0.001, 30),), 0.03),  # epsilon is 0 at the lowest order, not at order 2
    ],
)
def test_a_few_orders_find_the_least_renyi_epsilon_of_all(releases: tuple[Releases, ...], delta: float) -> None:
    composed = _composed_by(_renyi_accountant(), _kinds(releases))
    assert RENYI.epsilon(releases, delta) == composed.get_epsilon(delta)


def test_a_mixed_composition_costs_more_than_each_part_and_less_than_their_sum() -> None:
    mean, steps = Releases("mean", 5.0, 1.0, 1), Releases("gradient", 2.0, 0.05, 400)
    for accountant in ("pld", "rdp"):
        whole = ACCOUNTANTS[accountant].epsilon([mean, steps], 1e-5)
        assert ACCOUNTANTS[accountant].epsilon([steps], 1e-5) < whole
        assert whole < sum(ACCOUNTANTS[accountant].epsilon([part], 5e-6) for part in (mean, steps))


@pytest.mark.parametrize("sigma", [0.0, 1e-200, 1e-160, 1e-100, 1e-20, 1e-4, 1.1e-3])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_noise_too_little_for_the_libraries_never_looks_cheap(rate: float, sigma: float) -> None:
    for accountant in ("pld", "rdp") if rate < 1 else ("gdp", "pld", "rdp"):
        assert ACCOUNTANTS[accountant].epsilon(sampled(rate, sigma, 3), 1e-5) > 1e5


def test_the_accountant_of_record_follows_the_sampling() -> None:
    full, part = Releases("mean", 1.0, 1.0, 1), Releases("gradient", 1.0, 0.5, 1)
    assert choose_accountant("auto", [full, full]) is GAUSSIAN
    assert choose_accountant("auto", [full, part]) is PLD
    assert choose_accountant("rdp", [full]) is RENYI
    with pytest.raises(ParameterError, match="allowed below 1: pld, rdp"):
        choose_accountant("gdp", [full, part])
    with pytest.raises(ParameterError, match="'moments'; allowed: auto, gdp, pld, rdp"):
        choose_accountant("moments", [full])


@pytest.mark.parametrize("accountant", ACCOUNTANTS.values())
def test_a_copy_of_an_accountant_is_the_accountant(accountant: Accountant) -> None:
    assert pickle.loads(pickle.dumps(accountant)) is copy.deepcopy(accountant) is accountant


@pytest.mark.parametrize(
    ("accountant", "record", "cross_check"),
    [
        ("gdp", 3.0, 3.02),
        ("gdp", 3.0, 2.98),
        ("pld", 1.0, 5.5),  # a bound so far above that the figure of record must be too small
        ("rdp", 1.0, 5.5),
        ("pld", math.inf, 3.0),
        ("pld", 3.0, math.inf),
        ("gdp", math.inf, 3.0),
        ("gdp", 3.0, math.nan),
        ("rdp", math.nan, 3.0),
    ],
)
def test_figures_that_cannot_both_be_right_do_not_agree(accountant: str, record: float, cross_check: float) -> None:
    assert not ACCOUNTANTS[accountant].agrees(record, cross_check)


def test_a_rate_or_a_multiplier_that_hides_most_of_the_cost_is_noticed() -> None:
    rate, sigma, count, factor = 0.05, 0.8, 800, 0.3
    renyi = RENYI.epsilon(sampled(rate, sigma, count), 1e-5)
    assert PLD.agrees(PLD.epsilon(sampled(rate, sigma, count), 1e-5), renyi)
    for wrong in (sampled(factor * rate, sigma, count), sampled(rate, sigma / factor, count)):
        assert not PLD.agrees(PLD.epsilon(wrong, 1e-5), renyi)


# the Renyi divergence of a record with a share of the sensitivity


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.01), (4.4, 0.16), (0.7, 0.5), (2.0, 1.0)])
def test_renyi_table_equals_the_librarys_divergence_at_the_scaled_multiplier(sigma: float, rate: float) -> None:
    delta = 1e-5
    shares, orders = np.array([0.1, 0.5, 1.0]), np.array([2, 3, 8, 32, 64])
    table = renyi_table(sigma, rate, shares, orders)
    assert table.shape == (3, 5)
    for row, share in enumerate(shares.tolist()):
        for column, alpha in enumerate(orders.tolist()):
            count = 1 + int(1 / table[row, column])  # enough that the library does not round epsilon to 0
            accountant = RdpAccountant([alpha])
            event = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma / share))
            accountant.compose(SelfComposedDpEvent(event, count))
            # Canonne, Kamath, Steinke 2020, proposition 12: what the library adds to the divergence at one order
            added = math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)
            expected = (accountant.get_epsilon(delta) - added) / count
            assert table[row, column] == pytest.approx(expected, rel=1e-6)


def test_renyi_table_of_no_share_is_zero_and_grows_with_share_and_order() -> None:
    table = renyi_table(1.5, 0.1, np.linspace(0, 1, 6), np.arange(2, 40))
    assert table[0].max() < 1e-15
    assert (np.diff(table, axis=0) > 0).all()
    assert (np.diff(table[1:], axis=1) > 0).all()


def test_renyi_table_of_full_sums_is_the_gaussian_divergence_without_a_warning(recwarn) -> None:
    shares, orders = np.array([0.3, 1.0]), np.array([2, 5, 50])
    table = renyi_table(3.0, 1.0, shares, orders)
    np.testing.assert_allclose(table, np.multiply.outer(shares**2, orders) / (2 * 3.0**2), rtol=1e-12)
    assert not recwarn.list


# the ledger


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


def test_a_line_that_cannot_be_written_leaves_nothing_in_the_ledger(tmp_path, monkeypatch) -> None:
    ledger, write = Ledger(tmp_path / "ledger.jsonl"), os.write
    ledger.append(events(3.0)[0])

    def full(descriptor: int, text: bytes) -> int:
        if len(text) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, text[:50])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        ledger.append(events(4.0)[0])
    ledger.close()
    assert Ledger(tmp_path / "ledger.jsonl").events == events(3.0)


GOOD_LINE = (
    '{"event": "gaussian", "purpose": "gradient", "step": 0, '
    '"sensitivity": 1, "noise_multiplier": 3, "sampling_rate": 1}'
)


def test_the_line_that_the_refused_ones_are_made_from_is_read(tmp_path) -> None:
    (tmp_path / "ledger.jsonl").write_text(GOOD_LINE + "\n")
    assert read_ledger(tmp_path / "ledger.jsonl") == events(3.0)


@pytest.mark.parametrize("rate", [1e-9, 0.1, 1 / 3, 1.0])
def test_sampling_rates_survive_the_ledger_to_the_last_bit(tmp_path, rate: float) -> None:
    event = GaussianEvent("gradient", 0, 0.1, 1.1, rate)
    (tmp_path / "ledger.jsonl").write_text(json.dumps(event.as_dict()) + "\n")
    assert read_ledger(tmp_path / "ledger.jsonl") == [event]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        GOOD_LINE.replace("gaussian", "laplace"),
        GOOD_LINE.replace('"noise_multiplier": 3, ', ""),
        GOOD_LINE.replace('"noise_multiplier": 3', '"noise_multiplier": -1'),
        GOOD_LINE.replace('"noise_multiplier": 3', '"noise_multiplier": NaN'),
        GOOD_LINE.replace(', "sampling_rate": 1', ""),
        *(GOOD_LINE.replace('"sampling_rate": 1', f'"sampling_rate": {rate}') for rate in (0, -0.1, 1.1, "NaN", '"x"')),
    ],
)
def test_a_ledger_line_that_is_no_event_is_refused(tmp_path, line: str) -> None:
    (tmp_path / "ledger.jsonl").write_text(line + "\n")
    with pytest.raises(PrivacyError, match="line 1"):
        read_ledger(tmp_path / "ledger.jsonl")
