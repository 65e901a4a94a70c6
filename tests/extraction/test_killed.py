"""An extraction that is killed or interrupted anywhere goes on to the file that an uninterrupted one makes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linprobe.cli._terminal
import linprobe.extraction.extract  # noqa: F401 (so that no copy of this process has to)
from linprobe.cli import run
from linprobe.data.feature_writer import FeatureWriter
from linprobe.extraction import partial
from linprobe.extraction.partial import Partial
from linprobe.extraction.run import Network
from tests.conftest import mostly_nightly
from tests.extraction.samples import SMALL, contents, damaged, run_extract, write_images
from tests.processes import ended, start_copy

ALL_IMAGES = 36


class Killable:
    """A command over images, some damaged and some public, and what an uninterrupted run of it makes."""

    def __init__(self, folder: Path) -> None:
        source = damaged(folder / "photos")
        write_images(source, {"public": 6}, first_seed=500)
        options = {"batch_size": 2, "on_error": "skip"}
        run_extract(source, folder / "whole.h5", **options, **SMALL)
        self.whole = contents(folder / "whole.h5")
        self.out = folder / "f.h5"
        self.partial = folder / "f.h5.partial"
        words = [source, "--backbone", SMALL["backbone"], "--random-weights", "--resize", 16, "--crop", 16]
        words += ["--device", "cpu", "--batch-size", 2, "--on-error", "skip"]
        self._command = ["extract", *map(str, words), "--out", str(self.out)]

    def images_done(self) -> int:
        """How many images the unfinished run has kept."""
        return sum(int(np.count_nonzero(np.fromfile(path, np.uint8))) for path in self.partial.glob("*.status"))

    def start(self, prepare: Callable[[], None] = lambda: None) -> int:
        """Run the command in a copy of this process; its process id."""

        def work() -> int:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            partial.SYNC_SECONDS = 0.0
            prepare()
            return run(self._command)

        return start_copy(work)


@pytest.fixture
def killable(tmp_path: Path) -> Killable:
    return Killable(tmp_path)


def slow_down() -> None:
    """Make every batch take 10 ms more."""
    forward = Network._forward

    def slow(self: Network, pixels: Any) -> Any:
        time.sleep(0.01)
        return forward(self, pixels)

    Network._forward = slow  # type: ignore[method-assign]


def die_at(owner: Any, name: str, number: int, when: str) -> None:
    """Let the call with this number of a function kill the process, before or after its work."""
    plain, calls = getattr(owner, name), []

    def dying(*words: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*words, **options)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


@pytest.mark.nightly  # by day, at chosen points
@pytest.mark.parametrize("kills", [1, 3])
def test_a_run_that_is_killed_at_random_points_or_interrupted_ends_in_the_same_file(
    killable: Killable, capfd: pytest.CaptureFixture[str], kills: int
) -> None:
    signals = [signal.SIGKILL] * kills + [signal.SIGINT]
    targets = [*sorted(random.sample(range(1, 10), kills)), 34]
    statuses, counts = [], []
    for target, number in zip(targets, signals, strict=True):
        child = killable.start(slow_down)
        limit = time.monotonic() + 30
        while killable.images_done() < target and time.monotonic() < limit:
            time.sleep(0.001)
        time.sleep(random.random() * 0.01)
        os.kill(child, number)
        statuses.append(ended(child))
        counts.append(killable.images_done())
    statuses.append(ended(killable.start()))
    stderr = capfd.readouterr().err
    assert statuses == [-signal.SIGKILL] * kills + [130, 0], stderr
    assert counts == sorted(counts), "a stop lost what was done before"
    assert 0 < counts[0] < ALL_IMAGES
    assert all(count >= target for count, target in zip(counts, targets, strict=True))
    assert f"{counts[kills]} of {ALL_IMAGES} images are done and kept" in stderr
    assert stderr.count("linprobe: error:") == 1
    assert "linprobe: error: stopped by Ctrl-C" in stderr
    assert "Traceback" not in stderr
    assert contents(killable.out) == killable.whole
    assert not killable.partial.exists()


POINTS = [
    (Partial, "begin", 1, "before"),
    (Partial, "begin", 1, "after"),
    (Partial, "write", 1, "before"),
    (Partial, "write", 2, "after"),
    (Partial, "skip", 1, "after"),
    (Partial, "sync", 2, "before"),
    (Partial, "sync", 3, "after"),
    (FeatureWriter, "write_group", 2, "before"),
    (FeatureWriter, "write_group", 3, "after"),
    (FeatureWriter, "write_private_log", 1, "after"),
    (FeatureWriter, "__exit__", 1, "after"),
    (shutil, "rmtree", 1, "before"),
]


@pytest.mark.parametrize("every", mostly_nightly((2, 1), (2).__eq__))
def test_a_run_that_is_killed_between_any_two_steps_ends_in_the_same_file(killable: Killable, every: int) -> None:
    for point in POINTS[::every]:
        assert ended(killable.start(lambda point=point: die_at(*point))) == -signal.SIGKILL, point
    assert ended(killable.start()) == 0
    assert contents(killable.out) == killable.whole
    assert not killable.partial.exists()
