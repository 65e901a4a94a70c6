"""The page with the papers' tables matches the committed figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[2]
PAGE = HERE / "docs" / "reproduction.md"


def test_page_is_what_the_figures_give() -> None:
    done = subprocess.run([sys.executable, HERE / "benchmarks/paper_tables/render.py", "--check"], timeout=60)
    assert done.returncode == 0, "run python benchmarks/paper_tables/render.py"


def test_every_figure_of_the_page_is_there() -> None:
    images = re.findall(r"\]\((images/[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert images
    assert all((PAGE.parent / image).is_file() for image in images)
