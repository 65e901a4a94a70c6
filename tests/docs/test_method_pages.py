"""Every method has a page; the page lists exactly its options, with their defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import linprobe.cli
from linprobe.methods import METHODS

PAGES = Path(__file__).parents[2] / "docs" / "methods"
PROGRAM: Any = linprobe.cli.program()
FLAGS = {
    flag
    for command in PROGRAM.commands.values()
    for parameter in command.params
    for flag in (*parameter.opts, *parameter.secondary_opts)
}
METHOD_FLAGS = {
    f"--{option.name.replace('_', '-')}" for method in METHODS.values() for option in fields(method.options)
} - {"--centre"}  # an option of dpsgd-f; other methods have another --centre


def _options_table(page: str) -> dict[str, str]:
    """Option to default, from rows such as "| `--clip-norm` | 0.5 | ... |"."""
    return dict(re.findall(r"^\| `(--[a-z-]+)` \| ([^|]*) \|", page, flags=re.MULTILINE))


def _shown(default: Any) -> str:
    return "none" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("name", METHODS)
def test_page_names_every_option_with_its_default_and_no_other(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    declared = {
        f"--{option.name.replace('_', '-')}": _shown(option.default) for option in fields(METHODS[name].options)
    }
    assert {flag: default.strip() for flag, default in _options_table(page).items()} == declared


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_page_mentions_no_option_that_does_not_exist(page: Path) -> None:
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text(encoding="utf-8")))
    assert mentioned <= FLAGS


@pytest.mark.parametrize("name", METHODS)
def test_page_mentions_method_options_only_of_its_own_method(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    own = {f"--{option.name.replace('_', '-')}" for option in fields(METHODS[name].options)}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) & METHOD_FLAGS
    elsewhere = {"--init"} if name == "zero-shot" else set()  # it points to methods that can start from its weights
    assert mentioned - elsewhere <= own


def test_there_is_no_page_without_a_method_and_the_index_links_all() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*METHODS, "README"}
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in index for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_page_has_the_same_sections(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*)$", page, flags=re.MULTILINE)
    assert sections == [
        "What it computes",
        "Guarantee",
        "Data",
        "Options",
        "When to use",
        "Example",
        "Source",
    ]
