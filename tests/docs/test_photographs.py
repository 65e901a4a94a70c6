"""The demonstration runs, cell by cell, and its page shows its cells and what they print."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from linprobe.cli import run
from tests.hostile.officer import officer

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = re.compile(r"[\d.]+(?:e-\d+)?")  # noise and time differ from run to run


def _cells() -> list[str]:
    """The code of each cell, without its title."""
    parts = re.split(r"^# %% .*\n", (DOCS / "photographs.py").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [part.strip() for part in parts[1:]]


def _blocks(language: str) -> list[str]:
    page = (DOCS / "photographs.md").read_text(encoding="utf-8")
    return [text.strip() for text in re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


def _shape(text: str) -> list[str]:
    """Lines without figures and blanks, and without the progress that a busy machine shows."""
    lines = [line for line in text.splitlines() if not re.match(r"training: .* left$", line)]
    return [re.sub(r"[ ─]+", " ", FIGURES.sub("0", line)).strip() for line in lines]


def in_this_process(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """A command of linprobe, as `subprocess.run` runs it, without the seconds that a new process imports for."""
    assert command[:3] == [sys.executable, "-m", "linprobe"]
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        status = run(command[3:])
    assert status == 0, stderr.getvalue()
    return subprocess.CompletedProcess(command, status, stdout.getvalue(), stderr.getvalue())


def test_the_page_shows_every_cell() -> None:
    assert _blocks("python") == _cells()


def test_the_cells_print_what_the_page_shows_and_end_with_a_private_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "cells"}
    printed = []
    for cell in _cells():
        with contextlib.redirect_stdout(io.StringIO()) as output, monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", in_this_process)
            exec(compile(cell, "photographs.py", "exec"), names)
        printed.append(output.getvalue().strip())
    shown = _blocks("text")
    assert [_shape(text) for text in printed] == [_shape(text) for text in shown[: len(printed)]]
    reached, stated = (re.findall(r"test accuracy +│ +([\d.]+)", "\n".join(each)) for each in (printed, shown))
    assert float(reached[0]) == pytest.approx(float(stated[0]), abs=0.05)
    page = tmp_path / "page"
    page.mkdir()
    with officer(page) as check:
        verdict = check.run(tmp_path / "released")
    assert [verdict["sentence"], verdict["promise"]] == shown[-1].splitlines()
