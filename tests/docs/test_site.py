"""The site: every public name is in its reference, and links that leave docs/ lead to its pages."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import linprobe
from tests.docs.scripts import load_script

DOCS = Path(__file__).parents[2] / "docs"


def test_reference_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: linprobe\.(?:api\.estimators\.)?(\w+)$", page, flags=re.MULTILINE)
    assert {*named} - {"LinearProbe", "LinearClassifier"} == {*linprobe.__all__} - {"__version__"}
    assert len(named) == len({*named})


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """docs/site/pages.py."""
    pytest.importorskip("mkdocs")
    return load_script(DOCS / "site" / "pages.py")


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("extraction.md", "[files](../features/README.md#a)", "[files](feature-files.md#a)"),
        ("methods/adamix.md", "[all](../README.md)", "[all](../pages.md)"),
        ("contributing.md", "[all](docs/README.md)", "[all](pages.md)"),
        ("release.md", "[list](../pyproject.toml)", "[list](files/pyproject.toml)"),
        ("scaling.md", "[figures](../benchmarks/speed)", "figures"),
        ("scaling.md", "[gone](../nowhere.md)", "[gone](../nowhere.md)"),
        ("scaling.md", "    [code](../features/README.md)", "    [code](../features/README.md)"),
        ("cli.md", "| `RUN\\|FILE` | a |", "| `RUN|FILE` | a |"),
        ("cli.md", "Text:\n- one\n- two", "Text:\n\n- one\n- two"),
        ("cli.md", "- one\n  more\n- two", "- one\n  more\n- two"),
    ],
)
def test_github_markdown_becomes_that_of_the_site(pages: ModuleType, source: str, written: str, shown: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
    assert pages.on_page_markdown(f"{written}\n", page) == f"{shown}\n"


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<code>a --unit owner</code>", '<code>a <span class="whole">--unit</span> owner</code>'),
        ("<td>0.9 ± 0.1</td>", "<td>0.9&nbsp;±&nbsp;0.1</td>"),
        ("<code>a <b>-x</b></code>", "<code>a <b>-x</b></code>"),
    ],
)
def test_names_and_figures_stay_on_one_line(pages: ModuleType, html: str, shown: str) -> None:
    assert pages.on_page_content(html) == shown
