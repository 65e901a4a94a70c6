"""The page for a reviewer without Python: one HTML file that checks a run folder in a browser, without a network.

The check is a second implementation of `linprobe verify`, in JavaScript, from `docs/verifier.md` and the JSON Schema.
It shares no code with `linprobe.runs.check`, so an error in one of them is not one in the other. A report holds it too.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any, NamedTuple

from linprobe import __version__
from linprobe.methods import METHODS
from linprobe.runs.manifest import HISTORY, LEDGER, MANIFEST, TEST_FIGURES, digest_of, json_schema
from linprobe.runs.release_rules import EARLIER_PAPERS, JSON_TYPES

EARLIER: frozenset[str] = frozenset()  # SHA-256 of the pages of earlier releases; each release adds its own
MOST_IN_A_REPORT = 1 << 20  # bytes of the copy in a report, packed
WITH_PATHS = ("features", "public_file", "options", "extraction", "refined")  # keys of a manifest
OLDEST_DATE = (1980, 1, 1, 0, 0, 0)  # of a zip file, so that one run gives the same bytes


class Copy(NamedTuple):
    """What a report holds of a run: base64 of a zip file, and whether paths in its manifest are shortened."""

    packed: str
    shortened: bool


@cache
def officer_page() -> bytes:
    page, style = _source("page.html"), _source("page.css")
    script = f"{_check()}\n{_source('ui.js')}"
    for mark, text in {
        "policy": policy(script, style),
        "version": __version__,
        "style": style,
        "script": script,
    }.items():
        page = page.replace("{{" + mark + "}}", text)
    return page.encode()


@cache
def report_script() -> str:
    return f"{_check()}\n{_source('report.js')}"


def copy_of(manifest: bytes, contents: Mapping[str, bytes]) -> Copy | None:
    """The files of a run that its check in a report reads, without the model; None if they are too large."""
    stated = json.loads(manifest)
    short = {key: _shortened(value) if key in WITH_PATHS else value for key, value in stated.items()}
    for key in ("features", "public_file"):
        if stated[key]:
            short["public_from"] = short["public_from"].replace(stated[key], short[key])
    shortened = short != stated
    read = {MANIFEST: json.dumps(short).encode() if shortened else manifest}
    read |= {
        name: content
        for name, content in contents.items()
        if name in (LEDGER, HISTORY, TEST_FIGURES) or name.startswith("published_histogram_")
    }
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in read.items():
            archive.writestr(zipfile.ZipInfo(name, OLDEST_DATE), content, zipfile.ZIP_DEFLATED, 9)
    packed = stream.getvalue()
    return None if len(packed) > MOST_IN_A_REPORT else Copy(b64encode(packed).decode(), shortened)


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(one) for key, one in value.items()}
    return re.sub(r"^.*[/\\]", "\N{HORIZONTAL ELLIPSIS}/", value) if isinstance(value, str) else value


def policy(script: str, style: str) -> str:
    """A content security policy that admits one script and one style sheet, both inside the page, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'none'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _source(name: str) -> str:
    return files("linprobe.runs").joinpath("officer", name).read_text(encoding="utf-8")


def _check() -> str:
    schema, methods = (json.dumps(facts, separators=(",", ":")) for facts in (json_schema(), _methods()))
    parts = "\n".join(_source(name) for name in ("exact.js", "check.js", "words.js"))
    return f'"use strict";\n/* check begins */\nconst SCHEMA = {schema};\nconst METHODS = {methods};\n{parts}'


def _methods() -> dict[str, dict[str, Any]]:
    return {
        method.name: {
            "papers": [method.paper, *([EARLIER_PAPERS[method.name]] if method.name in EARLIER_PAPERS else [])],
            "labels": method.several_labels,
            "noise": method.spends,
            "sampled": method.samples,
            "conditioned": "condition" in method.arguments,
            "publicRows": "public" in method.needs,
            "joins": method.joins_public,
            "arguments": {one.parameter: (name, JSON_TYPES.get(one.kind)) for name, one in method.arguments.items()},
        }
        for method in METHODS.values()
    }


def is_officer_page(content: bytes) -> bool:
    """Whether the content of a file is the page of this version or of an earlier release."""
    return content == officer_page() or digest_of(content) in EARLIER


def _digest(text: str) -> str:
    """The source expression of an inline script or style sheet in a content security policy."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
