"""MkDocs hooks: pages that lie outside docs/, the picture of the house, links to files, and GitHub's Markdown.

Pages are written for GitHub first. Here they become pages of the site: a link to a file of the repository that is no
page leads to a copy under `files/`, and one to a folder becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.structure.files import File

from linprobe.runs.officer_page import officer_page

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "features/README.md": "feature-files.md",
    "benchmarks/README.md": "benchmarks.md",
    "docs/README.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
SOURCE = {page: place for place, page in OUTSIDE.items() if page != "index.md"}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^()\s#]+)(#[^()\s]*)?\)")
BLOCK = re.compile(r"^```[\s\S]*?^```$|^(?:    .*\n)+", re.MULTILINE)  # of code
CODE = re.compile(r"`[^`\n]+`")
SHOWN_CODE = re.compile(r"(?<=<code>)[^<\n]+(?=</code>)")
HOUSE = "images/house.png"
HOUSE_MARK = "<!-- the site shows the picture here -->"
HOUSE_ALT = "The folders of linprobe in their layers, from the command line to errors, with an arrow for each import."
CHECK = "officer/verify.html"
CHECK_MARK = "<!-- the site offers the page here -->"
HYPHENATED = re.compile(r"(?<!\S)(?=\S{2,40}(?!\S))\S*-\S*")


def on_config(config: Any) -> Any:
    """List every decision after the index of decisions."""
    for part in config.nav:
        for entries in part.values():
            for entry in entries:
                if isinstance(entry, dict) and "Decisions" in entry:
                    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
                    entry["Decisions"] += [f"decisions/{page.name}" for page in pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/, the picture of the house, the check, and copies of linked files."""
    files.append(File.generated(config, HOUSE, content=_house()))
    files.append(File.generated(config, CHECK, content=officer_page()))
    for place, page in OUTSIDE.items():
        if page in SOURCE:
            files.append(File.generated(config, page, content=(ROOT / place).read_text(encoding="utf-8")))
    linked = {place for file in files.documentation_pages() for place in _links(file.content_string, _place(file))}
    for place in sorted(linked):
        if _page(place) is None and (ROOT / place).is_file():
            files.append(File.generated(config, f"files/{place}", abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Follow links from where the page lies in the repository, and say to Python-Markdown what GitHub understands."""
    markdown = markdown.replace(HOUSE_MARK, f"![{HOUSE_ALT}]({HOUSE})")
    markdown = markdown.replace(CHECK_MARK, f"[Open verify.html]({CHECK}){{ .md-button .md-button--primary }}")
    place = _place(page.file)
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target = _target(found[2], place)
        to = _page(target)
        if to is None and (ROOT / target).is_dir():
            return found[1]
        if to is None and not (ROOT / target).exists():
            return found[0]
        return f"[{found[1]}]({posixpath.relpath(to or f'files/{target}', here or '.')}{found[3] or ''})"

    parts: list[str] = []
    end = 0
    for block in BLOCK.finditer(markdown):
        parts += [CODE.sub(_unescaped, LINK.sub(link, markdown[end : block.start()])), block[0]]
        end = block.end()
    return _lists("".join([*parts, CODE.sub(_unescaped, LINK.sub(link, markdown[end:]))]))


def on_page_content(html: str, **_: Any) -> str:
    """Keep names such as `--unit` and `noisy-gd`, and figures such as 0.95 ± 0.01, on one line."""
    html = SHOWN_CODE.sub(lambda code: HYPHENATED.sub(r'<span class="whole">\g<0></span>', code[0]), html)
    return html.replace(" ± ", "&nbsp;±&nbsp;")


def _house() -> bytes:
    """The picture of the rooms of linprobe, as docs/draw_house.py draws it from the code."""
    with TemporaryDirectory() as folder:
        picture = Path(folder) / "house.png"
        subprocess.run([sys.executable, ROOT / "docs" / "draw_house.py", "--picture", picture], check=True)
        return picture.read_bytes()


def _links(markdown: str, place: str) -> list[str]:
    return [_target(found[2], place) for found in LINK.finditer(BLOCK.sub("", markdown))]


def _place(file: Any) -> str:
    """Where the source of a page lies in the repository."""
    return SOURCE.get(file.src_uri, f"docs/{file.src_uri}")


def _target(link: str, place: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))


def _page(place: str) -> str | None:
    """The page or image of the site that is made from a file of the repository."""
    if place in OUTSIDE:
        return OUTSIDE[place]
    inside = place.startswith("docs/") and (ROOT / place).is_file() and not place.endswith(".py")
    return place.removeprefix("docs/") if inside else None


def _unescaped(code: re.Match[str]) -> str:
    """GitHub wants bars in the code of a table escaped; Python-Markdown shows the backslash."""
    return code[0].replace("\\|", "|")


def _lists(markdown: str) -> str:
    """A blank line before each list: GitHub begins a list after a line of text, Python-Markdown does not."""
    lines, code = [""], False
    for line in markdown.splitlines():
        code ^= line.startswith("```")
        item = re.match(r"(?:[-*]|\d+\.) ", line)
        text = lines[-1] and not re.match(r"(?:[-*]|\d+\.) |[ |#>]", lines[-1])
        if item and text and not code and not _in_list(lines):
            lines.append("")
        lines.append(line)
    return "\n".join(lines[1:]) + "\n"


def _in_list(lines: list[str]) -> bool:
    """Whether the paragraph that ends with the last line belongs to an item of a list."""
    for line in reversed(lines):
        if not line:
            return False
        if re.match(r"(?:[-*]|\d+\.) ", line):
            return True
    return False
