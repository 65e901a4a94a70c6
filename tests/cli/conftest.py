"""Fixtures of several commands; those of `linprobe extract` are shared with the tests of extraction."""

from __future__ import annotations

from collections.abc import Iterable
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


@pytest.fixture
def pictures() -> None:
    """For a test that looks at the picture of a comparison."""


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons draw nothing: a picture takes longer than the runs of a test. tests/reporting draws them."""

    def drawn(path: Path, summaries: Iterable[Any], *_: Any, **__: Any) -> Path | None:
        if all(one["epsilon"] is None for one in summaries):
            return None
        path.touch()
        return path

    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("linprobe.reporting.comparison.accuracy_against_epsilon", drawn)


@pytest.fixture(scope="session")
def kinds() -> dict[str, Path]:
    """A run of each kind, beside the feature files and books of all. Do not change them."""

    def train(folder: Path) -> None:
        with own_books(folder / "state"):  # its private test rows are public test rows of other shared runs
            write_runs(folder)

    return runs_in(made_once("kinds", train))
