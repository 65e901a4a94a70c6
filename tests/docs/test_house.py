"""The map in CONTRIBUTING.md matches the code, every folder has a floor, and CI notices circles of imports."""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.scripts import load_script

SCRIPT = Path(__file__).parents[2] / "docs" / "draw_house.py"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    """docs/draw_house.py, which reads all imports once."""
    script = load_script(SCRIPT)
    script.rooms = cache(script.rooms)
    return script


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


def test_ci_notices_a_circle_of_imports_behind_type_checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    loader = SourceFileLoader("ci_house", str(SCRIPT.parents[1] / ".ci" / "house"))
    script = module_from_spec(spec_from_loader("ci_house", loader))
    loader.exec_module(script)
    texts = {
        "": "",
        "above": "from linprobe.room import below",
        "room": "",
        "room.below": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from linprobe.above import Name",
        "alone": "def late():\n    import linprobe.above",
    }
    files = {name: tmp_path / f"{number}.py" for number, name in enumerate(texts)}
    for name, path in files.items():
        path.write_text(texts[name])
    assert script.circles(files) == [["above", "room.below"]]
    files["room.below"].write_text("from linprobe import alone")
    assert script.circles(files) == [["above", "alone", "room.below"]]
    files["room.below"].write_text("import linprobe.room")
    assert script.circles(files) == []
