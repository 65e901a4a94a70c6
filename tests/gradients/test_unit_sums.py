"""Sums over people: the sensitivity to one person with all rows, on every path, in production arithmetic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linprobe.data.blocks import PAIRED_ROWS, STORAGE, ArraySource, Preprocessing, narrowed, normalise_rows
from linprobe.data.rows import BLOCK_UNITS, ArrayRows, ChainedRows, StreamedRows
from linprobe.gradients import backend as host
from linprobe.gradients.clipped_sum import clipped_sum, row_sum
from linprobe.gradients.loss import LARGEST_WEIGHTS, PLAIN, Geometry, Origin, Scale, residuals
from linprobe.gradients.rounding import unit_arithmetic
from linprobe.gradients.second_order import lower_triangle, second_moment
from linprobe.options import Loss
from linprobe.parallel import threads
from linprobe.parallel.process_group import in_group

D, C = 12, 5
SIZES = (3, 1, 2, PAIRED_ROWS, PAIRED_ROWS + 1, 40, 5, 1, 2000)


pytestmark = pytest.mark.usefixtures("sums_by")


def people(sizes, seed: int = 0, d: int = D, c: int = C, scale: float = 1.0):
    """Rows, labels and bounds of people with these numbers of rows, and weights."""
    g = np.random.default_rng(seed)
    n = int(np.sum(sizes))
    x = (scale * g.normal(size=(n, d)) * np.exp(g.normal(size=(n, 1)))).astype(np.float32)
    return x, g.integers(0, c, n), np.concatenate([[0], np.cumsum(sizes)]), 3 * g.normal(size=(d, c))


def without(unit: int, x, y, bounds):
    """The same people; the place of one of them is empty."""
    sizes = np.diff(bounds)
    keep = np.ones(len(x), dtype=bool)
    keep[bounds[unit] : bounds[unit + 1]] = False
    sizes[unit] = 0
    return x[keep], y[keep], np.concatenate([[0], np.cumsum(sizes)])


def streamed(x, y) -> StreamedRows:
    source = ArraySource(x, y)
    return StreamedRows(source.blocks, len(y), x.shape[1], Preprocessing())


def geometries() -> list[Geometry]:
    g = np.random.default_rng(3)
    return [PLAIN, Origin(0.3 * g.normal(size=(D, C))), Scale(np.exp(g.normal(size=(D, C))))]


def expected(x, y, bounds, weights, clip_norm, geometry, loss):
    """The clipped sum from the gradients themselves."""
    total = np.zeros((x.shape[1], weights.shape[1]))
    for first, stop in itertools.pairwise(bounds):
        if first == stop:
            continue
        wide = x[first:stop].astype(np.float64)
        gradient = wide.T @ residuals(wide, y[first:stop], weights.astype(np.float32).astype(np.float64), loss)
        if isinstance(geometry, Origin):
            gradient = gradient - geometry._origin
        if isinstance(geometry, Scale):
            gradient = gradient / geometry._scale
        total += gradient * min(1.0, clip_norm / np.linalg.norm(gradient))
    return total


@pytest.mark.parametrize("geometry", geometries(), ids=["plain", "origin", "scale"])
@pytest.mark.parametrize("loss", ["softmax", "squared"])
@pytest.mark.parametrize("clip_norm", [0.05, 50.0])
def test_the_gradients_of_a_person_are_summed_and_the_sum_is_clipped(geometry, loss, clip_norm) -> None:
    x, y, bounds, weights = people((*SIZES, *[3] * BLOCK_UNITS))
    x = normalise_rows(x)
    found = clipped_sum(ArrayRows(x, y).of_people(bounds), weights, clip_norm, geometry=geometry, loss=loss)
    assert np.linalg.norm(
        found.value - expected(x, y, bounds, weights, clip_norm, geometry, loss)
    ) <= 0.012 * clip_norm * (len(bounds) - 1)
    assert found.contributions.shape == (len(bounds) - 1,)


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.sampled_from([1, 2, 3, 7, PAIRED_ROWS, PAIRED_ROWS + 1, 50]), min_size=2, max_size=12),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    clip_norm=st.floats(1e-3, 10),
    geometry=st.sampled_from(geometries()),
    loss=st.sampled_from(["softmax", "squared"]),
)
def test_neighbours_differ_by_at_most_sensitivity(seed, sizes, scale, clip_norm, geometry, loss) -> None:
    x, y, bounds, weights = people(sizes, seed, scale=scale)
    removed = seed % len(sizes)
    how = {"geometry": geometry, "loss": loss}
    whole = clipped_sum(ArrayRows(x, y).of_people(bounds), weights, clip_norm, **how)
    x, y, bounds = without(removed, x, y, bounds)
    rest = clipped_sum(ArrayRows(x, y).of_people(bounds), weights, clip_norm, **how)
    moved = np.linalg.norm(whole.value - rest.value)
    assert moved <= whole.sensitivity == clip_norm
    assert moved <= whole.contributions[removed] * clip_norm + 1e-12


@pytest.mark.parametrize("others", [2, 7])
def test_people_who_share_rows_are_no_unit_that_survives_a_removal(others) -> None:
    """Someone is in one row with each of the others, who have a row each besides: without them, one group is many."""
    clip_norm, weights = 0.01, np.zeros((D, C))
    x = normalise_rows(np.ones((2 * others, D), np.float32))
    y = np.zeros(2 * others, np.int64)
    group = np.array([0, 2 * others])  # all are connected
    alone = np.arange(others + 1)  # the shared rows show the person who left
    together = clipped_sum(ArrayRows(x, y).of_people(group), weights, clip_norm).value
    apart = clipped_sum(ArrayRows(x[:others], y[:others]).of_people(alone), weights, clip_norm).value
    assert np.linalg.norm(together - apart) > 0.9 * (others - 1) * clip_norm


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("geometry", geometries(), ids=["plain", "origin", "scale"])
def test_one_row_of_a_person_moves_the_sum_by_up_to_twice_the_sensitivity(geometry, stream) -> None:
    def total(x, y, bounds, weights):
        rows = streamed(x, y) if stream else ArrayRows(normalise_rows(x), y)
        return clipped_sum(rows.of_people(bounds), weights, clip_norm, geometry=geometry)

    def moved(person, place, x, y, bounds, weights):
        """Without one row of a person."""
        keep = np.arange(len(x)) != bounds[person] + place
        fewer = bounds - (np.arange(len(bounds)) > person)
        whole = total(x, y, bounds, weights)
        return np.linalg.norm(whole.value - total(x[keep], y[keep], fewer, weights).value) / whole.sensitivity

    clip_norm = 0.01
    x, y, bounds, weights = people((3, 2, 7, PAIRED_ROWS + 1, 1, 2))
    for person, size in enumerate(np.diff(bounds)):
        assert max(moved(person, place, x, y, bounds, weights) for place in range(size)) <= 2
    # the last person has two equal rows of two classes: without the row of the rarer answer, the gradient is opposite
    x[-2:], y[-2:] = x[-1], [0, 1]
    weights = np.outer(normalise_rows(x[-1:])[0], [-1.0, 0.0, -1e3, -1e3, -1e3])
    opposite = moved(len(bounds) - 2, 0, x, y, bounds, weights)
    assert opposite <= 2
    assert opposite > (1.9 if geometry is PLAIN else 0)


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("rate", [1.0, 0.7])
@pytest.mark.parametrize(("d", "c"), [(512, 20), (256, 60)])
@pytest.mark.parametrize("size", [1e2, 1e6])
def test_people_who_leave_change_nothing_of_the_others(d, c, size, rate, observed) -> None:
    # like rows with large scores, which a product rounds according to their place
    g = np.random.default_rng(0)
    direction, n = g.normal(size=d), 3 * 2 * BLOCK_UNITS
    x = normalise_rows((direction + 0.02 * g.normal(size=(n, d))).astype(np.float32))
    weights = size * direction[:, None] / np.linalg.norm(direction) + 0.1 * g.normal(size=(d, c))
    weights += 1e-3 * size * g.normal(size=(d, 1))
    y, bounds, joined = np.zeros(n, dtype=int), np.arange(0, n + 1, 3), g.random(n // 3) < rate
    joined[5] = True
    sums = []
    for data in ((x, y, bounds), without(5, x, y, bounds)):
        rows = ArrayRows(*data[:2]).of_people(data[2])
        batch = rows.sample(joined, rate, observed=observed)
        sums.append(clipped_sum(batch, weights, 0.5, per_record=observed).value)
    assert 0.97 * 0.5 < np.linalg.norm(sums[0] - sums[1]) <= 0.5


def test_rounding_stays_inside_the_margin_when_all_rows_of_a_block_move() -> None:
    # two rows in turn, for all people: without the first person, every float32 sum rounds anew
    pair = normalise_rows(np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32))
    n = PAIRED_ROWS * BLOCK_UNITS
    x, y, bounds = np.tile(pair, (n // 2, 1)), np.zeros(n, dtype=int), np.arange(0, n + 1, PAIRED_ROWS)
    bounds[1:-1] += 1
    whole = clipped_sum(ArrayRows(x, y).of_people(bounds), np.zeros((16, 2)), 0.5)
    x, y, bounds = without(0, x, y, bounds)
    rest = clipped_sum(ArrayRows(x, y).of_people(bounds), np.zeros((16, 2)), 0.5)
    assert np.linalg.norm(whole.value - rest.value) <= 0.5


def test_the_margin_of_people_has_32_grid_steps() -> None:
    few, many = (unit_arithmetic(4.0, 10**6, n, block_units=1).margin for n in (1, 10**9))
    assert many - few == pytest.approx(4 * 32 * 1e12 * 2.0**-52, rel=1e-6)


@pytest.mark.parametrize(("rest", "loss"), [(1e-6, "softmax"), (1.2e-7, "softmax"), (1.2e-7, "squared")])
@pytest.mark.parametrize("clip_norm", [1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("n_rows", [2, PAIRED_ROWS, 300])
def test_rows_that_cancel_do_not_leave_the_bound(n_rows, clip_norm, rest, loss) -> None:
    # opposite rows with the same label: the sum of their gradients is rounding and a small rest
    g = np.random.default_rng(7)
    x = normalise_rows(g.normal(size=(n_rows // 2, D)).astype(np.float32))
    x = np.concatenate([x, -x * np.float32(1 + rest)])
    others, y_others, _, _ = people([3] * 20)
    whole = np.concatenate([x, others]), np.concatenate([np.zeros(n_rows, dtype=int), y_others])
    bounds = np.concatenate([[0], n_rows + np.arange(0, 61, 3)])
    weights = np.zeros((D, C))
    with_them = clipped_sum(ArrayRows(*whole).of_people(bounds), weights, clip_norm, loss=loss)
    x, y, bounds = without(0, *whole, bounds)
    others = clipped_sum(ArrayRows(x, y).of_people(bounds), weights, clip_norm, loss=loss)
    assert np.linalg.norm(with_them.value - others.value) <= clip_norm


@pytest.mark.parametrize("size", [PAIRED_ROWS + 1, 20, 50, 300])
@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("precision", STORAGE)
@pytest.mark.parametrize(("translated", "weighted"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("c", [5, 40])
def test_a_person_with_many_rows_moves_the_sum_by_at_most_tau(
    size, observed, precision, translated, weighted, c, monkeypatch
) -> None:
    """In samples, by three threads, with others who have few or many rows."""
    monkeypatch.setattr(threads, "n_threads", lambda: 3)
    monkeypatch.setattr(host, "n_threads", lambda: 3)
    monkeypatch.setattr(host, "WORK_PER_THREAD", 1)
    monkeypatch.setattr(host, "BLOCK_ROWS", 1)
    g = np.random.default_rng(size)
    sizes = g.choice([1, 2, 16, 18, 33], 2 * BLOCK_UNITS + 9)
    sizes[130] = size
    raw, y, bounds, weights = people(sizes, size, c=c)
    y[bounds[130] : bounds[131]] = g.integers(0, 2, size)
    own, joined = g.uniform(0, 3, len(y)), g.random(len(sizes)) < 0.7
    stored, joined[130] = narrowed(Preprocessing().apply(raw), precision), True
    keep = np.ones(len(y), bool)
    keep[bounds[130] : bounds[131]] = False
    _, y_rest, rest = without(130, raw, y, bounds)
    sums = []
    for x, labels, ends, on in ((stored, y, bounds, own), (stored[keep], y_rest, rest, own[keep])):
        rows = ArrayRows(x, labels, weights=on if weighted else None).of_people(ends)
        if translated:
            rows = rows.translated(np.full(D, 0.05), 0.25)
        wide = np.concatenate([weights, np.ones((1, c))]) if translated else weights
        sample = rows.sample(joined, 0.7, observed=observed)
        sums.append(clipped_sum(sample, wide, 0.3, per_record=observed))
    moved = np.linalg.norm(sums[0].value - sums[1].value)
    assert 0.97 * 0.3 < moved <= 0.3
    if observed:
        assert moved <= sums[0].contributions[130] * 0.3 + 1e-12


@pytest.mark.parametrize("far", [1e2, 1e4, 1e5])
def test_a_person_near_an_origin_that_is_far_from_zero_moves_the_sum_by_at_most_tau(far) -> None:
    x = np.full((2, 600), 2.0**-3 - 2.0**-27, np.float32)  # `SteadyProducts` rounds these entries up, all of them
    x[:, 0] = 0.99
    gradient = np.outer(x[0].astype(np.float64), [-0.5, 0.5])
    apart = np.random.default_rng(0).normal(size=gradient.shape)
    apart -= gradient * (apart * gradient).sum() / (gradient**2).sum()
    apart *= 7.4e-4 / np.linalg.norm(apart)  # the distance that such rounding hides
    rows, clip_norm = ArrayRows(x, [0, 0]).of_people(np.arange(3)), float(np.linalg.norm(gradient)) / far
    one, other = (
        clipped_sum(some, np.zeros((600, 2)), clip_norm, geometry=Origin(gradient + apart))
        for some in (rows, rows.emptied(np.array([False, True])))
    )
    moved = float(np.linalg.norm(one.value - other.value)) / clip_norm  # it was up to 25
    assert 0 < moved <= one.contributions[0] <= 1


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("observed", [True, False])
def test_streams_threads_and_processes_give_the_same_bits(rate, observed, monkeypatch) -> None:
    sizes = np.random.default_rng(0).integers(1, 6, 3 * BLOCK_UNITS)
    sizes[7] = 30
    raw, y, bounds, weights = people(sizes)
    x = Preprocessing().apply(raw)
    joined = np.random.default_rng(1).random(len(sizes)) < rate
    batch = {"rate": rate, "observed": observed}

    def total(rows, mask=joined) -> np.ndarray:
        return clipped_sum(rows.sample(mask, **batch), weights, 0.5, per_record=observed).value

    memory = total(ArrayRows(x, y).of_people(bounds))
    assert np.array_equal(memory, total(streamed(raw, y).of_people(bounds)))
    monkeypatch.setattr(threads, "n_threads", lambda: 3)
    monkeypatch.setattr(host, "n_threads", lambda: 3)
    monkeypatch.setattr(host, "WORK_PER_THREAD", 1)
    monkeypatch.setattr(host, "BLOCK_ROWS", 1)
    assert np.array_equal(memory, total(ArrayRows(x, y).of_people(bounds)))
    if not observed:
        return

    def member(group):
        first, stop = group.rank * BLOCK_UNITS, (group.rank + 1) * BLOCK_UNITS
        here = slice(bounds[first], bounds[stop])
        shard = ArrayRows(x[here], y[here]).of_people(bounds[first : stop + 1] - bounds[first])
        rows = shard.as_shard(first, len(sizes))
        sampled = rows.sample(joined[first:stop], **batch)
        return clipped_sum(sampled, weights, 0.5, all_reduce=group.all_reduce).value

    for value in in_group(3, member):
        assert np.array_equal(memory, value)


def test_the_number_of_threads_for_people_follows_their_rows(monkeypatch) -> None:
    monkeypatch.setattr(host, "n_threads", lambda: 64)
    x, y, bounds, _ = people([10] * 1000)
    by_rows = ArrayRows(x, y)
    by_people = by_rows.of_people(bounds)
    weights = np.zeros((2000, 10))
    threads_of = host.HOST.n_threads(by_rows, weights)
    assert threads_of == 10
    for rows in (
        by_people,
        by_people.as_shard(0, 4000),
        by_people.sample(np.ones(1000, bool), 1.0, observed=True),
    ):
        assert host.HOST.n_threads(rows, weights) == -(-1000 // BLOCK_UNITS) == 8


def test_people_with_one_row_each_are_as_rows() -> None:
    x, y, bounds, weights = people([1] * 300)
    rows = ArrayRows(normalise_rows(x), y)
    by_row, by_person = (clipped_sum(one, weights, 0.5) for one in (rows, rows.of_people(bounds)))
    np.testing.assert_allclose(by_person.value, by_row.value, atol=0.01 * 0.5 * 300)
    np.testing.assert_allclose(by_person.contributions, by_row.contributions, atol=0.01)


def test_changed_and_chained_rows_of_people_keep_their_people() -> None:
    x, y, bounds, weights = people((3, 2, 1, 4))
    shift = np.full(D, 0.25)
    moved = ArrayRows(x, y).of_people(bounds).translated(shift, 1.0)
    wide = np.concatenate([weights, np.ones((1, C))])
    translated = np.concatenate([x - shift.astype(np.float32), np.ones((len(x), 1), np.float32)], axis=1)
    found = clipped_sum(moved, wide, 0.5).value
    want = clipped_sum(ArrayRows(translated, y).of_people(bounds), wide, 0.5).value
    np.testing.assert_allclose(found, want, atol=1e-6)
    for observed, half in itertools.product((True, False), (False, True)):
        stored = ArrayRows(translated, y).of_people(bounds)
        joined = np.array([True, half, False, True])
        sums = [clipped_sum(rows.sample(joined, 0.5, observed=observed), wide, 0.5).value for rows in (moved, stored)]
        np.testing.assert_allclose(*sums, atol=1e-6)
    more = ArrayRows(x[:2], y[:2])
    chained = clipped_sum(ChainedRows(ArrayRows(x, y).of_people(bounds), more), weights, 0.5)
    both = ArrayRows(np.concatenate([x, x[:2]]), np.concatenate([y, y[:2]])).of_people(np.append(bounds, [11, 12]))
    np.testing.assert_allclose(chained.value, clipped_sum(both, weights, 0.5).value, atol=0.02)
    assert chained.contributions.shape == (4,)  # none of the public rows


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), removed=st.integers(0, 4), origin=st.booleans())
def test_means_and_second_moments_are_of_people(seed, removed, origin) -> None:
    x, y, bounds, _ = people((3, 1, 20, 2, 1030), seed, scale=2.0)
    around = np.full(D, 0.2) if origin else None
    whole, gone = (ArrayRows(*data[:2]).of_people(data[2]) for data in ((x, y, bounds), without(removed, x, y, bounds)))
    sums = [row_sum(rows, 1.0, around) for rows in (whole, gone)]
    assert np.linalg.norm(sums[0].value - sums[1].value) <= 1.0
    moments = [second_moment(rows) for rows in (whole, gone)]
    assert np.linalg.norm(moments[0].value - moments[1].value) <= moments[0].contributions[removed] * (1 + 1e-9)
    assert moments[0].contributions.shape == sums[0].contributions.shape == (5,)


def test_a_short_person_counts_in_full() -> None:
    x = np.full((3, 4), 0.1, dtype=np.float32)
    rows = ArrayRows(x, np.zeros(3, dtype=int)).of_people(np.array([0, 2, 3]))
    found = lower_triangle(second_moment(rows).value, 4)
    np.testing.assert_allclose(np.tril(x.T @ x), found, rtol=1e-6)
    np.testing.assert_allclose(row_sum(rows, 1.0).value[:, 0], np.full(4, 0.2), rtol=1e-6)


@pytest.mark.parametrize("loss", ["squared", "softmax"])
@pytest.mark.parametrize("n_people", [3, 33])
def test_a_person_who_leaves_moves_no_sum_by_more_than_tau_at_the_largest_weights(loss: Loss, n_people: int) -> None:
    """Scores of rows (u, -u) at weights (v, v) are 0, so all that float64 gives is rounding."""
    g = np.random.default_rng(n_people)
    sizes = np.ones(n_people, dtype=int)
    sizes[0] = 2
    v, u = g.normal(size=(64, 3)), g.normal(size=(int(sizes.sum()), 64)).astype(np.float32)
    weights = np.concatenate([v, v])
    weights *= 0.9 * LARGEST_WEIGHTS / np.linalg.norm(weights)
    x, y = normalise_rows(np.concatenate([u, -u], axis=1)), g.integers(0, 3, len(u))
    bounds, without = (np.r_[0, np.cumsum(each)].astype(np.int64) for each in (sizes, np.r_[0, sizes[1:]]))
    both = [
        clipped_sum(ArrayRows(*rows).of_people(ends), weights, 0.5, loss=loss, per_record=False).value
        for rows, ends in (((x, y), bounds), ((x[2:], y[2:]), without))
    ]
    assert np.linalg.norm(both[0] - both[1]) <= 0.5
