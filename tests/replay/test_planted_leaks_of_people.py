"""Leaks of people planted in the product. The replay must find each one, by the fault that it reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linprobe.data import blocks
from linprobe.data.rows import Rows
from linprobe.gradients import clipped_sum, second_order
from linprobe.gradients.clipped_sum import UnitClip
from linprobe.methods import class_counts
from linprobe.methods._descent import Descent
from linprobe.training import execute
from linprobe.training import train as train_command
from tests.planted import clip_by_row
from tests.replay.conftest import BASE
from tests.replay.people import ABSENT, PEOPLE
from tests.replay.replay import LeakError, compare, play
from tests.replay.test_people import people_words
from tests.replay.test_replay import COUNTS, MEAN

Patch = pytest.MonkeyPatch
HUGE, MANY, LAST = PEOPLE


def no_products_of_pairs(patch: Patch) -> None:
    """The norm of a person's sum is computed as if the rows were orthogonal."""
    inner = blocks.inner_products
    patch.setattr(blocks, "inner_products", lambda *given: 0 * inner(*given))


def sum_in_place_of_mean(patch: Patch) -> None:
    """The private mean sums all rows of a person, unclipped."""
    means = clipped_sum.unit_means
    patch.setattr(clipped_sum, "unit_means", lambda block, x: means(block, x) * np.diff(block.bounds)[:, None])
    patch.setattr(clipped_sum, "SMALLEST_MARGIN", -9.0)


def counts_of_rows(patch: Patch) -> None:
    """Class counts are of rows, not of people."""
    means = class_counts.unit_means
    patch.setattr(class_counts, "unit_means", lambda block, x: means(block, x) * np.diff(block.bounds)[:, None])


def second_moment_of_rows(patch: Patch) -> None:
    """Second moments of rows are scaled to 1, not those of people."""
    patch.setattr(second_order, "outer_product_norms", lambda block, x: np.ones(block.n_units))


def rows_sampled_with_people(patch: Patch) -> None:
    """Sums are over all people."""
    sample = Rows.sample
    patch.setattr(Rows, "sample", lambda self, mask, rate, **how: sample(self, mask | True, rate, **how))


def number_of_rows(patch: Patch) -> None:
    """The manifest counts the rows of all people."""
    manifest, seen = train_command.manifest_of, []
    _spied_rows(patch, lambda rows: seen.append(int(rows.bounds[-1])))
    patch.setattr(train_command, "manifest_of", lambda *given: replace(manifest(*given), per_owner_rows=seen[-1]))


def divided_by_number_of_rows(patch: Patch) -> None:
    """Steps divide by the number of rows."""
    step, seen = Descent.step, []
    _spied_rows(patch, lambda rows: seen.append(int(rows.bounds[-1])))
    patch.setattr(Descent, "step", lambda self, gradient, **facts: step(self, gradient * (400 / seen[-1]), **facts))


def sums_of_all_people(patch: Patch) -> None:
    """Sums of a sample are over all people of its blocks."""
    add = UnitClip.add
    patch.setattr(UnitClip, "add", lambda self, block, total: add(self, replace(block, sampled=None), total))


def _spied_rows(patch: Patch, look: Any) -> None:
    """Call `look` with the rows of people that a run has prepared."""
    prepare = execute.prepare_shard

    def prepared(*given: Any, **named: Any) -> Rows:
        rows = prepare(*given, **named)
        look(rows)
        return rows

    patch.setattr(execute, "prepare_shard", prepared)


SUM, OUTSIDE = r"moved by \S+ sensitivities", "outside the sample"
PLANTED = [
    (clip_by_row, ("noisy-gd", ""), MANY, SUM),
    (clip_by_row, ("dp-sgd", ""), MANY, SUM),
    (no_products_of_pairs, ("noisy-gd", "--init zero"), LAST, SUM),
    (sum_in_place_of_mean, ("noisy-gd", f"{MEAN} --public-shots 0 --init zero"), HUGE, SUM),
    (counts_of_rows, COUNTS, MANY, SUM),
    (second_moment_of_rows, ("dp-ls", ""), MANY, SUM),
    (rows_sampled_with_people, ("dp-sgd", ""), LAST, OUTSIDE),
    (sums_of_all_people, ("dp-sgd", ""), HUGE, OUTSIDE),
    (number_of_rows, ("noisy-gd", ""), LAST, "published manifest.json: per_owner_rows"),
    (divided_by_number_of_rows, ("dp-sgd", ""), MANY, "published model.npz"),
]


@pytest.mark.parametrize(
    ("plant", "case", "name", "finding"), PLANTED, ids=[f"{case[0].__name__}-{case[1][0]}" for case in PLANTED]
)
def test_a_planted_leak_is_found(plant, case, name, finding, datasets, monkeypatch) -> None:
    plant(monkeypatch)
    words, place = people_words(case), PEOPLE[name].place
    base = play(datasets / "people" / BASE, words, ABSENT, people=True)
    other = play(datasets / "people" / name, words, ABSENT - {place}, people=True, forced=base)
    with pytest.raises(LeakError, match=finding):
        compare(base, other, place)
