"""Every reading command ends with one line about an edited manifest, and names the key that is wrong."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.atomic_files import json_text
from linprobe.errors import DataError
from linprobe.runs.manifest import Manifest, fits
from tests.cli.outcomes import Cli
from tests.hostile.kinds import random_edit
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


def test_a_manifest_that_is_read_and_written_is_the_same(kinds: dict[str, Path]) -> None:
    for run in kinds.values():
        content = (run / "manifest.json").read_bytes()
        assert json_text(Manifest.read(content).to_json()).encode() == content


def test_the_words_of_version_0_2_for_the_second_accountant_verify_for_sums_over_all_rows(
    cli: Cli, refused: Callable[..., None], kinds: dict[str, Path], tmp_path: Path
) -> None:
    words = "privacy-loss distribution (dp-accounting)"
    for kind, status in {"plain": 0, "sampled": 4}.items():
        copy = shutil.copytree(kinds[kind], tmp_path / kind)
        sealed(copy, cross_check=words)
        assert cli("verify", copy).status == status
    sealed(copy, accountant=words)
    refused(cli("verify", copy), 4, ["version 0.2", "too small an epsilon", "train anew"])


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace('"n_test"', '"epsilon": 1, "n_test"'), "'epsilon' occurs twice"),
        (lambda text: text.replace('"n_test"', '"surprise": 1, "n_test"'), "'surprise', which is no key"),
        (lambda text: text.replace('"noise_multiplier": ', '"noise_multiplier": NaN, "x": ', 1), "NaN is not a number"),
        (lambda text: text.replace('"std": ', '"std": 1e999, "x": '), "1e999 is not a number"),
        (lambda text: text.replace('"steps": 3', '"steps": 3.0'), "steps is 3.0; allowed: a whole number"),
        (lambda text: text.replace('"format": 3', '"format": 4'), "has format 4"),
        (lambda text: "[" * 100_000, "cannot be read"),
    ],
)
def test_the_decoder_refuses_what_json_or_a_reader_could_take_for_something_else(
    kinds: dict[str, Path], edit: Callable[[str], str], said: str
) -> None:
    text = (kinds["shrunk"] / "manifest.json").read_text()
    assert edit(text) != text
    with pytest.raises(DataError, match=re.escape(said)):
        Manifest.read(edit(text).encode())


def test_a_value_of_another_kind_is_refused_by_the_name_of_its_key(
    kinds: dict[str, Path],
) -> None:
    tried = set()  # keys, with the type of their value
    for run in kinds.values():
        manifest = json.loads((run / "manifest.json").read_text())
        for key, kind in Manifest.keys().items():
            if (key, type(manifest.get(key))) in tried:
                continue
            tried.add((key, type(manifest.get(key))))
            wrong = [value for value in VALUES if not fits(kind, value)]
            for value in [*wrong, *([] if Manifest.is_later(key) else [ABSENT])]:
                changed = {name: entry for name, entry in {**manifest, key: value}.items() if entry is not ABSENT}
                with pytest.raises(ValueError, match=rf"\b{key}\b"):
                    Manifest.decoded(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_no_edit_ends_a_reading_command_without_a_reason(
    cli: Cli, kinds: dict[str, Path], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([*kind.encode()])
    manifest: dict[str, Any] = json.loads((kinds[kind] / "manifest.json").read_text())
    (tmp_path / "images").mkdir()
    (tmp_path / "rows.h5").symlink_to(kinds[kind].parent / "rows.h5")
    monkeypatch.chdir(tmp_path)
    for number in range(EDITS):
        shutil.copytree(kinds[kind], tmp_path / "r")
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
