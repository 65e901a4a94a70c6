"""mu_i to epsilon_i: never below the exact figure, never above the worst case."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.accounting.accountants import epsilon_of
from linprobe.accounting.per_instance import histogram_counts, per_instance_epsilon, summary
from linprobe.reporting.pdp_report import record_epsilons, sparkline


@given(st.lists(st.just(0.0) | st.floats(1e-4, 6), min_size=1, max_size=30), st.floats(1e-9, 1e-3))
def test_vectorised_epsilon_equals_the_accountant_of_record(mus, delta) -> None:
    exact = [epsilon_of(mu, delta) for mu in mus]
    np.testing.assert_allclose(per_instance_epsilon(np.array(mus), delta), exact, rtol=1e-6, atol=1e-8)


def test_epsilon_grows_with_mu() -> None:
    epsilons = per_instance_epsilon(np.linspace(0, 5, 200), 1e-5)
    assert (np.diff(epsilons) >= 0).all()
    assert epsilons[0] == 0


def test_no_record_is_reported_above_the_worst_case() -> None:
    mu = np.full(5, 0.71911)
    worst = epsilon_of(0.71911, 1e-5)
    assert record_epsilons(mu, 1e-5, worst).max() <= worst


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
