"""Messages that name the value, the place and the next step."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linprobe import AdaMix, NoisyGD, atomic_files
from linprobe.__main__ import end_like_ctrl_c
from linprobe.atomic_files import path_from
from linprobe.errors import ArgumentError, ParameterError, UsageError
from linprobe.runs import run_folder
from tests.cli.outcomes import Cli

Refused = Callable[..., None]


def test_a_wrong_argument_of_an_estimator_says_what_was_meant() -> None:
    with pytest.raises(ArgumentError, match="did you mean epsilon"):
        NoisyGD(eps=3)


@pytest.mark.parametrize("name", ["epsilon", "delta", "noise_multiplier", "n_steps", "clip_norm"])
def test_a_number_given_as_text_is_named(name: str) -> None:
    probe = NoisyGD(**{"epsilon": 3.0, "classes": [0, 1], name: "3"})
    with pytest.raises(ParameterError, match=f"{name} is '3', which is text; allowed: a (whole )?number"):
        probe.fit(np.eye(4), [0, 1, 0, 1])
    assert AdaMix(epsilon=3, classes=["0", "1"]).get_params()["classes"] == ["0", "1"]


def test_one_row_and_one_feature_are_in_the_singular(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "alone.npz", X=rng.standard_normal((1, 1)))
    y = np.arange(20) % 2
    np.savez(tmp_path / "all.npz", X_train=[[1.0]], y_train=[0], X_test=y[:, None] + rng.random((20, 1)), y_test=y)
    assert cli("import", "alone.npz", "--out", "alone.h5").stderr.endswith("1 unlabelled row, 1 feature\n")
    assert "1 train, 20 test rows, 1 feature, 2 classes\n" in cli("import", "all.npz", "--out", "all.h5").stderr
    words = ["train", "all.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "2"]
    dry = cli(*words, "--dry-run").stdout
    for part in ("1 private row of 1 feature\n", "0 public rows, 20 test rows, 2 classes\n", "protects   1 row\n"):
        assert part in dry
    assert "noisy-gd: 1 private row, 0 public rows\n" in cli(*words, "--out", "run").stderr
    assert "1 row of the group rows of alone.h5\n" in cli("predict", "run", "alone.h5").stderr
    np.savez(tmp_path / "one.npz", X_train=[[1.0]], y_train=[[1]], X_test=[[1.0]], y_test=[[1]])
    assert "y_train has 1 label a row" in cli("import", "one.npz", "--out", "one.h5").stderr


@pytest.mark.parametrize("command", ["train", "predict", "extract"])
def test_a_usage_error_points_to_the_help_of_its_command(cli: Cli, refused: Refused, command: str) -> None:
    refused(cli(command, "--no-such-option"), 2, [f"See linprobe {command} --help."])


def test_a_run_without_a_budget_has_no_epsilon_in_its_name(cli: Cli, features_file: Path) -> None:
    trained = cli("train", features_file, "--method", "non-private", "--eps", "1")
    assert Path(trained.stdout.strip()).name.startswith("non-private-2")
    assert "option --eps does nothing for non-private, which adds no noise\n" in trained.stderr
    assert "eps" not in Path(trained.stdout.strip(), "config.toml").read_text()


@pytest.mark.parametrize(
    "given",
    [b"\xff\xfe\x00" * 9000, b"x" * 9000, b"a\x00b\n", b"x\n" * (1 << 20)],
    ids=["binary", "long", "NUL", "endless"],
)
def test_rows_on_stdin_in_place_of_a_path_are_not_quoted(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
    with pytest.raises(UsageError, match="which holds no text") as refusal:
        path_from("-")
    assert len(str(refusal.value)) < 300
    assert sys.stdin.buffer.tell() < 2 << 20


@pytest.mark.parametrize("words", [["--version"], ["train", "--eps", "3", "--steps", "2"]])
def test_a_leftover_variable_of_torchrun_changes_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch, words) -> None:
    monkeypatch.setenv("WORLD_SIZE", "abc")
    caught = []
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)
    monkeypatch.setattr(signal, "signal", lambda number, _: caught.append(number))
    end_like_ctrl_c()
    assert signal.SIGTERM in caught
    assert cli(*words).status == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("WORLD_SIZE", "abc"), ("WORLD_SIZE", "0"), ("RANK", "2"), ("RANK", "-1"), ("RANK", "9" * 5000)),
        *(("MASTER_PORT", "abc"), ("MASTER_PORT", "65536"), ("LOCAL_RANK", "x"), ("LOCAL_WORLD_SIZE", "0")),
    ],
)
def test_a_variable_of_torchrun_out_of_its_range_is_refused_at_once(
    cli: Cli, refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    good = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for variable, text in {**good, name: value}.items():
        monkeypatch.setenv(variable, text)
    refused(cli("train", "--eps", "3"), 2, [f"{name} is '{value[:40]}'", "torchrun"])


class Broken(io.FileIO):
    """A file on a disk that fails."""

    def readinto(self, buffer: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readall(self) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("name", ["model.npz", "ledger.jsonl", "per_record.npz"])
def test_a_failed_read_of_a_run_names_the_disk_and_blames_no_file(
    cli: Cli, refused: Refused, trained_run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    opened = atomic_files.open_regular

    def fails(path: Path) -> io.BufferedReader:
        return io.BufferedReader(Broken(path)) if path.name == name else opened(path)

    monkeypatch.setattr(atomic_files, "open_regular", fails)
    monkeypatch.setattr(run_folder.atomic_files, "open_regular", fails)
    refused(cli("pdp-report", trained_run), 1, [name, os.strerror(errno.EIO), "the file itself may be good"])


def test_a_failed_write_of_a_derived_run_names_the_disk(
    cli: Cli, refused: Refused, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def fails(path: Path, target: Path) -> Path:
        if target.name == "history.csv":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        return replace(path, target)

    shutil.copytree(trained_run, "run")
    monkeypatch.setattr(Path, "replace", fails)
    words = ("pdp-report", "run", "--publish-epsilon", "1", "--book", "b.jsonl")
    refused(cli(*words), 1, ["history.csv", "check the disk"])


@pytest.mark.parametrize("full", ["labels.csv", "private_commitment.json"])
def test_a_full_disk_is_told_with_the_name_of_the_file(
    cli: Cli, refused: Refused, features_file: Path, trained_run: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    replace = Path.replace

    def fails(path: Path, target: Path) -> Path:
        if target.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write raises it, without a name
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fails)
    words = ("predict", trained_run, features_file, "--out", full)
    if full != "labels.csv":
        words = ("compare", features_file, "--eps", "1", "--seeds", "1", "--methods", "noisy-gd", "--out", "cm")
    refused(cli(*words, "--quiet"), 1, [f"{full} cannot be written (No space left on device)", "another --out"])
    assert not Path(full).exists()
    assert not Path("cm").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOENT, errno.EIO])
@pytest.mark.parametrize("refusing", ["linprobe.runs.run_folder._hold", "pathlib.Path.mkdir"])
def test_pdp_report_advises_no_option_that_it_lacks(
    cli: Cli, refused: Refused, run_copy: Path, monkeypatch: pytest.MonkeyPatch, refusing: str, number: int
) -> None:
    """Its run lies beside RUN, so another disk is a question of where RUN lies."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(refusing, fails)
        outcome = cli("pdp-report", run_copy, "--publish-epsilon", "0.5")
    refused(outcome, 1, ["published-1 cannot be made", os.strerror(number), "move RUN to another disk"])
    assert "give another" not in outcome.stderr
