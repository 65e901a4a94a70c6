"""The tutorial's commands run, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_tutorial_commands_run_in_order(tmp_path: Path, path_with_linprobe: str) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    environment = {**os.environ, "PATH": path_with_linprobe}
    for number, block in enumerate(blocks, start=1):
        done = subprocess.run(
            ["bash", "-eu", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"block {number}:\n{block}\n{done.stdout}\n{done.stderr}"
