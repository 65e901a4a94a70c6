"""Helpers of the tests of commands: read the output and the files of a command."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.runs.manifest import seal

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
    sealed = seal(manifest, {name: (run / name).read_bytes() for name in listed})
    (run / "manifest.json").write_text(json.dumps(sealed))


def weights_of(run: Path) -> Any:
    """The released weights of a run folder."""
    with np.load(run / "model.npz") as model:
        return model["weights"]
