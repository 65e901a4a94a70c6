"""The map in docs/README.md matches the code, and every folder has a floor."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.scripts import load_script

SCRIPT = Path(__file__).parents[2] / "docs" / "draw_house.py"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    """docs/draw_house.py."""
    return load_script(SCRIPT)


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
