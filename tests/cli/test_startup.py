"""Modules that a command does not import: each of them takes longer to import than the command to run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NUMERICAL = {"numpy", "scipy", "sklearn", "h5py", "torch"}
UNUSED_BY_TRAIN = {"torch", "dp_accounting", "matplotlib", "open_clip", "PIL", "sklearn.datasets"}
UNUSED_BY_SMALL_COMMANDS = {"scipy.special", "scipy.optimize", "scipy.linalg", "scipy.stats", "sklearn", "autodp"}
PROGRAM = """
import sys
import linprobe
from linprobe import cli
status = cli.run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""


def loaded_by(*words: object) -> set[str]:
    """Names of the modules that a new process has imported after a command."""
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"]])
def test_help_loads_no_numerical_library(words: list[str]) -> None:
    loaded = loaded_by(*words)
    assert "linprobe.cli" in loaded
    assert not loaded & NUMERICAL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on all rows of the built-in digits."""
    folder = tmp_path_factory.mktemp("startup") / "run"
    loaded_by("train", "--method", "noisy-gd", "--eps", "3", "--steps", "2", "--out", folder)
    return folder


def test_what_computes_no_epsilon_loads_no_scientific_library(run: Path, features_file: Path) -> None:
    for words in (["methods"], ["info", features_file], ["info", run]):
        loaded = loaded_by(*words)
        assert "linprobe.commands" in loaded
        assert not loaded & (UNUSED_BY_TRAIN | UNUSED_BY_SMALL_COMMANDS), words


def test_accuracies_load_no_accountant(run: Path) -> None:
    loaded = loaded_by("evaluate", run)
    assert "linprobe.evaluation.metrics" in loaded
    assert not loaded & (UNUSED_BY_TRAIN | {"autodp"})


def test_verifying_a_run_on_all_rows_loads_neither_torch_nor_plots(run: Path) -> None:
    assert not loaded_by("verify", run) & (UNUSED_BY_TRAIN - {"dp_accounting"})


def test_training_on_digits_loads_only_what_it_needs(tmp_path: Path) -> None:
    loaded = loaded_by("train", "--method", "adamix", "--eps", "3", "--steps", "2", "--out", tmp_path / "run")
    assert "linprobe.estimators" in loaded
    assert not loaded & UNUSED_BY_TRAIN


def test_an_unknown_backbone_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    program = "import sys; from linprobe import cli; cli.run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", program, "extract", str(tmp_path), "--backbone", "magic"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    *messages, loaded = done.stderr.splitlines()
    assert len(messages) == 1
    assert "backbone is 'magic'; allowed: resnet50" in messages[0]
    assert not {"torch", "h5py"} & set(loaded.split())
