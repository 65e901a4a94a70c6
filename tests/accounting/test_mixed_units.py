"""Runs that protect records and runs that protect people: what they cost together, and that no figure is too low."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from linprobe.accounting import fits
from linprobe.accounting.accountants import GAUSSIAN, PLD
from linprobe.accounting.book import EXAMPLES, Cap, Contents, Entry, refuse_above, rows_of_a_person, spending, together
from linprobe.accounting.events import OWNER, RECORD, REMOVED, Relation, Releases, converted
from linprobe.accounting.figures import epsilon_of
from linprobe.accounting.selection import SelectionEvent, selection_epsilon
from linprobe.errors import PrivacyError

DELTA = 1e-5
STEPS = Releases("gradient", 9.833, 1.0, 50)  # epsilon 3 at delta 1e-5
MU = math.sqrt(50) / 9.833
HALVED = replace(STEPS, noise_multiplier=9.833 / 2)
SAMPLED = Releases("gradient", 3.12, 0.15, 200)
EVENT = SelectionEvent(3, ((STEPS,), (replace(STEPS, noise_multiplier=12.0), Releases("selection", 9.0, 1.0, 1))))


def entry(unit: str, *releases: Releases, event: SelectionEvent | None = None) -> Entry:
    made = () if event is not None else releases or (STEPS,)
    return Entry(f"{unit} {releases}", "/runs/a", "noisy-gd", unit, True, DELTA, made, selection=event)


def contents(*entries: Entry) -> Contents:
    return Contents({str(place): one for place, one in enumerate(entries)})


def test_a_run_by_record_after_one_by_owner_costs_a_record_mu_of_root_five() -> None:
    exact = epsilon_of(math.sqrt(4 + 1) * MU, DELTA)
    for entries in itertools.permutations([entry(OWNER), entry(RECORD)]):
        spent = spending(entries)
        assert (spent.unit, spent.runs) == (RECORD, 2)
        assert exact <= spent.epsilon <= exact * (1 + 1e-9)
        assert 7.66 < spent.epsilon < 7.67
        assert spent.gdp_mu == pytest.approx(math.sqrt(5) * MU, rel=1e-12)
        assert spent.epsilon_by_unit == {RECORD: spent.epsilon, OWNER: math.inf}


@pytest.mark.parametrize(
    ("units", "squared"), [((OWNER, OWNER, RECORD), 9), ((RECORD, OWNER, RECORD), 6), ((RECORD,) * 3, 3)]
)
def test_three_runs_count_with_the_square_of_their_mu_for_a_record(units: tuple[str, ...], squared: int) -> None:
    spent = spending([entry(unit) for unit in units])
    assert spent.unit == RECORD
    assert spent.epsilon == pytest.approx(epsilon_of(math.sqrt(squared) * MU, DELTA), rel=1e-9)


def test_runs_of_one_unit_cost_what_they_cost_before() -> None:
    for unit in (RECORD, OWNER):
        spent = spending([entry(unit), entry(unit)])
        assert spent.epsilon == GAUSSIAN.epsilon([STEPS, STEPS], DELTA)
        assert (spent.unit, spent.epsilon_by_unit) == (unit, {unit: spent.epsilon})
    assert spending([]).epsilon_by_unit == {RECORD: 0}


def test_a_selection_by_owner_is_judged_with_half_the_noise_for_a_record() -> None:
    halved = replace(EVENT, runs=tuple(converted(run, OWNER, REMOVED[RECORD]) for run in EVENT.runs))
    assert [release.noise_multiplier for release in halved.releases] == pytest.approx([9.833 / 2, 6.0, 4.5])
    spent = spending([entry(OWNER, event=EVENT), entry(RECORD)])
    apart = selection_epsilon(halved, DELTA / 2, GAUSSIAN) + GAUSSIAN.epsilon([STEPS], DELTA / 2)
    assert spent.epsilon == pytest.approx(apart, rel=1e-9)
    assert spent.epsilon > 1.5 * spending([entry(RECORD, event=EVENT), entry(RECORD)]).epsilon
    sampled = SelectionEvent(3, ((SAMPLED,), (STEPS,)))
    assert math.isfinite(spending([entry(OWNER, event=sampled), entry(RECORD)]).epsilon)


def test_a_sample_of_people_is_a_sum_over_all_of_them_with_half_the_noise_for_a_record() -> None:
    assert spending([entry(OWNER, SAMPLED)]).epsilon == PLD.epsilon([SAMPLED], DELTA)
    spent = spending([entry(OWNER, SAMPLED), entry(RECORD)])
    everyone = replace(SAMPLED, sampling_rate=1.0, noise_multiplier=SAMPLED.noise_multiplier / 2)
    assert spent.unit == RECORD
    assert spent.epsilon == pytest.approx(GAUSSIAN.epsilon([everyone, STEPS], DELTA), rel=1e-9)
    other = spending([entry(OWNER), entry(RECORD, SAMPLED)])  # here the rows are sampled
    assert other.epsilon == pytest.approx(PLD.epsilon([HALVED, SAMPLED], DELTA), rel=1e-4)
    assert other.gdp_mu is None


def test_the_noise_of_people_is_never_rounded_up_for_a_record() -> None:
    for sigma in (9.833, 0.1, 1 / 3, 1e-300):
        (halved,) = converted([replace(STEPS, noise_multiplier=sigma)], OWNER, REMOVED[RECORD])
        assert halved.noise_multiplier < sigma / 2
        assert halved.noise_multiplier == pytest.approx(sigma / 2, rel=1e-15)
    assert converted([STEPS, SAMPLED], RECORD, REMOVED[RECORD]) == (STEPS, SAMPLED)


def test_the_cap_of_a_run_is_for_its_own_unit() -> None:
    before, now = contents(entry(OWNER)), entry(RECORD)
    with pytest.raises(
        PrivacyError, match=r"1 run on these rows counts as epsilon 6\.70\d+, and 7\.66\d+ for a record with this one"
    ):
        refuse_above(Cap(5, DELTA), before, now, unit=RECORD)
    refuse_above(Cap(7.67, DELTA), before, now, unit=RECORD)
    for cap in (5, 1e9):
        with pytest.raises(
            PrivacyError,
            match=r"no epsilon covers a person with any number of rows \(a run by record.*; give --unit record$",
        ):
            refuse_above(Cap(cap, DELTA), contents(entry(RECORD)), entry(OWNER), unit=OWNER)
    refuse_above(Cap(100, DELTA), contents(entry(OWNER, SAMPLED)), now, unit=RECORD)


def test_the_cap_of_a_book_is_for_every_unit_in_it() -> None:
    for first, second in ((RECORD, OWNER), (OWNER, RECORD)):
        with pytest.raises(PrivacyError, match=rf"no epsilon covers a person .*; give --unit {first}$"):
            refuse_above(Cap(100, DELTA), contents(entry(first)), entry(second))
    with pytest.raises(PrivacyError, match=r"no epsilon covers a person .*; use other rows$"):
        refuse_above(Cap(100, DELTA), contents(entry(RECORD), entry(OWNER)), entry(RECORD))
    with pytest.raises(PrivacyError, match=r"7\.66\d+ for a record"):
        refuse_above(Cap(5, DELTA), contents(entry(OWNER)), entry(RECORD))
    not_private = replace(entry(RECORD), private=False)  # protects nothing, so it is no second unit
    refuse_above(Cap(5, DELTA), contents(not_private, entry(OWNER)), entry(OWNER))


def test_fits_by_record_and_by_owner_of_the_same_rows_state_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(10, dtype=np.uint64)
    for first, second in ((RECORD, OWNER), (OWNER, RECORD)):
        monkeypatch.setattr(fits, "FITS", fits.Fits())
        assert fits.refit_warning(rows, [STEPS], DELTA, first) is None
        text = fits.refit_warning(rows[5:], [STEPS], DELTA, second)
        assert text is not None
        assert "together cost epsilon 7.66" in text
        assert (
            "at delta 1e-05 for a record; no epsilon covers a person with any number of rows (a run by record" in text
        )
        assert fits.refit_warning(rows + 100, [SAMPLED], DELTA, OWNER) is None
        sampled = fits.refit_warning(rows + 100, [STEPS], DELTA, RECORD)
        assert sampled is not None
        assert "for a record; no epsilon covers a person" in sampled


def test_a_figure_is_asked_for_by_unit() -> None:
    assert together([entry(OWNER)], DELTA, REMOVED[OWNER])[0] == GAUSSIAN.epsilon([STEPS], DELTA)
    assert together([entry(OWNER)], DELTA, REMOVED[RECORD])[0] == pytest.approx(epsilon_of(2 * MU, DELTA), rel=1e-9)
    assert together([entry(RECORD)], DELTA, REMOVED[OWNER])[0] == math.inf


def test_a_person_with_k_rows_has_a_figure_after_runs_of_both_units() -> None:
    found = rows_of_a_person([entry(RECORD), entry(OWNER), entry(RECORD)], DELTA)
    assert tuple(found) == EXAMPLES
    for rows, epsilon in found.items():
        exact = epsilon_of(math.sqrt(2 * rows**2 + 1) * MU, DELTA)
        assert exact <= epsilon <= exact * (1 + 1e-9)
    selection = rows_of_a_person([entry(RECORD, event=EVENT), entry(OWNER)], DELTA)
    assert spending([entry(RECORD, event=EVENT)]).epsilon < selection[2] < selection[5] < selection[10]
    assert together([entry(RECORD)], DELTA, Relation(OWNER, rows=1))[0] == GAUSSIAN.epsilon([STEPS], DELTA)
