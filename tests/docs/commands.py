"""The commands that pages show, as a reader copies them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = "docs/cli.md"  # synopses, no commands
PAGES = (
    *("README.md", "CONTRIBUTING.md", "features/README.md"),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
STARTS = re.compile(r"(\$ )?(linprobe|torchrun|openssl|mkdir|printf|python) ")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
PROGRAM = '-c "\n'


def commands_of(page: str) -> list[str]:
    """Commands of a page in order: a fenced `sh` or `bash` block is one script, an indented line is one command."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [(match.start(), match[2]) for match in FENCE.finditer(text) if match[1] in ("sh", "bash")]
    blank = FENCE.sub(lambda match: "\n".rjust(len(match[0]), "\0"), text)  # the same length, so that places agree
    for match in INDENTED.finditer(blank):
        block = textwrap.dedent(match[0])
        parts = [block] if PROGRAM in block else block.splitlines()
        found += [(match.start() + place, part) for place, part in enumerate(parts) if STARTS.match(part)]
    return [command.removeprefix("$ ") for _, command in sorted(found)]


def linprobe_words(command: str) -> list[str]:
    """The `linprobe` command lines in a command or script, without what they are piped from or into."""
    command = command.replace("\\\n", " ")  # a long line goes on
    lines = re.split(r"\n|&&|\|\||\||;", re.sub(r"<<'(\w+)'.*?^\1$", "", command, flags=re.DOTALL | re.MULTILINE))
    found = (re.search(r"(?:^\s*(?:if )?|-m )linprobe (.*)", line) for line in lines)
    return [match[1] for match in found if match]
