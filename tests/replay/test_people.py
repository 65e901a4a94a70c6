"""No run with `--unit owner` publishes anything of a person but its noised sums: every method, on every path."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from linprobe.data import rows
from linprobe.gradients import backend as host
from linprobe.methods import METHODS
from linprobe.parallel import available_memory
from tests.replay.conftest import BASE
from tests.replay.people import ABSENT, PEOPLE
from tests.replay.replay import Played, compare, play
from tests.replay.test_replay import (
    CASES,
    COUNTS,
    DEFAULTS,
    MEAN,
    UNCENTRED,
    gained,
    on_neighbours,
    on_path,
    similar,
    takes_people,
    words_of,
)

HUGE, MANY, LAST = PEOPLE


def people_words(case: tuple[str, str]) -> list[str]:
    """`words_of` for people. A method that protects public rows gets none, as they have no owners."""
    words = [*words_of(*case), "--unit", "owner"]
    if METHODS[case[0]].joins_public and "--public-shots" not in words:
        words += ["--public-shots", "0"]
    return words


PEOPLE_CASES = [case for case in (*CASES, COUNTS) if takes_people(case)]
WHOLE = [
    *DEFAULTS,
    COUNTS,
]  # the others add options that rows are played with; by day, every second one, and the rest with records
PARTS = [("dp-sgd", "--no-per-record"), ("fully-private", MEAN), COUNTS, UNCENTRED]


def replay(datasets: Any, case: tuple[str, str], neighbours: Collection[str] = (HUGE,), **how: Any) -> Played:
    """Play a case on the base, then on every neighbour with the base's releases; returns the first."""
    folder, words = datasets / "people", people_words(case)
    base = play(folder / BASE, words, ABSENT, people=True, **how)
    assert base.published["exit status"] == 0, base.published["stderr"]
    for name in neighbours:
        place = PEOPLE[name].place
        other = play(folder / name, words, ABSENT - {place}, people=True, forced=base, **how)
        compare(base, other, place)
    return base


def kept(place: int, case: tuple[str, str]) -> Collection[str]:
    """The neighbours that a case is played on by day."""
    return PEOPLE if case in WHOLE else [(HUGE, LAST)[place // 2 % 2]] if CASES.index(case) % 2 else []


@on_neighbours(PEOPLE_CASES, list(PEOPLE), kept)
def test_a_neighbour_publishes_the_same_bits(case, neighbours, datasets) -> None:
    base = replay(datasets, case, neighbours)
    assert base.published["manifest.json: unit"] == "owner"


@on_path(DEFAULTS, (HUGE,), 0, people=True)
def test_a_neighbour_publishes_the_same_bits_by_numpy(case, neighbours, datasets, monkeypatch) -> None:
    monkeypatch.setattr(host, "LIBRARY", None)
    replay(datasets, case, neighbours)


@on_path(DEFAULTS, (HUGE,), 1, people=True)
def test_a_neighbour_publishes_the_same_bits_by_the_kernel_for_many_classes(
    case, neighbours, datasets, monkeypatch
) -> None:
    if host.LIBRARY is None:
        pytest.skip("the kernel is not built")
    monkeypatch.setattr(host, "FEW_CLASSES", 1)
    replay(datasets, case, neighbours)


@on_path([*DEFAULTS, *PARTS], (HUGE,), 2, people=True)
def test_a_neighbour_publishes_the_same_bits_from_streamed_rows(case, neighbours, datasets, monkeypatch) -> None:
    monkeypatch.setattr(available_memory, "suffices", lambda n_bytes: False)
    replay(datasets, case, neighbours)


@on_path([*DEFAULTS, *PARTS], (HUGE, LAST), 3, people=True)
def test_a_neighbour_publishes_the_same_bits_in_two_processes(case, neighbours, datasets, monkeypatch) -> None:
    monkeypatch.setattr(rows, "SHARD_ROWS", 64)
    replay(datasets, case, neighbours, processes=2)


UNSAMPLED = [case for case in DEFAULTS if METHODS[case[0]].options.on_gpu and not METHODS[case[0]].samples]


@on_path(UNSAMPLED, (HUGE, MANY), 4, people=True)
def test_a_neighbour_publishes_the_same_bits_on_a_device(case, neighbours, datasets, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    from linprobe.gradients import gpu

    monkeypatch.setattr(gpu, "check_device", lambda name: torch.device("cpu"))
    replay(datasets, (case[0], f"{case[1]} --device cuda"), neighbours)


def test_a_neighbour_publishes_the_same_bits_where_private_rows_choose_the_shrinkage(datasets) -> None:
    words = [*people_words(("adamix", "")), "--shrink", "0,0.5,1"]
    base = play(datasets / "people" / BASE, words, ABSENT, people=True, command="tune")
    assert base.draws[-1].event.purpose == "selection"
    for name, person in PEOPLE.items():
        absent = ABSENT - {person.place}
        other = play(datasets / "people" / name, words, absent, people=True, forced=base, command="tune")
        compare(base, other, person.place)
        assert np.any(base.draws[-1].total != other.draws[-1].total)


def test_a_person_near_rows_without_labels_is_counted_at_most_once(datasets) -> None:
    folder, words = datasets / "people", people_words(UNCENTRED)
    base = play(folder / BASE, words, ABSENT, people=True)
    moved = []
    for name, person in PEOPLE.items():
        other = play(folder / name, words, ABSENT - {person.place}, people=True, forced=base)
        moved.append(float((similar(other) - similar(base))[0, 0]))
    assert all(0 <= one <= 1 for one in moved)
    assert max(moved) > 0.5


@pytest.mark.usefixtures("other_weights")
def test_a_person_moves_the_gain_by_at_most_one(datasets) -> None:
    folder, words = datasets / "people", people_words(UNCENTRED)
    base, moved = play(folder / BASE, words, ABSENT, people=True), []
    for name, person in PEOPLE.items():
        other = play(folder / name, words, ABSENT - {person.place}, people=True, forced=base)
        compare(base, other, person.place)
        moved.append(abs(float((gained(other) - gained(base))[0, 0])))
    assert 0 < max(moved) <= 1


def test_everybody_is_in_one_sample_and_outside_another(datasets) -> None:
    base = replay(datasets, ("dp-sgd", ""), ())
    for place in ABSENT:
        assert {draw.joined[place] for draw in base.draws} == {True, False}
