"""Neighbouring data sets under zero-out adjacency of people: one whole person has rows, or none.

A file cannot hold a person without rows, so the base stores one zero row of each person who is absent. `leave_empty`
drops these rows and leaves the place of the person. All else is the path of `train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.data.blocks import PAIRED_ROWS
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from tests.replay.datasets import CLASSES, DENORMAL, FEATURES, HUGE, LONE, N_CLASSES, WIDTH, N, write_unlabelled


@dataclass(frozen=True)
class Person:
    """One person more than the base has: place among the people, label of each row, and length of the longest entry."""

    place: int
    labels: tuple[int, ...]
    size: float = 3.0


PEOPLE = {
    "first person with huge rows": Person(0, (0, 1, 2, 0, 0), HUGE),
    "first person with many rows of another class": Person(0, (1,) * (2 * PAIRED_ROWS)),
    "last person with denormal rows, the only ones of their class": Person(N - 1, (LONE,) * 3, DENORMAL),
}
ABSENT = frozenset(person.place for person in PEOPLE.values())


def write_people(folder: Path, present: Person | None) -> None:
    """Write the base, N people with 1 to 3 rows except those `ABSENT`, or the neighbour of it with one person more."""
    folder.mkdir(parents=True)
    g = np.random.default_rng(0)
    centres = 2 * g.normal(size=(N_CLASSES, WIDTH))
    sizes = np.where(np.isin(np.arange(N), list(ABSENT)), 1, 1 + np.arange(N) % 3)
    people = [_rows(centres, np.arange(size) % LONE, np.random.default_rng(place)) for place, size in enumerate(sizes)]
    for place in ABSENT:
        people[place] = np.zeros((1, WIDTH)), np.zeros(1, dtype=np.int64)
    if present is not None:
        rows = g.normal(size=(len(present.labels), WIDTH)) + 1
        rows *= present.size / np.abs(rows).max(axis=1, keepdims=True)
        people[present.place] = rows, np.array(present.labels)
    owners = [f"person {place:03d}" for place, (_, labels) in enumerate(people) for _ in labels]
    ids = [f"train/{place}/{row}" for place, (_, labels) in enumerate(people) for row in range(len(labels))]
    x, y = (np.concatenate(parts) for parts in zip(*people, strict=True))
    with FeatureWriter(folder / FEATURES, Description(class_names=CLASSES, backbone="test")) as writer:
        writer.write_group("train", len(y), WIDTH, [x.astype(np.float32)], y, ids, owners=owners)
        for group, n in (("public", 12), ("test", 20)):
            x, y = _rows(centres, np.arange(n) % N_CLASSES, np.random.default_rng([n, N]))
            writer.write_group(group, n, WIDTH, [x.astype(np.float32)], y, [f"{group}/{row}" for row in range(n)])
        writer.write_text_weights(np.eye(WIDTH, N_CLASSES) + 0.1)
    write_unlabelled(folder)


def _rows(centres: Any, labels: Any, g: np.random.Generator) -> tuple[Any, Any]:
    return centres[labels] + g.normal(size=(len(labels), WIDTH)), labels
