"""The check of `verify.html`, run by Node: `officer.mjs` answers questions about run folders and figures."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from linprobe.runs.officer_page import officer_page

SCRIPT = Path(__file__).with_suffix(".mjs")
OLDEST = 20  # version of Node with Ed25519, `fetch`'s Blob and `DecompressionStream("deflate-raw")`


class Officer:
    """The page, as a process that answers one question at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, what: str, **question: Any) -> Any:
        """The answer to a question of `officer.mjs`."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"ask": what, **question}, default=str) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())

    def run(self, folder: Path, **question: Any) -> dict[str, Any]:
        """The verdict on a run folder; with `refused` and `kind` if the page does not accept it."""
        answer: dict[str, Any] = self.ask("run", folder=folder.absolute(), **question)
        return answer


@contextmanager
def officer(folder: Path, content: bytes | None = None) -> Iterator[Officer]:
    """A page that holds the check, `verify.html` without one, written to a folder. Skips where there is no Node."""
    node = shutil.which("node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout if node else ""
    if not version or int(version.lstrip("v").split(".")[0]) < OLDEST:
        pytest.skip(f"the check of verify.html runs under Node {OLDEST} or newer; found {version.strip() or 'none'}")
    page = folder / "verify.html"
    page.write_bytes(officer_page() if content is None else content)
    command = [str(node), "--no-warnings", str(SCRIPT), str(page)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Officer(process)
        finally:
            process.terminate()
