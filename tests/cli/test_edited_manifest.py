"""Every reading command ends with one line about an edited manifest, and names the key that is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.runs.manifest import read_manifest
from linprobe.runs.manifest_keys import KEYS, check_keys
from linprobe.runs.run_files import RunFiles
from tests.cli.outcomes import Cli
from tests.hostile.kinds import random_edit, write_runs
from tests.hostile.runs import ABSENT, VALUES, sealed

READING = (
    ("info", "r"),
    ("evaluate", "r", "rows.h5"),
    ("predict", "r", "rows.h5"),
    ("report", "r", "--html", "page.html"),
    ("pdp-report", "r"),
    ("verify", "r", "--features", "rows.h5"),
    ("release", "r", "--out", "public"),
    ("export", "r", "--to", "safetensors", "--out", "probe.safetensors"),
    ("attack", "r", "--features", "rows.h5"),
    ("extract", "images", "--like", "r", "--out", "alike.h5"),
    ("train", "rows.h5", "--method", "noisy-gd", "--init", "r", "--steps", "1", "--eps", "5", "--out", "next"),
)
KINDS = ("plain", "people", "selected", "private test rows")
EDITS = 12  # of each kind of run


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    """A folder with feature files, and a run of each kind in it. Do not change them."""
    folder = tmp_path_factory.mktemp("kinds")
    return folder, write_runs(folder, KINDS)


def test_every_key_of_every_kind_of_run_has_its_kind_of_value(kinds: tuple[Path, dict[str, Path]]) -> None:
    for run in kinds[1].values():
        assert set(read_manifest(RunFiles(run))) <= set(KEYS)


def test_a_value_of_another_kind_is_refused_by_the_name_of_its_key(
    kinds: tuple[Path, dict[str, Path]],
) -> None:
    for run in kinds[1].values():
        manifest = read_manifest(RunFiles(run))
        for key, kind in KEYS.items():
            wrong = [value for value in VALUES if not kind.holds(value)]
            for value in [*wrong, *([ABSENT] if kind.needed else [])]:
                changed = {name: entry for name, entry in {**manifest, key: value}.items() if entry is not ABSENT}
                with pytest.raises(ValueError, match=rf"\b{key}\b"):
                    check_keys(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_no_edit_ends_a_reading_command_without_a_reason(
    cli: Cli, kinds: tuple[Path, dict[str, Path]], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, runs = kinds
    rng = np.random.default_rng([*kind.encode()])
    manifest: dict[str, Any] = json.loads((runs[kind] / "manifest.json").read_text())
    (tmp_path / "images").mkdir()
    (tmp_path / "rows.h5").symlink_to(folder / "rows.h5")
    monkeypatch.chdir(tmp_path)
    for number in range(EDITS):
        shutil.copytree(runs[kind], tmp_path / "r")
        key = list(manifest)[rng.integers(len(manifest))]
        sealed(tmp_path / "r", **{key: random_edit(manifest[key], rng, VALUES)})
        _outcome_is_said(cli, READING[number % len(READING)], tmp_path)
        shutil.rmtree(tmp_path / "r")


def _outcome_is_said(cli: Callable[..., Any], words: tuple[str, ...], folder: Path) -> None:
    outcome = cli(*words)
    assert outcome.status in (0, 2, 3, 4), (words, outcome.stderr)
    if outcome.status:
        last = outcome.stderr.splitlines()[-1]
        assert last.startswith("linprobe: error: "), words
        assert "--debug" not in last, words
    for made in ("public", "next"):
        shutil.rmtree(folder / made, ignore_errors=True)
    for made in ("page.html", "probe.safetensors"):
        (folder / made).unlink(missing_ok=True)
