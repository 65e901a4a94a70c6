"""Every linprobe command that a page shows has options and arguments that exist. `every_command.py` runs them."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

import linprobe.cli
from linprobe.cli._command import taken_out
from tests.docs.commands import GENERATED, PAGES, commands_of, linprobe_words

PROGRAM: Any = linprobe.cli.program()
SHOWN = {page: [line for text in commands_of(page) for line in linprobe_words(text)] for page in PAGES}


@pytest.mark.parametrize("page", [page for page, lines in SHOWN.items() if lines and page != GENERATED])
def test_the_commands_of_a_page_can_be_parsed(page: str) -> None:
    for line in SHOWN[page]:
        words = shlex.split(re.sub(r"\s[12]?>.*", "", line), comments=True)
        words = ["stdin" if word == "-" else word for word in taken_out(words)[1] if word != "--help"]
        PROGRAM.commands[words[0]].make_context(words[0], words[1:])


def test_commands_are_found_in_both_kinds_of_blocks() -> None:
    assert sum(map(len, SHOWN.values())) > 100
    assert "train --method adamix --eps 3" in SHOWN["docs/index.md"]
    assert "train - --eps 3 --public-shots 5 --out first" in SHOWN["docs/extraction.md"]
