"""Fixtures of several commands; those of `linprobe extract` are shared with the tests of extraction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from linprobe.methods._base import Iterates
from tests.extraction.conftest import images, offline
from tests.hostile.case import own_books
from tests.hostile.kinds import runs_in, write_runs
from tests.made_once import made_once

__all__ = ["images", "offline"]


@pytest.fixture
def interrupted_at_the_third_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives in the third step of the first training; later ones go on to their end."""
    move, moves = Iterates.move, []

    def breaks(self: Iterates, *given: Any, **more: Any) -> None:
        moves.append(1)
        if len(moves) == 3:
            raise KeyboardInterrupt
        move(self, *given, **more)

    monkeypatch.setattr(Iterates, "move", breaks)


@pytest.fixture(scope="session")
def kinds() -> dict[str, Path]:
    """A run of each kind, beside the feature files and books of all. Do not change them."""

    def train(folder: Path) -> None:
        with own_books(folder / "state"):  # its private test rows are public test rows of other shared runs
            write_runs(folder)

    return runs_in(made_once("kinds", train))
