"""Runs of every kind fit the published schema, which a program in another language can read.

`conftest.py` also validates each manifest that any test of the suite writes in its own process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.conftest import SCHEMA
from tests.hostile.kinds import WORDS


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    found = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def manifest_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "manifest.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", WORDS)
def test_a_run_of_each_kind_fits(kinds: dict[str, Path], schema: Draft202012Validator, kind: str) -> None:
    schema.validate(manifest_of(kinds[kind]))


@pytest.mark.parametrize("change", [{"surprise": 1}, {"epsilon": "3"}, {"delta": 2}, {"steps": 1.5}, {"format": 4}])
def test_the_schema_refuses_what_the_reader_refuses(
    trained_run: Path, schema: Draft202012Validator, change: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        schema.validate({**manifest_of(trained_run), **change})
