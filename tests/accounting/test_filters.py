"""Caps: runs chosen after the results of earlier ones are counted by a privacy filter."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flint import arb, ctx

from linprobe.accounting.accountants import FILTER_ORDERS, GAUSSIAN, PLD, renyi_divergences, repeated_epsilon
from linprobe.accounting.book import (
    Cap,
    Contents,
    Entry,
    _divergences,
    filter_order,
    refuse_above,
    together,
    under_cap,
)
from linprobe.accounting.events import HISTOGRAM, INHERITED, OWNER, RECORD, REMOVED, Releases, hold_without_a_choice
from linprobe.accounting.selection import SelectionEvent, selection_divergences, selection_epsilon
from linprobe.errors import PrivacyError
from tests.accounting.choices import factor_after_a_run, largest_factor

DELTA = 1e-5
STEPS = Releases("gradient", 9.833, 1.0, 50)
SAMPLED = Releases("gradient", 3.12, 0.15, 200)
EVENT = SelectionEvent(3, ((STEPS,), (Releases("gradient", 12.0, 1.0, 50),)))
RECORDS = REMOVED[RECORD]


def entry(*releases: Releases, event: SelectionEvent | None = None, unit: str = RECORD) -> Entry:
    return Entry(str(releases), "/runs/a", "dp-sgd", unit, True, DELTA, releases, selection=event)


def test_sums_over_all_rows_are_counted_by_the_filter_of_gaussian_dp() -> None:
    runs = [entry(STEPS), entry(Releases("gradient", 20.0, 1.0, 3))]
    exact = GAUSSIAN.epsilon([release for run in runs for release in run.total], DELTA)
    assert under_cap(runs, Cap(5, DELTA), RECORDS) == exact


def test_with_samples_the_divergences_add_up_at_an_order_that_the_cap_alone_decides() -> None:
    runs, cap = [entry(SAMPLED), entry(STEPS), entry(SAMPLED)], Cap(8, DELTA)
    order = filter_order(cap)
    place = FILTER_ORDERS.index(order)
    spent = 2 * renyi_divergences((SAMPLED,))[place] + order * 50 / 9.833**2 / 2
    figure = under_cap(runs, cap, RECORDS)
    exact = spent + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
    assert exact <= figure <= exact * (1 + 1e-6)
    with ctx.workprec(256):
        conversion = (1 - 1 / arb(order)).log() - (arb(DELTA) * order).log() / (order - 1)
        for count in range(1, 41):
            # the second run costs so much that the sum is rounded by more than the conversion
            runs = [entry(replace(SAMPLED, count=count)), entry(replace(STEPS, noise_multiplier=0.1))]
            spent = sum(arb(float(_divergences(run, RECORDS)[place])) for run in runs)
            assert under_cap(runs, cap, RECORDS) >= spent + conversion
    assert figure > PLD.epsilon([SAMPLED, SAMPLED, STEPS], DELTA)
    orders = {filter_order(Cap(epsilon, DELTA)) for epsilon in (0.1, 1, 8, 50)}
    assert len(orders) > 2


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 1e5), (0.001, 1e3), (1.0, 20.0), (0.15, 3.12)])
def test_no_divergence_is_below_the_exact_one(rate: float, sigma: float) -> None:
    found = dict(zip(FILTER_ORDERS, renyi_divergences((Releases("gradient", sigma, rate, 3),)), strict=True))
    q = arb(rate)
    with ctx.workprec(256):
        for order in (3, 37, 46):
            terms = [
                math.comb(order, k) * q**k * (1 - q) ** (order - k) * (arb(k * (k - 1)) / (2 * arb(sigma) ** 2)).exp()
                for k in range(order + 1)
            ]
            exact = 3 * sum(terms, arb(0)).log() / (order - 1)
            assert exact <= found[order] <= exact * (1 + arb(1e-9))


def test_a_choice_between_the_two_filters_costs_more_than_the_delta_of_the_cap_and_at_most_twice_as_much() -> None:
    assert 1.005 < largest_factor(30, DELTA, (0.97,), 6) <= 2


def test_a_choice_after_a_first_run_costs_up_to_nearly_twice_the_delta() -> None:
    assert 1.9 < factor_after_a_run(3, DELTA) <= 2
    first = Releases(INHERITED, 9.0, 1.0, 50)
    assert [hold_without_a_choice([first, own]) for own in (STEPS, SAMPLED)] == [False, True]
    assert hold_without_a_choice([SAMPLED, Releases(HISTOGRAM, 9.0, 1.0, 1)])
    assert not hold_without_a_choice([SAMPLED, STEPS])


def test_a_cap_that_numerical_composition_would_pass_is_refused_by_the_filter() -> None:
    total = together([entry(SAMPLED), entry(SAMPLED)], DELTA, RECORDS)[0]
    cap = Cap(total * 1.01, DELTA)
    first = Contents({"a": entry(SAMPLED)})
    with pytest.raises(PrivacyError, match="with this one; nothing was spent"):
        refuse_above(cap, first, entry(SAMPLED))
    refuse_above(Cap(total * 1.25, DELTA), first, entry(SAMPLED))
    people = Contents({"a": entry(SAMPLED, unit=OWNER)})
    with pytest.raises(PrivacyError, match="with this one; nothing was spent"):
        refuse_above(cap, people, entry(SAMPLED, unit=OWNER))


def test_the_first_run_of_a_book_has_its_own_figure() -> None:
    exact = PLD.epsilon([SAMPLED], DELTA)
    assert under_cap([entry(SAMPLED)], Cap(exact, DELTA), RECORDS) == exact
    refuse_above(Cap(exact, DELTA), Contents(), entry(SAMPLED))
    small = Releases("gradient", 1e6, 1.0, 1)
    with pytest.raises(PrivacyError):
        refuse_above(Cap(exact, DELTA), Contents({"a": entry(SAMPLED)}), entry(small))
    assert under_cap([entry(event=EVENT)], Cap(9, DELTA), RECORDS) == pytest.approx(
        selection_epsilon(EVENT, DELTA, GAUSSIAN), rel=1e-12
    )


def test_a_first_run_that_ended_early_is_counted_by_the_filter_alone_too() -> None:
    cap, early = Cap(8, DELTA), replace(entry(SAMPLED), ended_early=True)
    with_nothing_after = under_cap([early], cap, RECORDS)
    assert with_nothing_after > under_cap([entry(SAMPLED)], cap, RECORDS)
    almost_nothing = entry(Releases("gradient", 1e6, 1.0, 1))
    assert with_nothing_after == pytest.approx(under_cap([early, almost_nothing], cap, RECORDS), rel=1e-9)


@pytest.mark.parametrize("release", [Releases("histogram", 20.0, 1.0, 1), Releases(INHERITED, 20.0, 1.0, 1)])
def test_what_is_released_before_or_after_the_first_run_is_counted_as_another_run(release: Releases) -> None:
    cap, first = Cap(1.01 * PLD.epsilon([SAMPLED, release], DELTA), DELTA), entry(SAMPLED)
    both = entry(release, SAMPLED) if release.purpose == INHERITED else replace(first, further=(release,))
    filtered = under_cap([first, entry(replace(release, purpose="gradient"))], cap, RECORDS)
    assert filtered > cap.epsilon
    assert under_cap([both], cap, RECORDS) == pytest.approx(filtered, rel=1e-12)
    with pytest.raises(PrivacyError, match="nothing was spent"):
        refuse_above(cap, Contents(), both)


@pytest.mark.parametrize("release", [STEPS, SAMPLED])
@pytest.mark.parametrize("mean", [2, 10])
def test_the_divergence_of_a_selection_is_that_of_papernot_and_steinke(release: Releases, mean: int) -> None:
    one = np.array(renyi_divergences((release,)))
    found = [
        selection_divergences(one, mean)[place] + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
        for place, order in enumerate(FILTER_ORDERS)
    ]
    library = repeated_epsilon((release,), mean, DELTA)  # it has more orders
    assert library * (1 - 1e-9) <= min(found) <= library * 1.02


def test_selections_and_runs_add_up_in_one_filter() -> None:
    cap = Cap(20, DELTA)
    both = under_cap([entry(event=EVENT), entry(STEPS)], cap, RECORDS)
    assert both > together([entry(STEPS), entry(STEPS)], DELTA, RECORDS)[0]
    assert both >= under_cap([entry(event=SelectionEvent(3, ((STEPS,),))), entry(STEPS)], cap, RECORDS)
    assert under_cap([entry(STEPS), entry(event=EVENT)], cap, RECORDS) == pytest.approx(both, rel=1e-12)
    assert under_cap([entry(event=EVENT), entry(STEPS)], cap, REMOVED[OWNER]) == math.inf
