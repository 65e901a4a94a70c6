"""Hostile budget books, for `budget` and for a training run that would be charged to one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.case import Case, Good
from tests.hostile.features import mutated
from tests.hostile.kinds import random_edit
from tests.hostile.runs import VALUES

TRAIN = ("train", "{features}", "--method", "noisy-gd", "--eps", "1", "--steps", "1", "--book", "b.jsonl", "--out", "n")
COMMANDS = (("budget", "b.jsonl"), TRAIN)
EITHER = frozenset({0, 3, 4})


def _lines(good: Good) -> list[Any]:
    return [json.loads(line) for line in good.book.read_text().splitlines()]


def _edited(good: Good, number: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        rng = np.random.default_rng([7, number])
        lines = _lines(good)
        place = int(rng.integers(len(lines)))
        lines[place] = random_edit(lines[place], rng, VALUES)
        (folder / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    return make


def _mutated(good: Good, number: int) -> Callable[[Path], None]:
    return lambda folder: (folder / "b.jsonl").write_bytes(mutated(good.book.read_bytes(), number)) and None


def _sparse(folder: Path) -> None:
    with (folder / "b.jsonl").open("wb") as stream:
        stream.truncate(10**11)


MADE: dict[str, Callable[[Path], Any]] = {
    "a FIFO": lambda folder: os.mkfifo(folder / "b.jsonl"),
    "a link to /dev/zero": lambda folder: (folder / "b.jsonl").symlink_to("/dev/zero"),
    "a folder": lambda folder: (folder / "b.jsonl").mkdir(),
    "10^11 zeros": _sparse,
    "no text": lambda folder: (folder / "b.jsonl").write_bytes(b"\xff\xfe\n"),
    "deep": lambda folder: (folder / "b.jsonl").write_text("[" * 10**5 + "\n"),
    "another first line": lambda folder: (folder / "b.jsonl").write_text('{"book": 3}\n'),
}


def cases(good: Good, mutations: int) -> Iterator[Case]:
    """Made files, edits at random places, then changed bytes."""
    for name, make in MADE.items():
        yield Case(f"book: {name}", make, COMMANDS, frozenset({3}), quick=True)
    for number in range(mutations):
        yield Case(f"book: edit {number}", _edited(good, number), COMMANDS, EITHER, quick=number < 8)
        yield Case(f"book: mutation {number}", _mutated(good, number), COMMANDS, EITHER)
