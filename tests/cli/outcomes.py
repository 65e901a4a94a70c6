"""Helpers of the tests of commands: read the output and the files of a command."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

NOISY = ["--method", "noisy-gd", "--eps", "3"]

Cli = Callable[..., Any]

PAGE_EDITS: dict[str, Callable[[Path], Any]] = {
    "another epsilon": lambda page: page.write_text(page.read_text().replace("epsilon", "small number")),
    "removed": Path.unlink,
    "a folder": lambda page: (page.unlink(), page.mkdir()),
    "a link": lambda page: (page.rename(page.parents[1] / "page"), page.symlink_to(page.parents[1] / "page")),
}


def result_of(outcome: Any) -> dict[str, Any]:
    """The JSON object that a command printed."""
    assert outcome.status == 0, outcome
    return dict(json.loads(outcome.stdout))


def write_sealed(run: Path, manifest: dict[str, Any], names: Iterable[str] | None = None) -> None:
    """Write a manifest of a run with fresh digests, as a forger would; `names` of its files, or those it lists."""
    listed = manifest["files"] if names is None else names
    sealed = {**manifest, "files": {name: _digest((run / name).read_bytes()) for name in listed}}
    content = {key: value for key, value in sealed.items() if key != "manifest_digest"}
    sealed["manifest_digest"] = _digest(json.dumps(content, sort_keys=True, ensure_ascii=False).encode())
    (run / "manifest.json").write_text(json.dumps(sealed))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def weights_of(run: Path) -> Any:
    """The released weights of a run folder."""
    with np.load(run / "model.npz") as model:
        return model["weights"]
