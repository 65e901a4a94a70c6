"""Modules that a command does not import: each of them takes longer to import than the command to run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linprobe import cli
from linprobe.__main__ import main
from tests.processes import ended, start_copy

NUMERICAL = {"numpy", "scipy", "sklearn", "h5py", "torch"}
UNUSED_BY_TRAIN = {"torch", "dp_accounting", "autodp", "matplotlib", "open_clip", "PIL", "pandas"}
UNUSED_BY_SMALL_COMMANDS = {"scipy.special", "scipy.optimize", "scipy.linalg", "scipy.stats", "sklearn", "flint"}
PROGRAM = """
import sys
from itertools import groupby
import linprobe
from linprobe import cli
for then, words in groupby(sys.argv[1:], "THEN".__eq__):
    if not then:
        assert cli.run(list(words)) == 0
        print("loaded", *sys.modules, file=sys.stderr)
"""


def loaded_by(*words: object) -> list[set[str]]:
    """Names of the modules that a new process has imported after each command, with THEN in between."""
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [set(line.split()[1:]) for line in done.stderr.splitlines() if line.startswith("loaded ")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on all rows of the built-in digits."""
    folder = tmp_path_factory.mktemp("startup") / "run"
    assert cli.run(["train", "--method", "noisy-gd", "--eps", "3", "--steps", "2", "--out", str(folder)]) == 0
    return folder


def test_a_command_loads_only_what_it_needs(run: Path, features_file: Path, tmp_path: Path) -> None:
    """What no command has loaded so far, it did not load; those that load least come first."""
    rows, few = tmp_path / "rows.npy", ["--eps", "3", "--steps", "2", "--out"]
    np.save(rows, np.ones((3, 64), dtype=np.float32))
    told = ["--help", "THEN", "train", "--help", "THEN", "--version"]
    about = ["methods", "THEN", "info", features_file, "THEN", "info", run]
    used = ["evaluate", run, "THEN", "predict", run, rows]
    trained = [*("train", "--method", "adamix", *few, tmp_path / "a"), "THEN"]
    trained += ["train", "--method", "dp-sgd", *few, tmp_path / "b"]
    account = ["account", "--q", 0.1, "--sigma", 5, "--steps", 10, "--delta", "1e-5"]
    loaded = loaded_by(*told, "THEN", *about, "THEN", *used, "THEN", *trained, "THEN", *account)
    after_help, without_epsilon, after_training, after_account = (loaded[place] for place in (2, 7, 9, 10))
    assert "linprobe.cli" in after_help
    assert not after_help & NUMERICAL
    assert {"linprobe.methods", "linprobe.extraction.feature_files", "linprobe.evaluation.predict"} <= without_epsilon
    assert not without_epsilon & (UNUSED_BY_TRAIN | UNUSED_BY_SMALL_COMMANDS)
    # a sampled run is planned and trained without the libraries that `verify` asks
    assert {"linprobe.training.execute", "linprobe.accounting.loss_distribution"} <= after_training
    assert not after_training & (UNUSED_BY_TRAIN | {"sklearn", "scipy.stats"})
    assert "autodp" not in after_account


def test_accounting_loads_no_learning_library(run: Path, tmp_path: Path) -> None:
    account = ["account", "--q", 1, "--sigma", 5, "--steps", 10, "--delta", "1e-5"]
    *_, loaded = loaded_by("verify", run, "THEN", "report", run, "--html", tmp_path / "page.html", "THEN", *account)
    assert {"linprobe.runs.check", "linprobe.reporting.page", "linprobe.accounting.calibrate"} <= loaded
    slow = {"sklearn", "h5py", "scipy.stats", "scipy.signal", "dp_accounting.pld"}
    assert not loaded & ((UNUSED_BY_TRAIN | slow) - {"dp_accounting", "autodp"})


def test_modules_that_accounting_did_not_import_are_there_for_whoever_asks_afterwards() -> None:
    program = """
from linprobe.accounting.accountants import AUTODP, RENYI
from linprobe.accounting.events import Releases
releases = [Releases("gradient", 1.5, 1.0, 1)]
light = AUTODP.epsilon(releases, 1e-5)
assert RENYI.epsilon(releases, 1e-5) > light
import sys
assert not {"scipy.stats", "dp_accounting.pld"} & set(sys.modules)
import autodp.dp_bank, dp_accounting
assert dp_accounting.pld.PLDAccountant.__module__.startswith("dp_accounting.pld")
assert abs(autodp.utils.stable_norm_ppf_one_minus_x(-1.0) - 0.3375) < 1e-4
import scipy.stats
autodp.dp_bank.norm = autodp.utils.norm = scipy.stats.norm
assert AUTODP.epsilon(releases, 1e-5) == light
"""
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)


def test_an_unknown_backbone_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    program = "import sys; from linprobe import cli; cli.run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", program, "extract", str(tmp_path), "--backbone", "magic"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    *messages, loaded = done.stderr.splitlines()
    assert len(messages) == 1
    assert "backbone is 'magic'; allowed: resnet50" in messages[0]
    assert not {"torch", "h5py"} & set(loaded.split())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize("mask", [0, 0o777])
def test_files_are_for_the_user_to_write_and_read_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    words = ["train", "--method", "noisy-gd", "--eps", "3", "--steps", "2", "--out", "run"]

    def command() -> int:
        os.umask(mask)
        os.chdir(tmp_path)
        sys.argv[1:] = words
        try:
            main()
        except SystemExit as done:
            return done.code
        return -1

    assert ended(start_copy(command)) == 0
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
    assert modes.pop("per_record.npz") == 0o600
    assert set(modes.values()) == {0o600 if mask else 0o644}
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
