"""Fits on overlapping rows cost the most-used record what its fits cost together, and never less is reported."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from linprobe.accounting import fits as module
from linprobe.accounting.events import Releases

STEPS, OTHER = Releases("gradient", 10.0, 1.0, 50), Releases("gradient", 5.0, 1.0, 20)


def records(*places: int) -> np.ndarray:
    return np.array(places, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def totals(bound: dict[str, list[Releases]]) -> dict[float, int]:
    return {release.noise_multiplier: release.count for release in bound["record"]}


def test_folds_cost_the_records_that_are_in_most_of_them() -> None:
    fits = module.Fits()
    folds = [records(2, 3, 4, 5), records(0, 1, 4, 5), records(0, 1, 2, 3)]
    assert [fits.add(fold, [STEPS], "record")[0] for fold in folds] == [1, 2, 2]
    count, bound = fits.add(records(*range(6)), [OTHER], "record")  # the refit on all rows
    assert count == 3
    assert totals(bound) == {10.0: 100, 5.0: 20}


def test_other_rows_are_not_charged() -> None:
    fits = module.Fits()
    fits.add(records(0, 1), [STEPS], "record")
    assert fits.add(records(2, 3), [STEPS], "record") == (1, {"record": [Releases("", 10.0, 1.0, 50)]})


@pytest.mark.parametrize("most", [1, 64])
def test_no_record_is_charged_less_than_its_fits(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(module, "MOST_HISTORIES", most)
    fits, g = module.Fits(), np.random.default_rng(0)
    spent = [Counter() for _ in range(30)]
    for _ in range(40):
        chosen, kind = g.choice(30, 12, replace=False), (STEPS, OTHER)[g.integers(2)]
        count, bound = fits.add(records(*chosen.tolist()), [kind], "record")
        for place in chosen:
            spent[place][kind.noise_multiplier] += kind.count
        largest = Counter()
        for place in chosen:
            largest |= spent[place]
        assert all(totals(bound)[sigma] >= number for sigma, number in largest.items())
        if most > 1:
            assert totals(bound) == largest
        assert count >= max(spent[place][10.0] // 50 + spent[place][5.0] // 20 for place in chosen)


def test_a_fit_without_noise_is_no_private_fit_and_stays_in_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FITS", module.Fits())
    assert [module.refit_warning(records(0, 1), module.WITHOUT_NOISE, 1.0, unit) for unit in ("record", "owner")] == [
        None
    ] * 2
    assert module.refit_warning(records(2), [STEPS], 1e-5, "record") is None
    assert module.refit_warning(records(0, 2), module.WITHOUT_NOISE, 1.0, "record") == module.MIXED
    assert module.refit_warning(records(1, 3), [STEPS], 1e-5, "record") == module.MIXED
    text = module.refit_warning(records(2, 3), [STEPS], 1e-5, "record")
    assert text is not None
    assert text.startswith(f"{module.MIXED}; some were in 2 private fits of this process, which together cost epsilon ")
    assert text.count(" for a record") == 1
    assert "person" not in text


def test_memory_grows_with_records_and_not_with_fits() -> None:
    fits, g = module.Fits(), np.random.default_rng(1)
    for _ in range(200):
        fits.add(records(*g.choice(50, 25, replace=False).tolist()), [STEPS], "record")
    assert len(fits._table) <= 51
    assert len(fits._hashes) == len(fits._history) == 50


def test_a_row_that_crosses_between_fits_that_run_at_once_is_seen() -> None:
    fits, none = module.Fits(), records()
    assert fits.crossed(records(0, 1, 2), none) == (0, 0)  # begins, and ends after the next one began
    assert fits.crossed(records(3), records(2, 2, 4)) == (1, 0)
    assert fits.crossed(records(4, 5), none) == (0, 1)
