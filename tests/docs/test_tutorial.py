"""The tutorial's commands run, in order, in an empty folder."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_tutorial_commands_run_in_order(bash: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    for number, block in enumerate(blocks, start=1):
        done = bash(block)
        assert done.returncode == 0, f"block {number}:\n{block}\n{done.stdout}\n{done.stderr}"
