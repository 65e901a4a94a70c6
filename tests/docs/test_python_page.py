"""The example of docs/python.md runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_example_runs_and_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    outputs = re.findall(r"^```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(outputs) == 1
    exec(compile(blocks[0], str(PAGE), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == outputs[0]
