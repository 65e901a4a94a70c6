"""The page for a reviewer without Python: one HTML file that checks a run folder in a browser, without a network.

The check is a second implementation of `linprobe verify`, in JavaScript, from `docs/run-folder.md` and the manifest's
JSON Schema. It shares no code with `linprobe.runs.check`, so an error in one of them is not an error in the other. The
files in `officer/` are put together here; the page's security policy admits this one script and this one style sheet.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from functools import cache
from importlib.resources import files

from linprobe import __version__
from linprobe.runs.manifest import digest_of, json_schema

EARLIER: frozenset[str] = frozenset()  # SHA-256 of the pages of earlier releases; each release adds its own


@cache
def officer_page() -> bytes:
    """The page of this version."""
    source = files("linprobe.runs").joinpath("officer")
    page, style, *parts = (
        source.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "exact.js", "check.js", "words.js", "ui.js")
    )
    schema = json.dumps(json_schema(), separators=(",", ":"))
    exact, check, words, ui = parts
    judge = f"/* check begins */\nconst SCHEMA = {schema};\n{exact}\n{check}\n{words}/* check ends */"
    script = f'"use strict";\n{judge}\n\n{ui}'
    policy = (
        f"default-src 'none'; script-src '{_source(script)}'; style-src '{_source(style)}'; connect-src 'none'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    for mark, text in {"policy": policy, "version": __version__, "style": style, "script": script}.items():
        page = page.replace("{{" + mark + "}}", text)
    return page.encode()


def is_officer_page(content: bytes) -> bool:
    """Whether the content of a file is the page of this version or of an earlier release."""
    return content == officer_page() or digest_of(content) in EARLIER


def _source(text: str) -> str:
    """The source expression of an inline script or style sheet in a content security policy."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
