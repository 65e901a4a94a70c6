"""Every method where people are the unit: one person with all rows moves no release by more than its sensitivity."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from linprobe.accounting.events import grouped
from linprobe.accounting.per_instance import histogram_counts, record_losses
from linprobe.data.rows import ArrayRows
from linprobe.gradients import backend as host
from linprobe.methods import Problem
from tests.methods.test_contract import (
    RATE,
    SIGMA,
    SPENDING,
    STEPS,
    VARIANTS,
    RepeatedSampler,
    SpyMechanism,
    fit,
    problem,
)

SIZES = (1, 2, 3, 20, 4) * 3
DROPPED = (0, 3, len(SIZES) - 1)
CASES = [(method, options) for method, options in VARIANTS if options.get("variant") != "theory"]
each_case = pytest.mark.parametrize(
    ("method", "options"), CASES, ids=[f"{m.name}{''.join(f'-{k}={v}' for k, v in o.items())}" for m, o in CASES]
)


def of_people(empty: int | None = None) -> Problem:
    """The problem of the contract, whose rows belong to people; the place of one of them may be empty."""
    whole = problem(sum(SIZES))
    rows, sizes = whole.private_rows, np.array(SIZES)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    keep = np.ones(len(rows.y), dtype=bool)
    if empty is not None:
        keep[bounds[empty] : bounds[empty + 1]] = False
        sizes[empty] = 0
    left = ArrayRows(rows.x[keep], rows.y[keep])
    return replace(whole, private=left.of_people(np.concatenate([[0], np.cumsum(sizes)])))


@each_case
def test_a_person_moves_no_release_by_more_than_its_sensitivity(method, options) -> None:
    spy, sampler = SpyMechanism(), RepeatedSampler()
    fit(method, options, of_people(), spy, sampler=sampler)
    for dropped in DROPPED:
        neighbour = SpyMechanism(replay=spy.values)
        fit(method, options, of_people(empty=dropped), neighbour)
        moved = [float(np.linalg.norm(a - b)) for a, b in zip(spy.sums, neighbour.sums, strict=True)]
        bounds = [event.sensitivity for event in spy.events]
        assert all(one <= bound for one, bound in zip(moved, bounds, strict=True))
        if not method.samples:
            # nobody is charged less than what they moved
            paid = spy.contributed.squared_mu[dropped]
            shares = (move / bound / SIGMA for move, bound in zip(moved, bounds, strict=True))
            assert paid >= sum(share**2 for share in shares) * (1 - 1e-9)
        else:
            assert spy.contributed.levels[dropped].sum() == STEPS
            gone = [
                move
                for step, move in enumerate(moved[place] for place in spy.steps)
                if not sampler.drawn[step][dropped]
            ]
            assert max(gone, default=0.0) == 0.0


@cache
def played(case: int, by: object) -> tuple[SpyMechanism, dict[int, SpyMechanism]]:
    """A case fitted with all people, and with the place of each of `DROPPED` empty, given the same releases.

    `by` tells apart what computes the sums.
    """
    method, options = CASES[case]
    spy = SpyMechanism()
    fit(method, options, of_people(), spy, sampler=RepeatedSampler())
    neighbours = {dropped: SpyMechanism(replay=spy.values) for dropped in DROPPED}
    for dropped, neighbour in neighbours.items():
        fit(method, options, of_people(empty=dropped), neighbour, sampler=RepeatedSampler())
    return spy, neighbours


@pytest.mark.usefixtures("sums_by")
@each_case
def test_the_losses_of_others_do_not_move_with_a_person(method, options) -> None:
    """So a histogram of all losses changes by one count: bit for bit, given the same releases."""
    spy, neighbours = played(CASES.index((method, options)), host.LIBRARY)
    for dropped, neighbour in neighbours.items():
        for name in ("squared_mu", "levels"):
            here, there = (np.asarray(getattr(one.contributed, name)) for one in (spy, neighbour))
            assert here.shape == there.shape
            if here.size:
                assert np.array_equal(np.delete(here, dropped, axis=0), np.delete(there, dropped, axis=0)), name
        assert spy.contributed.squared_mu.size or spy.contributed.levels.size


@each_case
def test_a_person_changes_one_count_of_the_histogram(method, options) -> None:
    delta, worst = 1e-5, 50.0

    def counts(spy: SpyMechanism, empty: int | None = None) -> np.ndarray:
        steps = next(release for release in grouped(spy.events) if release.purpose == spy.events[-1].purpose)
        given = spy.contributed
        losses = record_losses(len(given.squared_mu) or len(given.levels), given.squared_mu, given.levels, steps, [])
        epsilons = losses.epsilon(delta, worst)
        return histogram_counts(epsilons if empty is None else np.delete(epsilons, empty), worst)

    spy, neighbours = played(CASES.index((method, options)), host.LIBRARY)
    for dropped, neighbour in neighbours.items():
        moved = counts(spy) - counts(neighbour, empty=dropped)  # an empty place is in no bin
        assert (np.abs(moved).sum(), moved.max()) == (1, 1)


@pytest.mark.parametrize("method", SPENDING, ids=lambda method: method.name)
def test_people_are_sampled_counted_and_charged(method) -> None:
    spy, sampler = SpyMechanism(), RepeatedSampler()
    fit(method, {}, of_people(), spy, sampler=sampler)
    if not method.samples:
        assert spy.contributed.squared_mu.shape == (len(SIZES),)
    else:
        assert {len(drawn) for drawn in sampler.drawn} == {len(SIZES)}
        assert spy.contributed.levels.shape[0] == len(SIZES)
        assert {release.sampling_rate for release in grouped(spy.events) if release.purpose == "gradient"} == {RATE}
