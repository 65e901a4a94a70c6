"""The map of the house in docs/README.md is that of the code, and every room has a floor."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "draw_house.py"


@pytest.fixture(scope="module")
def house() -> Iterator[ModuleType]:
    """docs/draw_house.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("draw_house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw_house"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules["draw_house"]


def test_map_is_that_of_the_code(house: ModuleType) -> None:
    assert house.main(["--check"]) == 0, "run: python docs/draw_house.py"


def test_a_stale_map_is_noticed(house: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "README.md"
    stale.write_text(house.PAGE.read_text(encoding="utf-8").replace("`linprobe/mechanisms/`", "`linprobe/magic/`"))
    monkeypatch.setattr(house, "PAGE", stale)
    assert house.main(["--check"]) == 1


def test_every_room_has_a_floor(house: ModuleType) -> None:
    assert set(house.rooms()) <= {name for floor in house.floors() for name in floor}


def test_every_folder_says_what_it_holds(house: ModuleType) -> None:
    assert all(room.words for room in house.rooms().values() if room.path.endswith("/"))
