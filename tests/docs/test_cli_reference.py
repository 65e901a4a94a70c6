"""docs/cli.md and the manual page are what the generators write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import linprobe.cli
from tests.docs.scripts import load_script

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM: Any = linprobe.cli.program()


def test_reference_is_what_the_generator_writes() -> None:
    written = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert written == load_script(DOCS / "generate_cli.py").render(), (
        "docs/cli.md is out of date; run: python docs/generate_cli.py"
    )


def test_manual_page_is_what_the_generator_writes() -> None:
    written = (DOCS / "man" / "linprobe.1").read_text(encoding="utf-8")
    assert written == load_script(DOCS / "generate_man.py").render(), (
        "docs/man/linprobe.1 is out of date; run: python docs/generate_cli.py"
    )


@pytest.mark.parametrize("name", list(PROGRAM.commands))
def test_manual_page_names_every_option_of_every_command(name: str) -> None:
    page = (DOCS / "man" / "linprobe.1").read_text(encoding="utf-8").replace("\\-", "-")
    section = page.split(f"\n.SS linprobe {name}\n")[1].split("\n.S")[0]
    for parameter in PROGRAM.commands[name].params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-"):
                assert f"\\fB{option}\\fR" in section


@pytest.mark.parametrize("name", list(PROGRAM.commands))
def test_every_command_argument_and_option_has_a_help_text(name: str) -> None:
    command = PROGRAM.commands[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name} has no help text"


def test_exit_statuses_are_all_listed() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    for status in (0, 1, 2, 3, 4, 130):
        assert f"\n| {status} | " in page
