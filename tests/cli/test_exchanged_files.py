"""Files of a run folder that are exchanged while a command reads them: what is checked is what is used.

The moments are those at which a file of the folder is opened. A test tries them all, so it does not depend on a clock.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe import load_run
from linprobe.runs.check import FirstRun
from tests.cli.outcomes import NOISY, Cli, weights_of, write_sealed
from tests.cli.test_signature import forge, keys, signed_run
from tests.conftest import trained_once

__all__ = ["keys", "signed_run"]

FACTOR = 10  # the forgery claims this many times the noise
watching: list[Callable[[Path], None]] = []


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and watching and isinstance(arguments[0], str | bytes | os.PathLike):
        watching[-1](Path(os.fsdecode(arguments[0])))


@cache
def _listen() -> None:
    sys.addaudithook(_on_event)  # Python has no way to remove one, so no process has it that watches nothing


@contextmanager
def watched(folder: Path, opens: Callable[[str], None]) -> Iterator[None]:
    """Call `opens` with the name of each file of a folder before it is opened."""
    folder = folder.resolve()

    def saw(path: Path) -> None:
        if path.absolute().parent == folder:
            watching.pop()
            try:
                opens(path.name)
            finally:
                watching.append(saw)

    _listen()
    watching.append(saw)
    try:
        yield
    finally:
        watching.remove(saw)


def put(folder: Path, source: Path) -> None:
    """Exchange the files of a folder for those of another, each in one step."""
    for path in source.iterdir():
        shutil.copy(path, folder / ".new")
        (folder / ".new").replace(folder / path.name)


@contextmanager
def exchanged(folder: Path, other: Path, first: int, last: int) -> Iterator[Counter[str]]:
    """A folder whose files are those of `other` from the opening of number `first` to just before `last`."""
    kept, opened = folder.with_name("kept"), Counter[str]()
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept)

    def opens(name: str) -> None:
        opened[name] += 1
        if opened.total() in (first, last):
            put(folder, other if opened.total() == first else kept)

    with watched(folder, opens):
        yield opened
    put(folder, kept)


@pytest.fixture
def genuine(features_file: Path, keys: tuple[Path, Path], signed_run: Path, tmp_path: Path) -> Path:
    """A signed run; beside it `forged`, a consistent forgery with its signature, and `other`, another signed run."""
    other = trained_once("signed too", features_file, *NOISY, "--steps", "4", "--sign", str(keys[0]))
    shutil.copytree(other, tmp_path / "other")
    for path in keys:
        shutil.copy(path, tmp_path)
    forged = tmp_path / "forged"
    shutil.copytree(signed_run, forged)
    forge(forged, FACTOR)
    shutil.copy(tmp_path / "other" / "model.npz", forged)
    write_sealed(forged, json.loads((forged / "manifest.json").read_text()))
    return signed_run


def moments(opened: int) -> Iterator[tuple[int, int]]:
    """From when to when files are exchanged: for one opening, for two, and from one on."""
    for first in range(1, opened + 1):
        yield from ((first, first + 1), (first, first + 2), (first, opened + 1))


READING: dict[str, tuple[object, ...]] = {
    "verify": ("verify", "run", "--public-key", "key.public.pem"),
    "release": ("release", "run", "--out", "pub", "--public-key", "key.public.pem"),
    "signed again": ("release", "run", "--out", "pub", "--sign", "key.pem"),
    "report": ("report", "run", "--html", "page.html"),
    "export": ("export", "run", "--to", "safetensors", "--out", "probe"),
    "predict": ("predict", "run", "rows.npy"),
    "init": ("train", "rows.h5", *NOISY, "--steps", "2", "--init", "run", "--eps", "5", "--out", "next"),
}

OVERWRITING = ("report", "export")  # they first look up the feature files, which --out must not replace


@pytest.fixture
def rows(features_file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((3, 10), dtype=np.float32))
    (tmp_path / "rows.h5").symlink_to(features_file)


@pytest.mark.parametrize("command", READING)
def test_no_file_of_a_run_is_opened_twice(cli: Cli, genuine: Path, rows: None, command: str) -> None:
    opened = Counter[str]()

    def opens(name: str) -> None:
        opened[name] += 1

    with watched(genuine, opens):
        assert cli(*READING[command]).status == 0
    assert {"manifest.json", "model.npz"} <= set(opened)
    if command in OVERWRITING:
        opened["manifest.json"] -= 1
    assert set(opened.values()) == {1}, opened


def test_load_run_opens_no_file_twice(genuine: Path) -> None:
    opened = Counter[str]()

    def opens(name: str) -> None:
        opened[name] += 1

    with watched(genuine, opens):
        load_run(genuine)
    assert opened == {"manifest.json": 1, "model.npz": 1}


@pytest.mark.parametrize("start", ["run", "forged"])
def test_a_forgery_is_verified_at_no_moment(cli: Cli, genuine: Path, tmp_path: Path, start: str) -> None:
    shutil.copytree(tmp_path / start, tmp_path / "seen")
    other = tmp_path / ("forged" if start == "run" else "run")
    stated = json.loads((genuine / "manifest.json").read_text())["epsilon"]
    words = ("verify", "seen", "--public-key", "key.public.pem", "--json")
    with exchanged(tmp_path / "seen", other, 0, 0) as opened:
        assert cli(*words).status == (0 if start == "run" else 4)
    for first, last in moments(opened.total()):
        with exchanged(tmp_path / "seen", other, first, last):
            outcome = cli(*words)
        result = json.loads(outcome.stdout)
        assert outcome.status in (0, 4), outcome
        if result["verified"]:
            assert result["epsilon"] == pytest.approx(stated), (first, last)


def test_a_forgery_is_released_at_no_moment(cli: Cli, genuine: Path, tmp_path: Path) -> None:
    words = ("release", "run", "--out", "pub", "--public-key", "key.public.pem")
    signed = ("manifest.json", *json.loads((genuine / "manifest.json").read_text())["files"])
    with exchanged(genuine, tmp_path / "forged", 0, 0) as opened:
        assert cli(*words).status == 0
    shutil.rmtree("pub")
    for first, last in moments(opened.total()):
        with exchanged(genuine, tmp_path / "forged", first, last):
            outcome = cli(*words)
        assert outcome.status in (0, 4), outcome
        if outcome.status == 0:
            for name in signed:
                assert Path("pub", name).read_bytes() == (genuine / name).read_bytes(), (name, first, last)
            shutil.rmtree("pub")


def test_a_forgery_is_signed_at_no_moment(cli: Cli, genuine: Path, tmp_path: Path) -> None:
    """The signature is that of the run only while it is checked."""
    stated = json.loads((genuine / "manifest.json").read_text())["epsilon"]
    words = ("pdp-report", "seen", "--publish-epsilon", "0.5", "--sign", "key.pem")
    shutil.copytree(genuine, tmp_path / "seen")
    with exchanged(tmp_path / "seen", genuine, 0, 0) as opened:
        assert cli(*words).status == 0
    for first in range(1, opened.total() + 1):
        shutil.rmtree("seen")
        shutil.copytree(tmp_path / "forged", tmp_path / "seen")
        with exchanged(tmp_path / "seen", genuine, first, first + 2):
            shutil.rmtree("seen.published-1", ignore_errors=True)
            if cli(*words).status != 0:
                continue
        made = ("verify", "seen.published-1", "--public-key", "key.public.pem", "--json")
        checked = json.loads(cli(*made).stdout)
        if checked["verified"]:
            assert checked["epsilon"] > 0.99 * stated, first


def test_a_first_run_is_of_one_piece_at_every_moment(genuine: Path, tmp_path: Path) -> None:
    """Its weights, and the releases that they cost."""
    weights = {name: weights_of(tmp_path / name) for name in ("run", "other")}
    with exchanged(genuine, tmp_path / "other", 0, 0) as opened:
        _ = FirstRun(genuine).model
    for first, last in moments(opened.total()):
        with exchanged(genuine, tmp_path / "other", first, last):
            try:
                model = FirstRun(genuine).model
            except Exception:
                continue
        name = {5: "run", 4: "other"}[sum(release.count for release in model.releases)]
        assert np.array_equal(model.weights, weights[name]), (first, last)
