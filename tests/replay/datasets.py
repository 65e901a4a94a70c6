"""Neighbouring data sets under zero-out adjacency, and how places are marked as empty in a run.

The base has empty places; each neighbour fills one of them. A file cannot mark a place as empty, so the base stores a
zero row there, and `leave_empty` blanks it where the run has its rows in training space: after that the place adds
nothing to any sum, whatever centre, bias column or origin the method uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.data.blocks import Block, LazyBlock, Rows
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import MULTICLASS, MULTILABEL
from linprobe.data.rows import ArrayRows, ChangedRows
from linprobe.data.shards import ShardRows
from linprobe.methods import dpsgd_f_theory
from linprobe.training import engine

N, WIDTH, N_CLASSES = 200, 9, 4
FEATURES = "rows.h5"
FAR = 1e100  # the norm of an empty place: its clip factor is 0 in float32
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


def leave_empty(patch: pytest.MonkeyPatch, empty: Collection[int]) -> None:
    """Have the next runs leave these places of the protected rows empty."""
    prepare, changed, row_sum = engine.prepare_units, ChangedRows._changed, dpsgd_f_theory.row_sum

    def prepared(*given: Any) -> Rows:
        return _emptied(prepare(*given), empty, 0)

    def changed_but_empty(self: ChangedRows, load: LazyBlock) -> Block:
        block = load()
        return _blank(changed(self, lambda: block), block.norms == FAR)

    def sum_around(rows: Rows, clip_norm: float, origin: Any, **reduce: Any) -> Any:
        return row_sum(_AtOrigin(rows, origin), clip_norm, origin, **reduce)

    patch.setattr(engine, "prepare_units", prepared)
    patch.setattr(ChangedRows, "_changed", changed_but_empty)
    patch.setattr(dpsgd_f_theory, "row_sum", sum_around)


def _emptied(rows: Rows, empty: Collection[int], first: int) -> Rows:
    """`rows`, the first of which is number `first` of all, with their empty places blanked."""
    if isinstance(rows, ShardRows):
        rows._shard = _emptied(rows._shard, empty, rows.first)
        return rows
    here = [place - first for place in empty if first <= place < first + rows.n_rows]
    if isinstance(rows, ArrayRows):
        rows.x[here], rows.norms[here] = 0, FAR
        return rows
    return _StreamedWithEmpty(rows, here)


def _blank(block: Block, gone: Any) -> Block:
    if not gone.any():
        return block
    x = np.where(gone[:, None], 0, block.x)
    return replace(block, stored=x, norms=np.where(gone, FAR, block.norms), translation=None)


class _StreamedWithEmpty(ChangedRows):
    """Streamed rows with empty places. No sample has them, so only passes over all rows are changed."""

    def __init__(self, rows: Rows, empty: list[int]) -> None:
        super().__init__(rows, rows.n_features)
        self._empty = empty

    def change(self, block: Block) -> Block:
        return _blank(block, np.isin(np.arange(len(block.y)) + block.start, self._empty))

    def sampled_blocks(self, sampled: Any) -> Iterator[LazyBlock]:
        return self._rows.sampled_blocks(sampled)


class _AtOrigin(ChangedRows):
    """Rows whose empty places lie at the origin of a sum of differences, to which they add nothing."""

    def __init__(self, rows: Rows, origin: Any) -> None:
        super().__init__(rows, rows.n_features)
        self._origin = origin

    def _changed(self, load: LazyBlock) -> Block:
        return self.change(load())

    def change(self, block: Block) -> Block:
        return replace(block, stored=np.where((block.norms == FAR)[:, None], self._origin, block.x.astype(np.float64)))
