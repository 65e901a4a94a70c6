"""Generated tables and the manifest's schema are what the generator writes; the page of a run has each key and file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linprobe.runs.manifest import (
    MANIFEST,
    NAMED_FILES,
    PER_RECORD,
    PROVED,
    SIGNATURE,
    STATED_FILES,
    VERIFY_PAGE,
    Manifest,
)
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


def test_the_page_says_once_how_each_key_and_file_is_proved() -> None:
    """As stated where `verify` lists a key or a file so."""
    page = (DOCS / "verifier.md").read_text(encoding="utf-8")
    rows = re.findall(r"^[|] (`[^|]*`) [|] (digest|ledger|matched|schema|signature|stated) [|]", page, re.MULTILINE)
    proofs = [(name, proof) for names, proof in rows for name in re.findall("`(.*?)`", names)]
    keys, files = ["format", *Manifest.keys()], [*NAMED_FILES, MANIFEST, SIGNATURE, PER_RECORD, VERIFY_PAGE]
    assert sorted(name for name, _ in proofs) == sorted([*keys, *files, "published_histogram_N.json"])
    stated = {name for name, proof in proofs if proof == "stated"}
    assert stated == {*keys, *STATED_FILES, "published_histogram_N.json"} - PROVED
