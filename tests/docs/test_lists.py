"""No line of a paragraph begins like an item of a list, a heading or a quotation: a page would show it as one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        ROOT / "features" / "README.md",
        *ROOT.glob("benchmarks/**/*.md"),
    ]
)
FENCE = re.compile(r"^ *(```|~~~)")
STARTS = re.compile(r"( *)(?:([-*+])|(\d{1,9})[.)]|(#{1,6}|>+)|(?:-{3,}|={2,})$)(?: |$)")


def accidents(text: str) -> list[int]:
    """Numbers of the lines that become an item, a heading or a quotation although the paragraph goes on.

    A list begins after a blank line or a colon; its numbers go up by one, and its bullets are all the same.
    """
    found, before, code = [], "", False
    last: str | None = None  # number or bullet of the last item, None outside lists
    for number, line in enumerate(text.splitlines(), start=1):
        if FENCE.match(line):
            code, before, last = not code, "", None
            continue
        starts = None if code or (line.startswith("    ") and last is None) else STARTS.match(line)
        indent, bullet, figure, other = starts.groups() if starts else ("", None, None, None)
        begins = not before or before.endswith(":") or before.startswith(("#", "|", "<"))
        if starts and not begins:
            follows = (
                bullet == last
                if bullet
                else figure is not None and str(last).isdigit() and int(figure) == int(str(last)) + 1
            )
            if (
                not (last is not None and follows)
                and not (indent and bullet)
                and not (other and before.startswith(other))
            ):
                found.append(number)
        if bullet or figure:
            last = bullet or figure if not indent or last is None else last
        elif line and not line.startswith(" ") and not before:
            last = None
        before = "" if code else line.strip()
    return found


def test_nothing_becomes_a_list_by_accident() -> None:
    found = {str(page.relative_to(ROOT)): accidents(page.read_text(encoding="utf-8")) for page in PAGES}
    assert found
    assert {page: lines for page, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("equal mean; so eta is\n1. A geometric number", [2]),
        ("a sum of one\n- and of two", [2]),
        ("a sum of one\n+ and of two", [2]),
        ("the row\n> the limit", [2]),
        ("issue\n# 5", [2]),
        ("a title\n---", [2]),
        ("1. one is\n7. and so on\n", [2]),
        ("- one, which\n* two", [2]),
        ("Text:\n- one\n  more\n- two\n\nText\n", []),
        ("Text\n\n1. one\n2. two\n", []),
        ("- one\n  1. two\n", [2]),
        ("```\na\n- b\n```\n    a\n    - b", []),
    ],
)
def test_the_finder_finds_accidents_only(text: str, found: list[int]) -> None:
    assert accidents(text) == found
