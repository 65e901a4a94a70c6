"""Fixtures of several commands; those of `linprobe extract` are shared with the tests of extraction."""

from __future__ import annotations

from typing import Any

import pytest

from linprobe.methods._iterates import Iterates
from tests.extraction.conftest import images, offline

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
