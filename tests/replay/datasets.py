"""Neighbouring data sets under zero-out adjacency, and how places are marked as empty in a run.

The base has empty places; each neighbour fills one of them. A file cannot mark a place as empty, so the base stores a
zero row there, and `leave_empty` blanks it where the run has its rows in training space: after that the place adds
nothing to any sum, whatever centre, bias column or origin the method uses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import MULTICLASS, MULTILABEL
from linprobe.data.rows import Rows
from linprobe.training import execute

N, WIDTH, N_CLASSES = 200, 9, 4
FEATURES = "rows.h5"
UNLABELLED = "unlabelled.h5"
CLASSES = ("ant", "bee", "cat", "dog")
LONE = 3  # the class that no other private row has
HUGE, DENORMAL = 3e38, 1e-42


@dataclass(frozen=True)
class Neighbour:
    """One record more than the base has: its place among the protected rows, label, and length of its longest entry."""

    place: int
    label: int
    size: float = 3.0


NEIGHBOURS = {
    "huge first row": Neighbour(0, 0, HUGE),
    "first row with another label": Neighbour(0, 1, HUGE),
    "denormal last row, the only one of its class": Neighbour(N - 1, LONE, DENORMAL),
}
ENDS = {name: neighbour for name, neighbour in NEIGHBOURS.items() if neighbour.label != 1}
JOINED = {"first public row": Neighbour(N, 1)}  # of a method that protects public rows too


SHOTS = {"huge first row": NEIGHBOURS["huge first row"]}  # with its label, on which the choice of shots depends
KINDS = {"private": NEIGHBOURS, "joined": NEIGHBOURS | JOINED, "shots": SHOTS, "labels": NEIGHBOURS}


def empty_places(kind: str) -> frozenset[int]:
    """Which places are empty in the base of a kind."""
    return frozenset(neighbour.place for neighbour in KINDS[kind].values())


def write(folder: Path, kind: str, filled: Neighbour | None) -> None:
    """Write the base of a kind, or the neighbour of it with one place filled.

    Public rows have an empty place in `joined`; in `shots` every class has private rows, of which some become public.
    Rows of `labels` have several labels each.
    """
    folder.mkdir(parents=True)
    g = np.random.default_rng(0)
    centres = 2 * g.normal(size=(N_CLASSES, WIDTH))
    task = MULTILABEL if kind == "labels" else MULTICLASS
    with FeatureWriter(folder / FEATURES, Description(class_names=CLASSES, backbone="test", task=task)) as writer:
        first = 0
        for group, n in (("train", N), ("public", 12), ("test", 20)):
            labels = np.arange(n) % (LONE if group == "train" and kind != "shots" else N_CLASSES)
            rows = (centres[labels] + g.normal(size=(n, WIDTH))).astype(np.float32)
            for place in empty_places(kind):
                if group != "test" and first <= place < first + n:
                    rows[place - first], labels[place - first] = 0, 0
            if filled is not None and group != "test" and first <= filled.place < first + n:
                row = g.normal(size=WIDTH)
                rows[filled.place - first] = row / np.abs(row).max() * filled.size
                labels[filled.place - first] = filled.label
            g = np.random.default_rng(first + n)  # a filled place changes no later row
            if task == MULTILABEL:
                labels = np.stack([labels == 0, labels < 2, labels != LONE, labels % 2 == 0], axis=1).astype(np.uint8)
            writer.write_group(group, n, WIDTH, [rows], labels, [f"{group}/{row}" for row in range(n)])
            first += n
        writer.write_text_weights(np.eye(WIDTH, N_CLASSES) + 0.1)
    write_unlabelled(folder)


def write_unlabelled(folder: Path) -> None:
    """Write public rows without labels, the same for all data sets, in all directions: most other rows are near."""
    rows = np.random.default_rng(WIDTH).normal(size=(60, WIDTH)).astype(np.float32)
    with FeatureWriter(folder / UNLABELLED, Description(class_names=(), backbone="test")) as writer:
        writer.write_group("rows", len(rows), WIDTH, [rows], None, [f"u/{row}" for row in range(len(rows))])


def leave_empty(patch: pytest.MonkeyPatch, empty: Collection[int]) -> None:
    """Have the next runs leave these places of the protected rows, or of people, empty."""
    prepare = execute.prepare_shard

    def prepared(*given: Any, **named: Any) -> Rows:
        rows = prepare(*given, **named)
        return rows.emptied(~np.isin(rows.first + np.arange(rows.n_local), list(empty)))

    patch.setattr(execute, "prepare_shard", prepared)
