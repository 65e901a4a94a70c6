"""The examples of docs/python.md run and print what the page says; its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import linprobe
from linprobe.accounting import fits
from linprobe.api.estimators import ESTIMATORS

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_examples_run_and_print_what_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "FITS", fits.Fits())  # other tests fit the same rows
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    outputs = re.findall(r"^```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(outputs) == 2
    names = {"__name__": "page"}
    for block, output in zip(blocks, outputs, strict=True):
        exec(compile(block, str(PAGE), "exec"), names)
        assert capsys.readouterr().out == output


def test_every_estimator_is_listed_and_can_be_imported_from_the_package() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, estimator in ESTIMATORS.items():
        assert f"| `{estimator.__name__}` | [{name}](methods/{name}.md) |" in page
        assert getattr(linprobe, estimator.__name__) is estimator


def test_every_constructor_argument_is_explained_and_no_other() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.split("| argument | default | meaning |")[1].split("\n\n")[0]
    explained = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert explained == {name for estimator in ESTIMATORS.values() for name in estimator._get_param_names()}
