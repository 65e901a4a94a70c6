"""The tables of docs/python.md and docs/methods/README.md say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_tables", DOCS / "generate_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


@pytest.mark.parametrize("page", GENERATOR.PAGES, ids=lambda page: page.stem)
def test_tables_are_those_of_the_generator(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert written == GENERATOR.render(page), f"{page} is out of date; run: python docs/generate_tables.py"
