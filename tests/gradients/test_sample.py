"""The runs of a Poisson sample: their bounds are public, and one record changes one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linprobe.data.blocks import BLOCK_ROWS, SHARD_ROWS, STORAGE, narrowed
from linprobe.data.rows import ArrayRows
from linprobe.gradients import backend as host
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import PLAIN, Geometry, Origin, Scale
from linprobe.gradients.rounding import SAMPLED_STEPS, SUM_ROWS, TYPICAL_ROWS, UNIT_PLACES, Sample, arithmetic

RNG = np.random.default_rng(8)


def runs_of(sample: Sample) -> list[tuple[int, ...]]:
    """The places of each run."""
    return [tuple(sample.places[run].tolist()) for run in sample.runs()]


def bound(runs: list[tuple[int, ...]]) -> float:
    """Largest rounding error of the sums of these runs, in units of u A."""
    return sum(len(run) * (len(run) + 3) / 2 for run in runs)


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.05, 0.15, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("n", [1, 100, 1024, 4096])
def test_runs_hold_each_sampled_row_once_and_fewer_than_a_sum_of_all_rows(n: int, rate: float) -> None:
    sampled = RNG.random(n) < rate
    sample = Sample.of(sampled, rate)
    runs = runs_of(sample)
    assert [place for run in runs for place in run] == np.flatnonzero(sampled).tolist()
    assert all(0 < len(run) < SUM_ROWS for run in runs)
    assert sample.fits(n)
    if n * rate > 4 * TYPICAL_ROWS:
        assert len(sample.places) / len(runs) > SUM_ROWS / 3


@given(seed=st.integers(0, 10**6), n=st.integers(200, 1500), rate=st.floats(0.05, 0.6), clustered=st.booleans())
def test_one_record_changes_sums_by_no_more_than_one_sum_can_lose(
    seed: int, n: int, rate: float, clustered: bool
) -> None:
    g = np.random.default_rng(seed)
    sampled = g.random(n) < (np.where(np.arange(n) < n // 3, 0.9, 0.05) if clustered else rate)
    place = int(g.integers(n))
    found = []
    for joins in (True, False):
        sampled[place] = joins
        found.append(set(runs_of(Sample.of(sampled, rate))))
    changed = [[*mine - other] for mine, other in (found, found[::-1])]
    assert bound(changed[0]) + bound(changed[1]) <= SUM_ROWS * (SUM_ROWS + 3)
    assert len(changed[0]) + len(changed[1]) <= 3


def test_a_record_that_halves_a_run_changes_no_other() -> None:
    """Every place of a run of `SUM_ROWS` sampled rows, in the middle of others."""
    sampled = np.zeros(1200, bool)
    sampled[400:800:3], sampled[::9] = True, True
    sampled[np.flatnonzero(sampled[400:800])[SUM_ROWS:] + 400] = False
    assert sampled[400:800].sum() == SUM_ROWS
    whole = runs_of(Sample.of(sampled, 0.25))
    for place in 400 + np.flatnonzero(sampled[400:800]):
        without = sampled.copy()
        without[place] = False
        halves = set(whole) - set(runs_of(Sample.of(without, 0.25)))
        assert len(halves) == 2
        assert sum(len(half) for half in halves) == SUM_ROWS


def test_the_margin_of_a_sample_has_nine_grid_steps() -> None:
    sampled, full = (arithmetic(1.0, 10**6, 10**9, rate).margin for rate in (0.5, 1.0))
    assert sampled - full == pytest.approx(8 * 1e12 * 2.0**-52, rel=1e-9)


def test_units_have_the_same_runs_in_a_block_of_their_own() -> None:
    """So processes, whose shards begin at a unit, change no sum."""
    assert SHARD_ROWS % UNIT_PLACES == 0
    sampled = RNG.random(2 * UNIT_PLACES + 700) < 0.15
    units = [sampled[start : start + UNIT_PLACES] for start in range(0, len(sampled), UNIT_PLACES)]
    found = [
        tuple(number * UNIT_PLACES + place for place in run)
        for number, unit in enumerate(units)
        for run in runs_of(Sample.of(unit, 0.15))
    ]
    assert found == runs_of(Sample.of(sampled, 0.15))


def test_parts_are_the_same_runs() -> None:
    sample = Sample.of(RNG.random(4096) < 0.4, 0.4)
    parts = [*sample.parts(300, rounded=True)]
    assert len(parts) > 3
    assert all(len(part.places) <= 300 for part in parts)
    assert [run for part in parts for run in runs_of(part)] == runs_of(sample)
    assert [*Sample.of(np.zeros(9, bool), 0.1).parts(300, rounded=True)] == []
    assert [len(part.places) for part in sample.parts(1, rounded=True)] == np.diff(sample.ends, prepend=0).tolist()


@pytest.mark.parametrize("rate", [0.1, 0.6, 1.0])
def test_parts_stay_in_a_unit_and_are_few(rate: float) -> None:
    sample = Sample.of(RNG.random(3 * UNIT_PLACES + 50) < rate, rate)
    parts = [*sample.parts(BLOCK_ROWS, rounded=True)]
    units = [set((part.places // UNIT_PLACES).tolist()) for part in parts]
    assert all(len(of_part) == 1 for of_part in units)
    assert max(units.count({unit}) for unit in range(4)) <= SAMPLED_STEPS
    larger = [*sample.parts(BLOCK_ROWS, rounded=False)]
    assert len(larger) <= 1 + len(sample.places) // (BLOCK_ROWS - SUM_ROWS)
    assert [run for part in larger for run in runs_of(part)] == runs_of(sample)


@pytest.mark.parametrize(
    "ends", [[1], [3], [2, 2], [0, 2], []], ids=["too few", "too many", "an empty run", "no first row", "none"]
)
def test_runs_that_the_kernel_cannot_take_are_refused(ends: list[int]) -> None:
    assert not Sample(np.array([0, 5]), np.array(ends, np.int64)).fits(6)
    assert not Sample(np.array([0, 5]), np.array([2])).fits(5)
    assert not Sample(np.arange(SUM_ROWS + 1), np.array([SUM_ROWS + 1])).fits(1000)


X, Y = RNG.standard_normal((6000, 40), dtype=np.float32), RNG.integers(0, 5, 6000)
GEOMETRIES = {
    "plain": PLAIN,
    "origin": Origin(0.02 * RNG.standard_normal((40, 5))),
    "scale": Scale(np.exp(0.3 * RNG.standard_normal((40, 5)))),
}


@pytest.mark.skipif(host.LIBRARY is None, reason="the kernel is not built")
@pytest.mark.parametrize("precision", STORAGE)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("few", [True, False])
def test_a_sampled_sum_of_the_kernel_is_that_of_numpy(
    few: bool, observed: bool, geometry: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, weights = ArrayRows(narrowed(X, precision), Y), RNG.standard_normal((40, 5))
    sampled = rows.sample(RNG.random(6000) < 0.2, 0.2, observed=observed)
    monkeypatch.setattr(host, "FEW_CLASSES", 48 if few else 1)
    by_kernel = clipped_sum(sampled, weights, 0.5, geometry=GEOMETRIES[geometry])
    monkeypatch.setattr(host, "LIBRARY", None)
    by_numpy = clipped_sum(sampled, weights, 0.5, geometry=GEOMETRIES[geometry])
    np.testing.assert_allclose(by_kernel.value, by_numpy.value, atol=2e-4)
    np.testing.assert_allclose(by_kernel.contributions, by_numpy.contributions, atol=1e-5)


@pytest.mark.skipif(host.LIBRARY is None, reason="the kernel is not built")
@pytest.mark.parametrize("precision", STORAGE)
@pytest.mark.parametrize("rate", [0.03, 0.15, 0.7])
def test_translated_rows_are_summed_as_if_they_were_stored_translated(rate: float, precision: Any) -> None:
    rows = ArrayRows(narrowed(X, precision), Y).translated(RNG.standard_normal(40), 0.5)
    stored = ArrayRows(np.concatenate([block.x for block in rows.blocks()]), Y)
    weights, joined = RNG.standard_normal((41, 5)), RNG.random(6000) < rate
    assert np.array_equal(clipped_sum(rows, weights, 0.5).value, clipped_sum(stored, weights, 0.5).value)
    for observed in (True, False):
        found, expected = (
            clipped_sum(given.sample(joined, rate, observed=observed), weights, 0.5) for given in (rows, stored)
        )
        assert np.array_equal(found.contributions, expected.contributions)
        assert np.array_equal(found.value, expected.value)


FAR = Origin(4 * RNG.standard_normal((40, 5)))


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("geometry", [*GEOMETRIES.values(), FAR], ids=[*GEOMETRIES, "float64"])
def test_a_sample_has_the_same_sum_in_shards(geometry: Geometry, kernel: bool, monkeypatch) -> None:
    """Blocks of a sample cross the bounds of shards in one process."""
    if not kernel:
        monkeypatch.setattr(host, "LIBRARY", None)
    assert arithmetic(FAR.amplification(0.5)).dtype is np.float64
    weights, joined, others = RNG.standard_normal((40, 5)), RNG.random(6000) < 0.6, list[Any]()
    cuts, sums = (slice(0, SHARD_ROWS), slice(SHARD_ROWS, None)), []
    reductions = (lambda value: (others.append(value), value)[1]), (lambda value: value + others.pop(0))
    for cut, reduce in zip(cuts[::-1], reductions, strict=True):
        shard = ArrayRows(X[cut], Y[cut]).as_shard(cut.start, 6000)
        blocks = shard.sample(joined[cut], 0.6, observed=False)
        sums.append(clipped_sum(blocks, weights, 0.5, geometry=geometry, all_reduce=reduce).value)
    whole = ArrayRows(X, Y).sample(joined, 0.6, observed=False)
    assert np.array_equal(sums[1], clipped_sum(whole, weights, 0.5, geometry=geometry).value)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("geometry", [*GEOMETRIES.values(), FAR], ids=[*GEOMETRIES, "float64"])
def test_a_record_moves_a_sample_by_less_than_the_clip_norm(geometry: Geometry, kernel: bool, monkeypatch) -> None:
    if not kernel:
        monkeypatch.setattr(host, "LIBRARY", None)
    weights, joined, rows = RNG.standard_normal((40, 5)), RNG.random(6000) < 0.6, ArrayRows(X, Y)
    for place in (0, 2000, 4095, 4096, 5999):
        sums = []
        for joined[place] in (True, False):
            blocks = rows.sample(joined, 0.6, observed=False)
            sums.append(clipped_sum(blocks, weights, 0.5, geometry=geometry).value)
        assert 0 < np.linalg.norm(sums[0] - sums[1]) <= 0.5


def test_small_entries_of_a_row_count_in_a_scale_where_rows_change_their_places(monkeypatch) -> None:
    monkeypatch.setattr(host, "LIBRARY", None)
    x = np.full((1, 600), 2.0**-14.01, np.float32)
    x[:, 0] = 1  # beside it, all else is lost in `SteadyProducts`, and in the scale it is next to nothing
    scale = np.ones((600, 2))
    scale[0] = 1e6
    sample = ArrayRows(x, [0]).sample(np.ones(1, bool), 0.9, observed=False)
    found = clipped_sum(sample, np.zeros((600, 2)), 1e-9, geometry=Scale(scale)).value
    assert 0.99e-9 < np.linalg.norm(found) <= 1e-9  # it was 1e-6
