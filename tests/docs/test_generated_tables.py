"""The tables of docs/python.md and docs/methods/README.md, and the manifest's schema, are what the generator writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.scripts import load_script

DOCS = Path(__file__).parents[2] / "docs"


GENERATOR = load_script(DOCS / "generate_tables.py")


@pytest.mark.parametrize("page", GENERATOR.PAGES, ids=lambda page: page.stem)
def test_tables_are_those_of_the_generator(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert written == GENERATOR.render(page), f"{page} is out of date; run: python docs/generate_tables.py"


def test_the_schema_is_that_of_the_code() -> None:
    written = GENERATOR.SCHEMA.read_text(encoding="utf-8")
    assert written == GENERATOR.schema(), f"{GENERATOR.SCHEMA} is out of date; run: python docs/generate_tables.py"
