"""Nothing is released before its cost is in the budget book, on any path."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from linprobe.accounting.book import read_book
from linprobe.accounting.events import HISTOGRAM
from linprobe.mechanisms.gaussian import GaussianMechanism
from tests.cli.outcomes import NOISY, Cli
from tests.conftest import write_unlabelled
from tests.processes import ended, start_copy

FEW = [*NOISY, "--centre", "none", "--steps", "3"]
GRID = ["--method", "noisy-gd", "--centre", "none", "--steps", "2", "--eps", "2", "--grid", "score_noise=0.3,1"]
COMPARED = ["--methods", "noisy-gd:steps=3", "--eps", "2", "--seeds", "2", "--jobs", "1", "--no-baselines"]
PATHS = {
    "train": ["train", *FEW, "--out", "a"],
    "samples": ["train", "--method", "dp-sgd", "--sampling-rate", "0.2", "--steps", "3", "--eps", "2", "--out", "a"],
    "private mean": ["train", "--method", "noisy-gd", "--steps", "3", "--eps", "2", "--out", "a"],
    "rows without labels": ["train", *FEW, "--unlabelled", "u.h5", "--out", "a"],
    "class counts": ["train", *FEW, "--class-weight", "balanced", "--out", "a"],
    "shrink": ["tune", "--method", "adamix", "--steps", "2", "--eps", "2", "--shrink", "0,1", "--out", "a"],
    "grid": ["tune", *GRID, "--out", "a"],
    "compare": ["compare", *COMPARED, "--out", "a"],
}


class Watched:
    """Checks, before each noisy release, that the books hold it and all equal ones before it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, Counter[tuple[str, float, float]]()

    def __enter__(self) -> Watched:
        release = GaussianMechanism._noised
        self._patch = mock.patch.object(GaussianMechanism, "_noised", autospec=True, side_effect=self._checked(release))
        self._record = mock.patch.object(GaussianMechanism, "__init__", self._recording(GaussianMechanism.__init__))
        self._patch.start()
        self._record.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
        self._record.stop()

    def _recording(self, make: Any) -> Any:
        def init(mechanism: Any, source: Any, record: Any, *args: Any, **options: Any) -> None:
            def recorded(event: Any) -> None:
                mechanism.last = (event.purpose, event.noise_multiplier, event.sampling_rate)
                record(event)

            make(mechanism, source, recorded, *args, **options)

        return init

    def _checked(self, noised: Any) -> Any:
        def check(mechanism: Any, *args: Any) -> Any:
            self.seen[mechanism.last] += 1
            held: Counter[tuple[str, float, float]] = Counter()
            for path in self.folder.glob("*.jsonl"):
                for entry in read_book(path).counted:
                    selected = () if entry.selection is None else entry.selection.releases
                    for one in (*entry.total, *selected):
                        repeated = 10**9 if entry.selection is not None else 1  # the number of runs is secret
                        purpose = HISTOGRAM if one.purpose.startswith(HISTOGRAM) else one.purpose  # without its name
                        held[purpose, one.noise_multiplier, one.sampling_rate] += one.count * repeated
            assert held[mechanism.last] >= self.seen[mechanism.last], (mechanism.last, held)
            return noised(mechanism, *args)

        return check


@pytest.mark.parametrize("words", PATHS.values(), ids=PATHS)
def test_the_book_has_the_whole_cost_before_any_noise_is_drawn(
    cli: Cli, features_file: Path, own_books: Path, words: list[str]
) -> None:
    write_unlabelled(Path("u.h5"))
    with Watched(own_books) as watched:
        assert cli(words[0], features_file, *words[1:]).status == 0
    assert watched.seen
    assert ({"similar rows", "refinement gain"} <= {kind[0] for kind in watched.seen}) == ("--unlabelled" in words)


def test_a_histogram_is_in_the_book_before_its_noise(cli: Cli, features_file: Path, own_books: Path) -> None:
    assert cli("train", features_file, *FEW, "--out", "a").status == 0
    with Watched(own_books) as watched:
        assert cli("pdp-report", "a", "--publish-epsilon", "0.5").status == 0
    assert [kind[0] for kind in watched.seen] == ["histogram"]


def test_private_test_rows_are_in_the_book_before_their_noise(cli: Cli, own_books: Path, tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    rows, labels = g.normal(size=(300, 6)).astype(np.float32), np.arange(300) % 3
    halves = {"X_train": rows[:200], "y_train": labels[:200], "X_test": rows[200:], "y_test": labels[200:]}
    np.savez(tmp_path / "rows.npz", **halves, class_names=["a", "b", "c"])
    assert cli("import", "rows.npz", "--private-test", "--out", "rows.h5").status == 0
    with Watched(own_books) as watched:
        assert cli("train", "rows.h5", *FEW, "--test-epsilon", "1", "--out", "a").status == 0
    assert "test accuracy" in {kind[0] for kind in watched.seen}


def test_the_plan_without_a_short_mean_is_in_the_book_before_its_noise(cli: Cli, own_books: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    np.savez("rows.npz", X_train=rows, y_train=np.arange(2000) % 4, class_names=["a", "b", "c", "d"])
    assert cli("import", "rows.npz", "--out", "rows.h5").status == 0
    with Watched(own_books) as watched:
        words = ["--method", "noisy-gd", "--condition", "mean", "--eps", "2", "--out", "a"]
        assert "the private mean is shorter than" in cli("train", "rows.h5", *words).stderr
    assert {kind[0] for kind in watched.seen} == {"mean", "gradient"}


def test_a_resumed_run_is_in_the_book_before_its_noise(cli: Cli, features_file: Path, own_books: Path) -> None:
    words = ["train", features_file, *FEW, "--checkpoint", "0", "--out", "a"]
    steps = [GaussianMechanism._noised]

    def train() -> int:
        def noised(mechanism: GaussianMechanism, value: Any, std: float) -> Any:
            return os.kill(os.getpid(), signal.SIGKILL) if mechanism.next_step == 3 else steps[0](mechanism, value, std)

        with mock.patch.object(GaussianMechanism, "_noised", noised):
            return int(cli(*words).status)

    assert ended(start_copy(train)) == -signal.SIGKILL
    with Watched(own_books) as watched:
        assert cli(*words, "--resume").status == 0
    assert watched.seen
